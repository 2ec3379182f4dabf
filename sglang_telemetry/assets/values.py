"""Numbers and durations as PromQL writes them: one grammar for what stands in a rule and for what a user gives.

A duration is held in milliseconds, so that ``15m`` and ``900`` can be told to be the same without rounding.
"""

import re

from sglang_telemetry.assets.error import AssetError

_UNITS = {
    "y": 365 * 86_400_000,
    "w": 7 * 86_400_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
_SHOWN = ("d", "h", "m", "s", "ms")
_DURATION = r"(?:\d+(?:ms|[ywdhms]))+"
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
LITERAL = re.compile(rf"(?<![\w.%:$])(?:{_DURATION}|{_NUMBER})(?![\w.])")
"""A number or duration that is no part of a name or of a format."""
_ORDERED = re.compile("".join(rf"(?:\d+{unit})?" for unit in _UNITS))
LONGEST = _UNITS["y"]


def is_duration(literal: str) -> bool:
    """Has this literal a unit?"""
    return re.fullmatch(_DURATION, literal) is not None


def milliseconds(literal: str) -> int:
    """Length of a duration; a bare number is seconds.

    Raises:
        AssetError: It is neither, or of no use as a duration.
    """
    if re.fullmatch(_NUMBER, literal, re.ASCII):
        length = float(literal) * 1000
        if length > LONGEST or length != round(length):
            raise AssetError(f"{literal!r} is no duration: write whole milliseconds of at most a year")
        return int(length)
    # Prometheus wants the units from the largest to the smallest, each once.
    if not literal or not _ORDERED.fullmatch(literal) or not literal.isascii():
        raise AssetError(f"{literal!r} is no duration: write 900, 900s, 15m, 1h30m or 2d")
    total = sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)(ms|[ywdhms])", literal))
    if total > LONGEST:
        raise AssetError(f"{literal!r} is no duration: it is longer than a year")
    return total


def as_duration(length: int) -> str:
    """Milliseconds with units: ``1h30m``."""
    parts = []
    for unit in _SHOWN:
        count, length = divmod(length, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def as_seconds(length: int) -> str:
    """Milliseconds as a bare number of seconds."""
    return str(length // 1000) if length % 1000 == 0 else f"{length / 1000:.3f}".rstrip("0")


def number(literal: str) -> str:
    """A plain number, as it was written.

    Raises:
        AssetError: It is none, or none that PromQL and a float can hold.
    """
    if not re.fullmatch(_NUMBER, literal, re.ASCII) or len(literal) > 40 or float(literal) == float("inf"):
        raise AssetError(f"{literal!r} is no number: write one such as 0.8, 5 or 1e9")
    return literal
