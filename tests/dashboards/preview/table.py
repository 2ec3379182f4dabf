"""Panels of rows and columns.

The one decision: columns are as wide as Grafana makes them, so that text that is cut there is cut here.
"""

from collections.abc import Sequence
from typing import Any

from tests.dashboards.preview import colours
from tests.dashboards.preview.ask import Answered
from tests.dashboards.preview.canvas import Align, Area, Canvas
from tests.dashboards.preview.config import Shown, extent, show
from tests.dashboards.preview.frames import Field, Frame
from tests.dashboards.preview.interpolate import Json
from tests.dashboards.preview.transform import sorted_rows, taken
from tests.dashboards.preview.units import formatted

_ROW = {"sm": 36.0, "md": 42.0, "lg": 48.0}
_LEAST = 150.0


def draw(canvas: Canvas, area: Area, content: Answered) -> bool:
    """Draw the panel; False when there is nothing to draw."""
    frames = [frame for frame in content.frames if frame.rows]
    if not frames:
        return False
    options: Json = content.panel.get("options", {})
    frame = frames[0]  # of several, Grafana shows one and lets people choose
    for sort in options.get("sortBy", [])[:1]:
        by = frame.named(sort["displayName"])
        if by is not None:
            frame = taken(frame, sorted_rows(by, descending=bool(sort.get("desc"))))
    fields = [field for field in frame.fields if not _hidden(field)]
    widths = _widths(fields, area.w)
    height = _ROW[options.get("cellHeight") or "sm"]
    y = area.y
    if options.get("showHeader", True):
        x = area.x
        for field, width in zip(fields, widths, strict=True):
            _text(canvas, Area(x, y, width, 34), field, field.title, colours.LINK, weight="medium", within=area)
            x += width
        y += 34
        canvas.line([area.x, area.right], [y, y], colours.BORDER)
    bottom = area.bottom - (26 if len(frames) > 1 else 0)
    for row in range(frame.rows):
        if y >= bottom - 6:
            break  # Grafana scrolls here
        _row(canvas, Area(area.x, y, area.w, min(height, bottom - y)), frame, fields, widths, row, content.window.end)
        y += height
        if y < bottom:
            canvas.line([area.x, area.right], [y, y], colours.BORDER)
    if len(frames) > 1:
        names = f"{frames[0].fields[-1].title}  (one of {len(frames)} series)"
        canvas.text(area.x + 8, area.bottom - 12, names, size=12, fill=colours.FAINT, room=area.w - 16)
    return True


def _row(
    canvas: Canvas, area: Area, frame: Frame, fields: Sequence[Field], widths: Sequence[float], row: int, now: float
) -> None:
    cells = [(field, _shown(field, field.values[row], now)) for field in fields]
    # A cell may colour its whole row.
    for field, shown in cells:
        if _cell_options(field).get("applyToRow"):
            canvas.box(area, shown.colour, opacity=0.9)
    x = area.x
    for (field, shown), width in zip(cells, widths, strict=True):
        cell = Area(x, area.y, width, area.h)
        kind, fill = _cell_options(field).get("type", "auto"), colours.TEXT
        if x < area.right:
            if kind == "color-background" and shown.text:
                seen = Area(x, area.y, min(width, area.right - x), area.h)
                canvas.box(seen, shown.colour)
                fill = colours.on(shown.colour)
            elif kind == "color-text":
                fill = shown.colour
            elif kind == "gauge" and isinstance(field.values[row], float):
                cell = _gauge(canvas, cell, field, field.values[row], shown)
                fill = shown.colour
            if field.config.get("links") and kind in ("auto", "color-text"):
                fill = colours.LINK if kind == "auto" else fill
            _text(canvas, cell, field, shown.text, fill, within=area)
        x += width


def _shown(field: Field, value: Any, now: float) -> Shown:
    if field.kind == "time":
        milliseconds = None if value is None else value * 1000
        return Shown(formatted(milliseconds, field.config.get("unit") or "dateTimeAsIso", now=now), colours.TEXT)
    return show(value, field.config, now=now, of=extent(field.config, field.values))


def _gauge(canvas: Canvas, cell: Area, field: Field, value: float, shown: Shown) -> Area:
    bar = cell.inset(8, 8, cell.w * 0.35, 8)
    share = min(max(extent(field.config, field.values).share(value), 0.0), 1.0)
    canvas.box(bar, colours.RAISED)
    canvas.box(bar._replace(w=max(bar.w * share, 1)), shown.colour, opacity=0.7)
    return cell.inset(bar.w + 8, 0, 0, 0)


def _text(
    canvas: Canvas, cell: Area, field: Field, text: str, fill: str, *, within: Area, weight: str = "normal"
) -> None:
    usual: Align = "right" if field.kind == "number" and _cell_options(field).get("type") != "gauge" else "left"
    align: Align = {"left": "left", "center": "center", "right": "right"}.get(field.custom.get("align", "auto"), usual)  # type: ignore[assignment]
    room = min(cell.right, within.right) - cell.x - 12
    if room < 10:
        return
    x = {"left": cell.x + 6, "center": cell.x + cell.w / 2, "right": cell.right - 6}[align]
    if x > within.right:
        x, align = cell.x + 6, "left"
    # A text may have line breaks; a row has room for one line.
    canvas.text(x, cell.y + cell.h / 2, text.replace("\n", " "), fill=fill, align=align, room=room, weight=weight)


def _widths(fields: Sequence[Field], room: float) -> list[float]:
    fixed = [field.custom.get("width") for field in fields]
    least = [float(field.custom.get("minWidth") or _LEAST) for field in fields]
    left = room - sum(float(width) for width in fixed if width)
    free = sum(width is None for width in fixed)
    return [float(width) if width else max(low, left / max(free, 1)) for width, low in zip(fixed, least, strict=True)]


def _cell_options(field: Field) -> Json:
    found: Json = field.custom.get("cellOptions") or {}
    return found


def _hidden(field: Field) -> bool:
    hidden = field.custom.get("hideFrom", {}).get("viz") or field.custom.get("hidden")
    return bool(hidden)
