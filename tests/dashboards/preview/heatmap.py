"""Panels of buckets over time, each cell coloured by how much is in it.

The one decision: buckets have equal heights. An upper bound stands at its bucket's upper edge, where the layout says
that names are such; another name stands beside its row.
"""

import math

from tests.dashboards.preview import colours
from tests.dashboards.preview.ask import Answered
from tests.dashboards.preview.axes import time_axis, x_of
from tests.dashboards.preview.canvas import Area, Canvas, width_of
from tests.dashboards.preview.config import Extent
from tests.dashboards.preview.interpolate import Json
from tests.dashboards.preview.units import formatted


def draw(canvas: Canvas, area: Area, content: Answered) -> bool:
    """Draw the panel; False when there is nothing to draw."""
    buckets = [(frame.fields[0].values, frame.fields[1]) for frame in content.frames if len(frame.fields) == 2]
    options: Json = content.panel.get("options", {})
    hidden = options.get("filterValues", {}).get("le", 1e-9)
    counts = [value for _, field in buckets for value in field.values if value is not None and value > hidden]
    if not counts:
        return False
    axis, how = options.get("yAxis", {}), options.get("color", {})
    unit = axis.get("unit") or content.panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
    names = [_bound(field.title, unit, axis.get("decimals")) for _, field in buckets]
    legend = options.get("legend", {}).get("show", True)
    left = min(max(width_of(name, 12) for name in names) + 14, area.w * 0.35)
    inner = area.inset(left, 8, 10, 54 if legend else 22)
    least, most = how.get("min"), how.get("max")
    of = Extent(min(counts) if least is None else float(least), max(counts) if most is None else float(most))
    height = inner.h / len(buckets)
    wide = content.step / (content.window.end - content.window.start) * inner.w
    time_axis(canvas, inner, content.window, grid=False)
    bounds = options.get("rowsFrame", {}).get("layout") == "le" or all(
        target.get("format") == "heatmap" for target in content.panel["targets"]
    )
    for row, ((times, field), name) in enumerate(zip(buckets, names, strict=True)):
        top = inner.bottom - (row + 1) * height
        if row % math.ceil(14 / height) == 0:
            y = top if bounds else top + height / 2
            canvas.text(inner.x - 8, y, name, size=12, align="right", room=left - 10)
        for when, value in zip(times, field.values, strict=True):
            if value is not None and value > hidden:
                # Prometheus answers what happened up to a time, so the cell ends there.
                x = x_of(when, inner, content.window) - wide
                cell = Area(x, top + 0.5, max(wide - 1, 1), height - 1)
                canvas.box(cell, _colour(of.share(value), how), clip=inner)
    if legend:
        place = Area(inner.x, area.bottom - 24, min(200, inner.w / 2), 8)
        _scale(canvas, place, how, of, options.get("cellValues", {}).get("unit"))
    return True


def _bound(name: str, unit: str | None, decimals: int | None) -> str:
    try:
        bound = float(name)
    except ValueError:
        return name
    return "+Inf" if math.isinf(bound) else formatted(bound, unit, decimals)


def _colour(share: float, how: Json) -> str:
    if how.get("mode") == "opacity":
        share = share ** float(how.get("exponent", 0.5))
        return colours.mixed(colours.PANEL, colours.colour(how.get("fill", "dark-orange")), 0.1 + 0.9 * share)
    steps = max(int(how.get("steps", 64)), 2)
    share = min(math.floor(share * steps), steps - 1) / (steps - 1)
    # On a dark theme Grafana turns most schemes, so that they run from dark to light; `reverse` turns them once more.
    scheme = str(how.get("scheme", "Oranges"))
    turned = (scheme not in ("Turbo", "Viridis")) != bool(how.get("reverse"))
    return colours.along(scheme, 1 - share if turned else share)


def _scale(canvas: Canvas, area: Area, how: Json, of: Extent, unit: str | None) -> None:
    parts = 40
    for part in range(parts):
        cell = Area(area.x + area.w * part / parts, area.y, area.w / parts + 1, area.h)
        canvas.box(cell, _colour(part / (parts - 1), how))
    canvas.text(area.x, area.bottom + 9, formatted(of.least, unit), size=12)
    canvas.text(area.right, area.bottom + 9, formatted(of.most, unit), size=12, align="right")
