"""The parts of a URL that attributes name; a malformed one costs its parts only."""

from urllib.parse import SplitResult, urlsplit


def split_url(url: str) -> SplitResult:
    """The parts of a URL; of one that is none, no parts."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")


def port_of(parts: SplitResult) -> int | None:
    """The port that is named, else the scheme's."""
    try:
        return parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
