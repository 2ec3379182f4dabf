"""Panels of lines, bars and stacked surfaces over time.

The one decision: series with the same unit and bounds share an axis; the first one is left, further ones right.
"""

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from tests.dashboards.preview.annotate import Mark, draw_marks
from tests.dashboards.preview.ask import Answered
from tests.dashboards.preview.axes import Side, with_axes, x_of
from tests.dashboards.preview.canvas import Area, Canvas
from tests.dashboards.preview.config import Extent, colour_of, extent, thresholds
from tests.dashboards.preview.frames import Field
from tests.dashboards.preview.legend import Entry, with_legend
from tests.dashboards.preview.reduce import LABELS, reduced
from tests.dashboards.preview.scale import Scale
from tests.dashboards.preview.units import formatted

NAN = math.nan


class Series(NamedTuple):
    """A field with its times, and where it stands when it is stacked on others."""

    times: list[float]
    field: Field
    colour: str
    upper: list[float]
    lower: list[float] | None


def draw(canvas: Canvas, area: Area, content: Answered, marks: Sequence[Mark] = ()) -> bool:
    """Draw the panel, with the moments that annotations mark; False when there is nothing to draw."""
    series = _series(content)
    if not series:
        return False
    options = content.panel.get("options", {}).get("legend", {})
    calcs = tuple(options.get("calcs", []))
    shown = [one for one in series if not _hidden(one.field, "legend")]
    entries = [Entry(one.colour, one.field.title, _figures(one.field, calcs, content.window.end)) for one in shown]
    chart = with_legend(canvas, area, entries, options, tuple(LABELS.get(calc, calc) for calc in calcs))
    series = [one for one in series if not _hidden(one.field, "viz")]
    keys = list(dict.fromkeys(_axis(one.field) for one in series))
    sides = []
    for index, key in enumerate(keys):
        own = [one for one in series if _axis(one.field) == key]
        values = [value for one in own for value in (*one.upper, *(one.lower or ())) if not math.isnan(value)]
        values += [0.0] if any(one.field.custom.get("drawStyle") == "bars" for one in own) else []
        placement = own[0].field.custom.get("axisPlacement", "auto")
        sides.append(Side(values, own[0].field.config, placement == "right" or (placement == "auto" and index > 0)))
    inner, scales = with_axes(canvas, chart, content.window, sides)
    by_key = dict(zip(keys, scales, strict=True))
    for key, side in zip(keys, sides, strict=True):
        _thresholds(canvas, inner, by_key[key], side.config)
    for one in series:
        _one(canvas, inner, one, by_key[_axis(one.field)], content)
    draw_marks(canvas, inner, content.window, marks)
    return True


def _series(content: Answered) -> list[Series]:
    found: list[Series] = []
    stacked: dict[str, list[float]] = {}
    pairs = [(frame, field) for frame in content.frames for field in frame.of_kind("number")]
    pairs = [(frame, field) for frame, field in pairs if any(value is not None for value in field.values)]
    totals = _totals([field for _, field in pairs])
    for index, (frame, field) in enumerate(pairs):
        times = frame.of_kind("time")
        if not times:
            continue
        of: Extent | None = extent(field.config, field.values)
        last = reduced(field.values, field.config.get("color", {}).get("seriesBy", "lastNotNull"))
        colour = colour_of(last, field.config, index=index, of=of, mode="palette-classic")
        values = [NAN if value is None else float(value) for value in field.values]
        lower = None
        stacking = field.custom.get("stacking", {})
        if stacking.get("mode") in ("normal", "percent"):
            group = str(stacking.get("group", "A"))
            lower = stacked.get(group, [0.0] * len(values))
            values = [0.0 if math.isnan(value) else value for value in values]
            if stacking["mode"] == "percent":
                values = [value / total if total else 0.0 for value, total in zip(values, totals, strict=True)]
            values = [value + below for value, below in zip(values, lower, strict=True)]
            stacked[group] = values
        found.append(Series(times[0].values, field, colour, values, lower))
    return found


def _totals(fields: Sequence[Field]) -> list[float]:
    length = max((len(field.values) for field in fields), default=0)
    return [sum(field.values[row] or 0.0 for field in fields if row < len(field.values)) for row in range(length)]


def _one(canvas: Canvas, inner: Area, series: Series, scale: Scale, content: Answered) -> None:
    custom, config = series.field.custom, series.field.config
    opacity = float(custom.get("fillOpacity", 0)) / 100
    width = float(custom.get("lineWidth", 1))
    xs = [x_of(when, inner, content.window) for when in series.times]
    base_value = min(max(0.0, scale.least), scale.most)
    ys = [scale.y(value) for value in series.upper]
    base = [scale.y(value) for value in series.lower] if series.lower else [scale.y(base_value)] * len(xs)
    if custom.get("drawStyle") == "bars":
        wide = max(1.0, content.step / (content.window.end - content.window.start) * inner.w * 0.8)
        of = extent(config, series.field.values)
        for x, y, low, value in zip(xs, ys, base, series.upper, strict=True):
            if not math.isnan(value) and abs(low - y) > 0.1:
                fill = series.colour
                if config.get("color", {}).get("mode") == "thresholds":
                    fill = colour_of(value, config, of=of)
                bar = Area(x - wide / 2, min(y, low), wide, abs(low - y))
                canvas.box(bar, fill, opacity=max(opacity, 0.25), clip=inner)
                if width:
                    canvas.line([bar.x, bar.right], [y, y], fill, width=width, clip=inner)
        return
    span = custom.get("spanNulls", False)
    points = list(zip(series.times, xs, ys, base, strict=True))
    if span:
        points = _spanned(points, span)
    for there, run in groupby(points, key=lambda point: not math.isnan(point[2])):
        if not there:
            continue
        part = _stepped(list(run), custom.get("lineInterpolation", "linear"))
        px, py, pb = [one[1] for one in part], [one[2] for one in part], [one[3] for one in part]
        if opacity and len(part) > 1:
            canvas.fill(px, py, pb, series.colour, opacity=opacity, clip=inner)
        dashed = custom.get("lineStyle", {}).get("fill") in ("dash", "dot")
        draws_points = len(part) == 1 or custom.get("drawStyle") == "points" or custom.get("showPoints") == "always"
        if custom.get("drawStyle") != "points":
            canvas.line(px, py, series.colour, width=width, dashed=dashed, clip=inner)
        if draws_points and custom.get("showPoints") != "never":
            canvas.line(px, py, series.colour, width=0, marker=float(custom.get("pointSize", 5)), clip=inner)


def _spanned(points: list[Any], span: object) -> list[Any]:
    there = [point for point in points if not math.isnan(point[2])]
    if span is True:
        return there
    kept: list[Any] = []
    for point in there:
        # A number is the longest gap, in milliseconds, that is drawn through.
        if kept and (point[0] - kept[-1][0]) * 1000 > float(str(span)):
            kept.append((point[0], point[1], NAN, point[3]))
        kept.append(point)
    return kept


def _stepped(points: list[Any], how: str) -> list[Any]:
    if how not in ("stepAfter", "stepBefore"):
        return points
    found = points[:1]
    for before, after in pairwise(points):
        corner = (after[1], before[2], before[3]) if how == "stepAfter" else (before[1], after[2], after[3])
        found += [(after[0], *corner), after]
    return found


def _thresholds(canvas: Canvas, inner: Area, scale: Scale, config: Any) -> None:
    mode = config.get("custom", {}).get("thresholdsStyle", {}).get("mode", "off")
    if mode == "off":
        return
    steps = thresholds(config, Extent(scale.least, scale.most))
    for index, (start, fill) in enumerate(steps):
        low = scale.least if start is None else max(start, scale.least)
        following = steps[index + 1][0] if index + 1 < len(steps) else None
        high = scale.most if following is None else min(following, scale.most)
        if "area" in mode and high > low and fill != "transparent":
            canvas.box(Area(inner.x, scale.y(high), inner.w, scale.y(low) - scale.y(high)), fill, opacity=0.1)
        if ("line" in mode or "dashed" in mode) and start is not None and scale.least <= start <= scale.most:
            canvas.line([inner.x, inner.right], [scale.y(start)] * 2, fill, width=1.5, dashed="dashed" in mode)


def _figures(field: Field, calcs: Sequence[str], now: float) -> tuple[str, ...]:
    config = field.config
    figures = (reduced(field.values, calc) for calc in calcs)
    return tuple(formatted(figure, config.get("unit"), config.get("decimals"), now=now) for figure in figures)


def _axis(field: Field) -> tuple[Any, ...]:
    config, custom = field.config, field.custom
    placement = custom.get("axisPlacement", "auto")
    return config.get("unit"), config.get("min"), config.get("max"), placement, custom.get("axisLabel")


def _hidden(field: Field, where: str) -> bool:
    return bool(field.custom.get("hideFrom", {}).get(where))
