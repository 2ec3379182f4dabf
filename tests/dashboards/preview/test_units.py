"""Numbers are written as Grafana writes them."""

import math

import pytest

from tests.dashboards.preview.units import formatted, from_now


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "expected"),
    [
        (3.0, None, None, "3"),
        (3.456, None, None, "3.46"),
        (34.56, "none", None, "34.6"),
        (345.6, "none", None, "346"),
        (0.0345, "none", None, "0.0345"),
        (2.5, "none", 0, "3"),
        (math.inf, "none", None, "∞"),
        (None, "s", None, ""),
        (0.0, "s", None, "0 s"),
        (0.25, "s", None, "250 ms"),
        (90.0, "s", None, "1.50 min"),
        (7200.0, "s", None, "2 hour"),
        (1500.0, "ms", None, "1.50 s"),
        (125.0, "dtdurations", None, "2 minutes"),
        (125.0, "dtdurations", 1, "2 minutes, 5 seconds"),
        (3600.0, "dtdurations", 1, "1 hour, 0 minutes"),
        (-60.0, "dtdurations", None, "1 minute ago"),
        (0.0, "dtdurations", None, "0 seconds"),
        (0.123, "percentunit", None, "12.3%"),
        (12.0, "percent", 1, "12.0%"),
        (1536.0, "bytes", None, "1.50 KiB"),
        (15.0 * 2**30, "bytes", None, "15 GiB"),
        (1.5e9, "Bps", None, "1.50 GB/s"),
        (1500.0, "short", None, "1.50 K"),
        (2.5e6, "short", None, "2.50 Mil"),
        (1500.0, "reqps", None, "1.50K req/s"),
        (5.0, "suffix:syncs", None, "5 syncs"),
        (1768468800000.0, "dateTimeAsIso", None, "2026-01-15 09:20:00"),
        (1768468800000.0, "dateTimeAsIsoNoDateIfToday", None, "09:20:00"),
        (1768468800000.0, "dateTimeFromNow", None, "2 minutes ago"),
    ],
)
def test_a_number_in_its_unit(value: float | None, unit: str | None, decimals: int | None, expected: str) -> None:
    assert formatted(value, unit, decimals, now=1768468920.0) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (10, "a few seconds ago"),
        (60, "a minute ago"),
        (600, "10 minutes ago"),
        (3600, "an hour ago"),
        (5 * 3600, "5 hours ago"),
        (86400, "a day ago"),
        (20 * 86400, "20 days ago"),
        (60 * 86400, "2 months ago"),
        (800 * 86400, "2 years ago"),
        (-120, "in 2 minutes"),
    ],
)
def test_how_long_ago_in_words(seconds: float, expected: str) -> None:
    assert from_now(1e9 - seconds, 1e9) == expected
