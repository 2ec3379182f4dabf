"""Answers of Prometheus as frames of fields, the form in which Grafana's panels see data.

The one decision: a range answer gets a value for each step, None where there was none, so that gaps are gaps.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from tests.dashboards.preview.interpolate import Json

Kind = Literal["time", "number", "string"]


@dataclass
class Field:
    """A column of a frame. Times are Unix times; a number that is missing is None."""

    name: str
    kind: Kind
    values: list[Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    legend: str | None = None
    """The name that the query's ``legendFormat`` gives."""
    renamed: str | None = None
    """The name that a transformation gave."""
    config: Json = field(default_factory=dict)
    """Its ``fieldConfig``, overrides applied."""

    @property
    def title(self) -> str:
        """The name that people see."""
        given = self.config.get("displayName")
        if given:
            return self._put_in(str(given))
        return self.renamed or self.legend or self.name

    @property
    def custom(self) -> Json:
        """The part of its configuration that is the panel kind's own."""
        found: Json = self.config.get("custom", {})
        return found

    def taken(self, rows: Sequence[int]) -> Self:
        """The field with some rows only, in that order."""
        return replace(self, values=[self.values[row] for row in rows])

    def _put_in(self, text: str) -> str:
        own = self.renamed or self.legend or self.name
        text = re.sub(r"\$\{__field\.labels(?:\.(\w+)|\[\"?(\w+)\"?\])\}", self._label, text)
        return re.sub(r"\$\{__(?:field\.(?:displayName|name)|series\.name)\}", lambda _: own, text)

    def _label(self, match: re.Match[str]) -> str:
        return self.labels.get(match[1] or match[2], "")


@dataclass
class Frame:
    """Columns of the same length, from one query or made of several."""

    ref: str
    fields: list[Field]

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return len(self.fields[0].values) if self.fields else 0

    def named(self, name: str) -> Field | None:
        """The field that has this name, for people or by itself."""
        return next((one for one in self.fields if name in (one.title, one.name)), None)

    def of_kind(self, *kinds: Kind) -> list[Field]:
        """Its fields of some kinds."""
        return [one for one in self.fields if one.kind in kinds]


def number(text: object) -> float | None:
    """A sample's value; NaN counts as missing, as Grafana draws it."""
    value = float(str(text))
    return None if math.isnan(value) else value


def series_frames(ref: str, legend: str, result: Sequence[Json], times: Sequence[float]) -> list[Frame]:
    """A frame of time and value for each series, over the times that were asked for.

    Args:
        ref: The query's ``refId``.
        legend: Its ``legendFormat``.
        result: Of the query, instant or range.
        times: The steps; one for an instant query.
    """
    varying = _varying([series["metric"] for series in result])
    frames = []
    for series in result:
        points = series["values"] if "values" in series else [series["value"]]
        at = {round(float(when), 3): number(value) for when, value in points}
        labels: dict[str, str] = series["metric"]
        values = [at.get(round(when, 3)) for when in times]
        value = Field("Value", "number", values, labels, legend=legend_of(legend, labels, varying))
        frames.append(Frame(ref, [Field("Time", "time", list(times)), value]))
    return frames


def legend_of(form: str, labels: Mapping[str, str], varying: Sequence[str] | None = None) -> str:
    """The name of a series by a ``legendFormat``; without one it is what tells it from the others."""
    if form and form != "__auto":
        return re.sub(r"\{\{\s*(.+?)\s*\}\}", lambda match: labels.get(match[1], match[0]), form)
    if varying is not None and len(varying) == 1:
        return labels.get(varying[0], "")
    inner = ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if name != "__name__")
    return labels.get("__name__", "") + (f"{{{inner}}}" if inner else "") or "Value"


def table_frame(ref: str, result: Sequence[Json], at: float, *, alone: bool) -> Frame:
    """One frame with a column for each label, as the format "table" gives it.

    Args:
        ref: The query's ``refId``.
        result: Of an instant query, or of a range query, whose points then stand below each other.
        at: The time of an instant query.
        alone: Is it the panel's only table? Then its value is called ``Value``, else ``Value #A``.
    """
    rows = [
        (float(when), series["metric"], number(value))
        for series in result
        for when, value in (series["values"] if "values" in series else [series.get("value", (at, "NaN"))])
    ]
    names = sorted({name for _, labels, _ in rows for name in labels})
    columns = [Field("Time", "time", [when for when, _, _ in rows])]
    columns += [Field(name, "string", [labels.get(name, "") for _, labels, _ in rows]) for name in names]
    columns.append(Field("Value" if alone else f"Value #{ref}", "number", [value for _, _, value in rows]))
    return Frame(ref, columns if rows else [])


def bucket_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Series of a cumulative histogram as what is in each bucket, the lowest first, each named by its upper bound."""
    by_bound = sorted(frames, key=lambda frame: float(frame.fields[1].labels.get("le", "inf")))
    buckets: list[Frame] = []
    below: list[float | None] = []
    for frame in by_bound:
        time, value = frame.fields
        own = [
            None if one is None else max(0.0, one - (before or 0.0))
            for one, before in zip(value.values, below or [None] * len(value.values), strict=True)
        ]
        below = value.values
        name = value.labels.get("le", value.legend or "")
        buckets.append(Frame(frame.ref, [time, replace(value, name=name, values=own, legend=name)]))
    return buckets


def _varying(metrics: Sequence[Mapping[str, str]]) -> list[str]:
    names = sorted({name for labels in metrics for name in labels} - {"__name__"})
    return [name for name in names if len({labels.get(name) for labels in metrics}) > 1 or len(metrics) == 1]
