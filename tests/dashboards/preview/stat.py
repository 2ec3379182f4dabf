"""Panels of large numbers, and horizontal bars: one value for each field, or one for each row.

The one decision: with no answer at all Grafana draws one value with the text for "nothing" in the colour of the lowest
threshold, and so does this. A panel that is green for nothing has to be seen.
"""

import math
from typing import NamedTuple

from tests.dashboards.preview import colours
from tests.dashboards.preview.ask import Answered
from tests.dashboards.preview.canvas import Area, Canvas, width_of
from tests.dashboards.preview.config import Extent, Shown, extent, show
from tests.dashboards.preview.frames import Field, Frame
from tests.dashboards.preview.interpolate import Json
from tests.dashboards.preview.reduce import reduced
from tests.dashboards.preview.transform import taken

_GAP = 5.0


class Value(NamedTuple):
    """One number of the panel."""

    name: str
    shown: Shown
    value: float | None
    of: Extent
    config: Json
    trend: list[float | None]


def values_of(content: Answered) -> list[Value]:
    """The numbers of a stat or bar gauge, at least one."""
    options: Json = content.panel.get("options", {}).get("reduceOptions", {})
    wanted = options.get("fields", "")
    fields = [
        (frame, field)
        for frame in content.frames
        for field in frame.fields
        if (field.kind == "number" if not wanted else _wanted(field, wanted))
    ]
    numbers = [value for _, field in fields if field.kind == "number" for value in field.values]
    found: list[Value] = []
    for index, (frame, field) in enumerate(fields):
        of = extent(field.config, numbers)
        if options.get("values"):
            for row in range(min(frame.rows, int(options.get("limit") or 25))):
                shown = show(field.values[row], field.config, now=content.window.end, index=len(found), of=of)
                value = field.values[row] if field.kind == "number" else None
                found.append(
                    Value(_row_name(frame, field, row), _nothing(shown, field.config), value, of, field.config, [])
                )
            continue
        figure = reduced(field.values, (options.get("calcs") or ["lastNotNull"])[0])
        if isinstance(figure, float) and field.kind == "time":
            figure *= 1000
        shown = show(figure, field.config, now=content.window.end, index=index, of=of)
        number = figure if field.kind == "number" else None
        found.append(Value(field.title, _nothing(shown, field.config), number, of, field.config, field.values))
    if found:
        return found
    config: Json = content.panel.get("fieldConfig", {}).get("defaults", {})
    return [Value("", _nothing(show(None, config, now=content.window.end), config), None, Extent(), config, [])]


def draw(canvas: Canvas, area: Area, content: Answered) -> bool:
    """Draw the panel."""
    options: Json = content.panel.get("options", {})
    values = values_of(content)
    for value, cell in zip(values, _cells(area, len(values), options.get("orientation", "auto")), strict=False):
        _cell(canvas, cell, value, options, many=len(values) > 1)
    return True


def _wanted(field: Field, wanted: str) -> bool:
    if wanted.startswith("/"):
        return wanted in ("/.*/", "/.*/i") or wanted.strip("/").strip("^$") == field.title
    return field.title == wanted


def _nothing(shown: Shown, config: Json) -> Shown:
    return shown if shown.text else shown._replace(text=str(config.get("noValue") or "No data"))


def _row_name(frame: Frame, field: Field, row: int) -> str:
    if field.config.get("displayName"):
        return field.title
    one = taken(frame, [row])
    texts = [str(other.values[0]) for other in one.of_kind("string") if other.name != field.name and other.values[0]]
    if not texts or len(one.of_kind("number")) > 1:
        texts.append(field.title)
    return " ".join(texts)


def _cells(area: Area, count: int, orientation: str) -> list[Area]:
    if orientation == "horizontal":
        columns, rows = 1, count
    elif orientation == "vertical":
        columns, rows = count, 1
    else:  # the grid whose cells are the least narrow
        shapes = [(columns, math.ceil(count / columns)) for columns in range(1, count + 1)]
        columns, rows = max(shapes, key=lambda shape: min(area.w / shape[0] / 2.6, area.h / shape[1]))
    width, height = (area.w + _GAP) / columns, (area.h + _GAP) / rows
    return [
        Area(area.x + index % columns * width, area.y + index // columns * height, width - _GAP, height - _GAP)
        for index in range(count)
    ]


def _cell(canvas: Canvas, area: Area, value: Value, options: Json, *, many: bool) -> None:
    mode, text_mode = options.get("colorMode", "value"), options.get("textMode", "auto")
    fill, name_fill = value.shown.colour, colours.TEXT
    if mode.startswith("background"):
        canvas.box(area, fill, radius=3)
        fill = name_fill = colours.on(fill)
    elif mode == "none":
        fill = colours.TEXT
    name = value.name if text_mode in ("value_and_name", "name") or (text_mode == "auto" and many) else ""
    text = "" if text_mode in ("name", "none") else value.shown.text
    if options.get("graphMode") == "area":
        _trend(canvas, area, value, value.shown.colour if not mode.startswith("background") else fill)
    inner = area.inset(8, 4, 8, 4)
    wide = options.get("wideLayout", True) and area.w > area.h * 2.5 and bool(name and text)
    sizes = options.get("text") or {}
    x, y = inner.middle
    if wide:
        size = _fitting(text, inner.w * 0.5, inner.h * 0.7, sizes.get("valueSize"))
        small = _fitting(
            name, inner.w - width_of(text, size, "medium") - 12, min(inner.h * 0.5, 20), sizes.get("titleSize")
        )
        canvas.text(inner.x, y, name, size=small, fill=name_fill, room=inner.w - width_of(text, size) - 8)
        canvas.text(inner.right, y, text, size=size, fill=fill, align="right", weight="medium")
        return
    if not (name and text):
        size = _fitting(name or text, inner.w, inner.h * 0.8, sizes.get("valueSize"))
        canvas.text(x, y, name or text, size=size, fill=fill, align="center", weight="medium", room=inner.w)
        return
    small = _fitting(name, inner.w, min(inner.h * 0.3, 20), sizes.get("titleSize"))
    size = _fitting(text, inner.w, inner.h - small * 1.6, sizes.get("valueSize"))
    top = y - (small * 1.4 + size * 1.1) / 2
    canvas.text(x, top + small * 0.7, name, size=small, fill=name_fill, align="center", room=inner.w)
    canvas.text(
        x, top + small * 1.4 + size * 0.55, text, size=size, fill=fill, align="center", weight="medium", room=inner.w
    )


def _fitting(text: str, width: float, height: float, configured: float | None) -> float:
    if configured:
        return float(configured)
    size = min(height / 1.1, 60.0)
    needed = width_of(text, 100) / 100
    # A little less than what fits: letters are not exactly as wide at each size.
    return max(11.0, min(size, 0.95 * width / needed if needed else size))


def _trend(canvas: Canvas, area: Area, value: Value, fill: str) -> None:
    points = [(index, one) for index, one in enumerate(value.trend) if one is not None]
    if len(points) < 2:
        return
    low, high = min(one for _, one in points), max(one for _, one in points)
    spread = (high - low) or 1.0
    xs = [area.x + index / (len(value.trend) - 1) * area.w for index, _ in points]
    ys = [area.bottom - 2 - (one - low) / spread * area.h * 0.4 for _, one in points]
    canvas.fill(xs, ys, [area.bottom] * len(xs), fill, opacity=0.15, clip=area)
    canvas.line(xs, ys, fill, width=1, clip=area)
