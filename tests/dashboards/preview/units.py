"""Numbers as Grafana writes them: its units, its decimals.

The one decision: the rules are those of Grafana's value formats, odd ones included ("short" says Mil, a duration
without decimals has one unit only), since an unsuitable unit is what a preview has to show.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P", "E")
_SHORT: Final = ("", " K", " Mil", " Bil", " Tri", " Quadr")
_COUNT: Final = ("", "K", "M", "B", "T")
_SECONDS: Final = (
    (1e-6, 1e-9, " ns"),
    (1e-3, 1e-6, " µs"),
    (1.0, 1e-3, " ms"),
    (60.0, 1.0, " s"),
    (3600.0, 60.0, " min"),
    (86400.0, 3600.0, " hour"),
    (604800.0, 86400.0, " day"),
    (31536000.0, 604800.0, " week"),
)
_DURATION: Final = (
    ("year", 31536000.0), ("month", 2628000.0), ("week", 604800.0), ("day", 86400.0), ("hour", 3600.0),
    ("minute", 60.0), ("second", 1.0), ("millisecond", 0.001),
)  # fmt: skip
_BYTES: Final = {"bytes": ("B", 1024), "binBps": ("B/s", 1024), "decbytes": ("B", 1000), "Bps": ("B/s", 1000)}
_BITS: Final = {"bits": ("b", 1024), "decbits": ("b", 1000), "bps": ("b/s", 1000), "binbps": ("b/s", 1024)}
_COUNTS: Final = {
    "reqps": "req/s", "ops": "ops/s", "cps": "c/s", "rps": "rd/s", "wps": "wr/s", "iops": "io/s",
    "reqpm": "req/m", "opm": "ops/m", "cpm": "c/m",
}  # fmt: skip


def decimals_of(value: float) -> int:
    """How many decimals Grafana gives a number when nobody says it."""
    if value == 0 or not math.isfinite(value) or value == int(value):
        return 0
    return max(0, 2 - math.floor(math.log10(abs(value))))


def fixed(value: float, decimals: int | None = None) -> str:
    """A bare number with so many decimals."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if math.isnan(value):
        return "NaN"
    digits = decimals_of(value) if decimals is None else max(0, decimals)
    return f"{math.floor(abs(value) * 10**digits + 0.5) / 10**digits * math.copysign(1, value):.{digits}f}"


def formatted(value: float | None, unit: str | None = None, decimals: int | None = None, *, now: float = 0.0) -> str:
    """A number in a unit.

    Args:
        value: None gives no text.
        unit: Grafana's id of it; one that is not known stands behind the number, as in Grafana.
        decimals: As configured; None leaves it to the number.
        now: Unix time that dates are relative to.
    """
    if value is None:
        return ""
    if math.isnan(value):
        return "NaN"
    if unit in _BYTES or unit in _BITS:
        name, factor = (_BYTES | _BITS)[unit]
        steps = [f" {prefix}{name}" for prefix in (_BINARY if factor == 1024 else _DECIMAL)]
        return _scaled(value, factor, steps, decimals)
    if unit in _COUNTS:
        return _scaled(value, 1000, [f"{prefix} {_COUNTS[unit]}" for prefix in _COUNT], decimals)
    match unit:
        case None | "" | "none" | "string":
            return fixed(value, decimals)
        case "short":
            return _scaled(value, 1000, _SHORT, decimals)
        case "sishort":
            return _scaled(value, 1000, ["", *(f" {prefix}" for prefix in _DECIMAL[1:])], decimals)
        case "percent":
            return f"{fixed(value, decimals)}%"
        case "percentunit":
            return f"{fixed(value * 100, decimals)}%"
        case "s":
            return _seconds(value, decimals)
        case "ms":
            return _seconds(value / 1000, decimals)
        case "dtdurations":
            return _duration(value, decimals)
        case "dtdurationms":
            return _duration(value / 1000, decimals)
        case "dthms" | "clocks":
            whole = round(value)
            return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
        case "dateTimeFromNow":
            return from_now(value / 1000, now)
        case "dateTimeAsIso" | "dateTimeAsSystem" | "dateTimeAsIsoNoDateIfToday":
            moment = datetime.fromtimestamp(value / 1000, UTC)
            today = unit.endswith("IfToday") and moment.date() == datetime.fromtimestamp(now, UTC).date()
            return f"{moment:%H:%M:%S}" if today else f"{moment:%Y-%m-%d %H:%M:%S}"
        case "bool":
            return "True" if value else "False"
        case "bool_yes_no":
            return "Yes" if value else "No"
        case "bool_on_off":
            return "On" if value else "Off"
        case _ if unit.startswith("prefix:"):
            return f"{unit[7:]}{fixed(value, decimals)}"
        case _:
            return f"{fixed(value, decimals)} {unit.removeprefix('suffix:').strip()}"


def from_now(when: float, now: float) -> str:
    """How long ago something was, in the words of moment.js."""
    seconds = abs(now - when)
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    for below, amount, one, many in (
        (round(seconds) < 45, 0.0, "a few seconds", ""),
        (round(minutes) < 45, minutes, "a minute", "minutes"),
        (round(hours) < 22, hours, "an hour", "hours"),
        (round(days) < 26, days, "a day", "days"),
        (round(days / 30.4) < 11, days / 30.4, "a month", "months"),
        (True, days / 365, "a year", "years"),
    ):
        if below:
            words = one if round(amount) <= 1 else f"{round(amount)} {many}"
            return f"in {words}" if when > now else f"{words} ago"
    raise AssertionError("the last one is always so")


def _seconds(value: float, decimals: int | None) -> str:
    if value == 0:
        return "0 s"
    for below, size, suffix in _SECONDS:
        if abs(value) < below:
            return fixed(value / size, decimals) + suffix
    return fixed(value / 31536000.0, decimals) + " year"


def _duration(value: float, decimals: int | None) -> str:
    if value == 0:
        return "0 seconds"
    if value < 0:
        return f"{_duration(-value, decimals)} ago"
    words: list[str] = []
    left, more = value, decimals or 0
    for name, size in _DURATION:
        # A remainder that is nothing but a rounding error of floats makes no millisecond less.
        count = math.floor(left / size + 1e-9)
        if (count >= 1 or words) and more >= 0:
            words.append(f"{count} {name}{'' if count == 1 else 's'}")
            left, more = max(0.0, left - count * size), more - 1
    return ", ".join(words)


def _scaled(value: float, factor: int, suffixes: Sequence[str], decimals: int | None) -> str:
    step = 0
    while abs(value) >= factor and step < len(suffixes) - 1 and math.isfinite(value):
        value, step = value / factor, step + 1
    return fixed(value, decimals) + suffixes[step]
