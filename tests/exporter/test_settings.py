"""What an exporter is told: addresses, durations and sizes as people write them."""

from pathlib import Path

import pytest

from sglang_telemetry.exporter.settings import ExporterSettings, parse_duration, parse_listen, parse_size


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        (":9464", ("0.0.0.0", 9464)),
        ("node-1.cluster_a:80", ("node-1.cluster_a", 80)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9464", ("::1", 9464)),
        ("[::]:65535", ("::", 65535)),
        ("  :1 ", ("0.0.0.0", 1)),
    ],
)
def test_listen(text: str, address: tuple[str, int]) -> None:
    """Host and port, a port alone, and IPv6 in brackets."""
    assert parse_listen(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "9464", "host", "host:", ":65536", ":-1", ":99999", "::1:80", "[::1]", "http://h:1", "h:1/x", "a b:1"],
)
def test_bad_listen(text: str) -> None:
    """It is said what to write instead."""
    with pytest.raises(ValueError, match="write HOST:PORT, such as "):
        parse_listen(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("500ms", 0.5),
        ("15m", 900.0),
        ("24h", 86400.0),
        ("7d", 604800.0),
        ("90", 90.0),
        ("1.5h", 5400.0),
        (" 2 m ", 120.0),
        ("0", 0.0),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    """All units, and a bare number of seconds."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "1w", "-1s", "1h30m", "1,5h", "inf", "nan", "1e3", "5 S"])
def test_bad_duration(text: str) -> None:
    """It is said what to write instead."""
    with pytest.raises(ValueError, match="is no duration: write 30s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("64k", 65536),
        ("512M", 1 << 29),
        ("1G", 1 << 30),
        ("1GiB", 1 << 30),
        ("2gb", 2 << 30),
        ("10 mb", 10 << 20),
    ],
)
def test_size(text: str, size: int) -> None:
    """All units, large and small."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "1.5G", "1T", "1 G B", "x"])
def test_bad_size(text: str) -> None:
    """It is said what to write instead."""
    with pytest.raises(ValueError, match="is no size: write 512M or 1G"):
        parse_size(text)


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("", "127.0.0.1"),
        ("node-1", "node-1"),
    ],
)
def test_shown_host(host: str, shown: str) -> None:
    """An address that can be asked from this machine, as it stands in a URL."""
    assert ExporterSettings(folder=Path("/x"), host=host).shown_host == shown
