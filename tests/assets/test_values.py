"""Numbers and durations: what PromQL can hold goes through, the rest is refused in words."""

import pytest

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.values import LITERAL, as_duration, as_seconds, milliseconds, number


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("900", 900000),
        ("900s", 900000),
        ("15m", 900000),
        ("1h30m", 5400000),
        ("1d", 86400000),
        ("500ms", 500),
        ("0", 0),
        ("0s", 0),
        ("0.5", 500),
        ("1w", 604800000),
        ("1y", 31536000000),
        ("1e3", 1000000),
    ],
)
def test_durations(text: str, length: int) -> None:
    """With a unit as Prometheus reads it, without one as seconds."""
    assert milliseconds(text) == length


@pytest.mark.parametrize(
    "text",
    [
        "",
        "m",
        "15 m",
        "-5m",
        "1.5h",
        "15M",
        "15min",
        "30m1h",
        "5m5m",
        "1m\n",
        "٣m",
        "NaN",
        "Inf",
        "0x10",
        "1_000",
        "2y",
        "9" * 1000,
        "9" * 1000 + "m",
        "0.0001",
        "15m # option: x",
        "1e309",
        '15m"',
        "{{ 1 }}",
    ],
)
def test_what_is_no_duration(text: str) -> None:
    """Refused, whatever it is."""
    with pytest.raises(AssetError, match=r"is no duration"):
        milliseconds(text)


@pytest.mark.parametrize("text", ["0.8", "5", "1e9", "2.5E-3", "0"])
def test_numbers(text: str) -> None:
    """They stay as they were written."""
    assert number(text) == text


@pytest.mark.parametrize(
    "text", ["", "5m", "-1", "NaN", "Inf", "1e999", "0x1", "1,5", ".5", "5.", "1 2", "٣", "9" * 41]
)
def test_what_is_no_number(text: str) -> None:
    """Refused, whatever it is."""
    with pytest.raises(AssetError, match=r"is no number"):
        number(text)


@pytest.mark.parametrize("length", [0, 1, 500, 1000, 90_000, 900_000, 5_400_000, 90_061_001])
def test_both_forms_say_the_same(length: int) -> None:
    """What is written is what was read."""
    assert milliseconds(as_duration(length)) == milliseconds(as_seconds(length)) == length


@pytest.mark.parametrize(
    ("line", "last"),
    [
        ("x[15m])", "15m"),
        (") > time() - 900", "900"),
        ("p95_1h > 2", "2"),
        ("< 1.5 *", "1.5"),
        ("offset 1h30m", "1h30m"),
        ('printf "vector(%f + 900)" | printf "%.0f"', "900"),
        ("increase1h", None),
        ("run:weight_sync:p25_1h", None),
    ],
)
def test_literals(line: str, last: str | None) -> None:
    """No digit of a name or of a format is one."""
    found = [match[0] for match in LITERAL.finditer(line)]
    assert (found[-1] if found else None) == last
