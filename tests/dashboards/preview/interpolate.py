"""Template variables of Grafana in queries and titles, put in as Grafana's Prometheus data source puts them in.

The one decision: what Grafana would leave standing (an unknown variable) or spoil (``${x:regex}`` escapes with single
backslashes, which PromQL's strings refuse) is left standing and spoilt here too, so that Prometheus says so.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

Json: TypeAlias = dict[str, Any]


class All(Enum):
    """The choice "All" of a variable."""

    ALL = "$__all"


ALL: Final = All.ALL
Chosen: TypeAlias = Mapping[str, Sequence[str] | All]
"""What is chosen of each variable, by its name."""

SCRAPE: Final = 15.0
"""Scrape interval of the data source in seconds, Grafana's own default."""
# Below the first number of milliseconds, the second one is taken; as `roundInterval` of @grafana/data.
_ROUNDED: Final = (
    (10, 1), (15, 10), (35, 20), (75, 50), (150, 100), (350, 200), (750, 500), (1500, 1000), (3500, 2000),
    (7500, 5000), (12500, 10000), (17500, 15000), (25000, 20000), (45000, 30000), (90000, 60000), (210000, 120000),
    (450000, 300000), (750000, 600000), (1050000, 900000), (1500000, 1200000), (2700000, 1800000),
    (5400000, 3600000), (9000000, 7200000), (16200000, 10800000), (32400000, 21600000), (86400000, 43200000),
    (604800000, 86400000), (1814400000, 604800000), (3628800000, 2592000000),
)  # fmt: skip
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}
_MOST_POINTS: Final = 11000  # more of a series Prometheus does not answer
_VARIABLE: Final = re.compile(r"\$(\w+)|\$\{(\w+)(?:\.[^:}]*)?(?::([^}]+))?\}")


def seconds_of(duration: str) -> float:
    """Seconds of a duration as Grafana writes them, ``1m`` or ``>30s``.

    Raises:
        ValueError: It is none.
    """
    found = re.fullmatch(r">?\s*(\d+(?:\.\d+)?)(ms|[smhdwy])?", duration.strip())
    if found is None:
        raise ValueError(f"no duration: {duration!r}")
    return float(found[1]) * _SECONDS[found[2] or "s"]


def duration_of(seconds: float) -> str:
    """A duration as PromQL takes it, in the largest unit that gives a whole number."""
    milliseconds = round(seconds * 1000)
    for unit in ("d", "h", "m", "s"):
        size = round(_SECONDS[unit] * 1000)
        if milliseconds >= size and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def interval(start: float, end: float, width_px: float, least: str | None = None, *, scrape: float = SCRAPE) -> float:
    """Seconds of ``$__interval``: range through width, rounded as Grafana does it, and no less than allowed.

    Args:
        start: Of the time range.
        end: Of the time range.
        width_px: Width of the panel, or its ``maxDataPoints``.
        least: The panel's or query's min step; without one it is the scrape interval.
        scrape: Scrape interval of the data source.
    """
    milliseconds = (end - start) * 1000 / max(width_px, 1)
    rounded = next((size for below, size in _ROUNDED if milliseconds < below), 31536000000) / 1000
    return max(rounded, seconds_of(least) if least else scrape, (end - start) / _MOST_POINTS)


def rate_interval(step: float, *, scrape: float = SCRAPE) -> float:
    """Seconds of ``$__rate_interval``: wide enough for a rate to have two points in it."""
    return max(step + scrape, 4 * scrape)


def variables_of(dashboard: Json) -> list[Json]:
    """The template variables that a dashboard declares."""
    return list(dashboard.get("templating", {}).get("list", []))


def interpolated(
    text: str,
    dashboard: Json,
    chosen: Chosen,
    start: float,
    end: float,
    *,
    step: float,
    scrape_interval: float = SCRAPE,
) -> str:
    """A query with a value in the place of each variable.

    Args:
        text: The query as it stands in the dashboard.
        dashboard: Whose variables they are; what is not chosen has the value that the dashboard was saved with.
        chosen: Values by the variable's name.
        start: Unix time of the range's begin.
        end: Unix time of the range's end.
        step: Seconds of ``$__interval``, see :func:`interval`.
        scrape_interval: Of the data source.

    Raises:
        ValueError: "All" is chosen of a variable that says neither its values nor what "All" stands for.
    """
    declared = {variable["name"]: variable for variable in variables_of(dashboard)}
    built_in = _built_in(start, end, step, scrape_interval)

    def put_in(match: re.Match[str]) -> str:
        name, form = match[1] or match[2], match[3]
        if name in ("__from", "__to") and form is not None:
            return str(int(start if name == "__from" else end)) if form == "date:seconds" else match[0]
        if name in built_in:
            return built_in[name]
        values = _values(name, declared.get(name), chosen)
        if values is None:
            return match[0]
        # A custom text for "All" is put in as it is, whatever the form.
        return values if isinstance(values, str) else _formatted(values, declared.get(name), form)

    return _VARIABLE.sub(put_in, text)


def in_words(text: str, dashboard: Json, chosen: Chosen) -> str:
    """A title with what is chosen in the place of each variable, as Grafana shows it to people."""
    declared = {variable["name"]: variable for variable in variables_of(dashboard)}

    def put_in(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in chosen and name not in declared:
            return match[0]
        return choice_in_words(name, declared.get(name), chosen)

    return _VARIABLE.sub(put_in, text)


def choice_in_words(name: str, variable: Json | None, chosen: Chosen) -> str:
    """What is chosen of a variable, in words: "All", or the values with a plus between."""
    picked = _picked(name, variable, chosen)
    if picked is None:
        return ""
    return "All" if isinstance(picked, All) else " + ".join(picked)


def _built_in(start: float, end: float, step: float, scrape: float) -> dict[str, str]:
    length = end - start
    return {
        "__interval": duration_of(step),
        "__interval_ms": str(round(step * 1000)),
        "__rate_interval": duration_of(rate_interval(step, scrape=scrape)),
        "__rate_interval_ms": str(round(rate_interval(step, scrape=scrape) * 1000)),
        "__range": f"{round(length)}s",
        "__range_s": str(round(length)),
        "__range_ms": str(round(length * 1000)),
        "__from": str(round(start * 1000)),
        "__to": str(round(end * 1000)),
    }


def _picked(name: str, variable: Json | None, chosen: Chosen) -> Sequence[str] | All | None:
    if name in chosen:
        given = chosen[name]
        return [given] if isinstance(given, str) else given
    if variable is None:
        return None
    if variable.get("type") in ("constant", "textbox") and "current" not in variable:
        return [str(variable.get("query", ""))]
    value = variable.get("current", {}).get("value")
    if value is None:
        return None
    values = [str(one) for one in value] if isinstance(value, list) else [str(value)]
    return ALL if ALL.value in values else values


def _values(name: str, variable: Json | None, chosen: Chosen) -> Sequence[str] | str | None:
    """The values to put in, or the text that stands for all of them."""
    picked = _picked(name, variable, chosen)
    if not isinstance(picked, All):
        return picked
    if variable is not None and variable.get("allValue"):
        return str(variable["allValue"])
    options = [str(option["value"]) for option in (variable or {}).get("options", []) if option["value"] != ALL.value]
    if not options:
        raise ValueError(f"variable {name}: All is chosen, but it has neither an allValue nor options")
    return options


def _formatted(values: Sequence[str], variable: Json | None, form: str | None) -> str:
    many = variable is None or bool(variable.get("multi") or variable.get("includeAll"))
    match form:
        case "raw":
            return ",".join(values)
        case "csv":
            return ",".join(values)
        case "pipe":
            return "|".join(values)
        case "text":
            return " + ".join(values)
        case "doublequote":
            return ",".join('"' + value.replace('"', '\\"') + '"' for value in values)
        case "regex":
            return _either([re.sub(r"[\\^$*+?.()|\[\]{}/]", r"\\\g<0>", value) for value in values])
        case _ if not many:
            return values[0].replace("\\", "\\\\").replace("'", "\\\\'") if values else ""
        case _:
            # Twice: the first backslash is for PromQL's string, the second one for its regular expression.
            doubled = (value.replace("\\", "\\\\\\\\") for value in values)
            return _either([re.sub(r"[$^*{}\[\]+?.()|]", r"\\\\\g<0>", value) for value in doubled])


def _either(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"({'|'.join(values)})"
