"""Legends below or beside a chart, as list or table.

The one decision: a legend below takes no more than a third of the panel, as in Grafana, and what does not fit is cut.
"""

from typing import NamedTuple

from tests.dashboards.preview.canvas import Area, Canvas, width_of
from tests.dashboards.preview.colours import BORDER, FAINT, LINK, TEXT

_SIZE = 12
_ROW = 22.0


class Entry(NamedTuple):
    """A line of a legend: colour, name, and the texts of its calculations."""

    colour: str
    name: str
    figures: tuple[str, ...] = ()


def with_legend(
    canvas: Canvas, area: Area, entries: list[Entry], options: dict[str, object], headings: tuple[str, ...] = ()
) -> Area:
    """Draw a legend and give what is left of the area for the chart."""
    if not entries or options.get("showLegend") is False or options.get("displayMode") == "hidden":
        return area
    table = options.get("displayMode") == "table"
    columns = _columns(entries, headings)
    if options.get("placement") == "right":
        wanted = float(str(options["width"])) if options.get("width") else _needed(entries, columns)
        width = min(wanted, area.w * 0.6)
        _draw(canvas, Area(area.right - width, area.y, width, area.h), entries, headings, columns, table)
        return area._replace(w=area.w - width - 8)
    rows = len(entries) + 1 if table else _lines(entries, area.w)
    height = min(rows * _ROW, max(area.h * 0.35, _ROW * (2 if table else 1)))
    place = Area(area.x, area.bottom - height, area.w, height)
    if table:
        _draw(canvas, place, entries, headings, columns, table)
    else:
        _flow(canvas, place, entries)
    return area._replace(h=area.h - height - 4)


def _item(entry: Entry) -> float:
    return 22 + width_of(_words(entry), _SIZE) + 14


def _words(entry: Entry) -> str:
    return "  ".join((entry.name, *entry.figures))


def _lines(entries: list[Entry], room: float) -> int:
    lines, used = 1, 0.0
    for entry in entries:
        width = _item(entry)
        if used and used + width > room:
            lines, used = lines + 1, 0.0
        used += width
    return lines


def _flow(canvas: Canvas, area: Area, entries: list[Entry]) -> None:
    x, y = area.x, area.y + _ROW / 2
    for entry in entries:
        if x > area.x and x + _item(entry) > area.right:
            x, y = area.x, y + _ROW
        if y > area.bottom:
            return
        _key(canvas, x + 2, y, entry.colour)
        canvas.text(x + 22, y, _words(entry), size=_SIZE, room=area.right - x - 22)
        x += _item(entry)


def _columns(entries: list[Entry], headings: tuple[str, ...]) -> list[float]:
    texts = [[heading, *(entry.figures[place] for entry in entries)] for place, heading in enumerate(headings)]
    return [max(width_of(text, _SIZE) for text in column) + 16 for column in texts]


def _needed(entries: list[Entry], columns: list[float]) -> float:
    return 26 + max(width_of(entry.name, _SIZE) for entry in entries) + sum(columns)


def _draw(
    canvas: Canvas, area: Area, entries: list[Entry], headings: tuple[str, ...], columns: list[float], table: bool
) -> None:
    y = area.y + _ROW / 2
    if table:
        canvas.text(area.x + 2, y, "Name", size=_SIZE, fill=LINK)
        _figures(canvas, area.right, y, headings, columns, LINK)
        y += _ROW
    for entry in entries:
        if y + _ROW / 2 > area.bottom + 1:
            return
        if table:
            canvas.line([area.x, area.right], [y - _ROW / 2] * 2, BORDER)
        _key(canvas, area.x + 2, y, entry.colour)
        room = area.w - 22 - (sum(columns) if entry.figures else 0)
        canvas.text(area.x + 22, y, entry.name, size=_SIZE, room=room)
        _figures(canvas, area.right, y, entry.figures, columns, TEXT if table else FAINT)
        y += _ROW


def _figures(canvas: Canvas, right: float, y: float, texts: tuple[str, ...], columns: list[float], fill: str) -> None:
    for text, width in zip(reversed(texts), reversed(columns), strict=False):
        canvas.text(right, y, text, size=_SIZE, fill=fill, align="right")
        right -= width


def _key(canvas: Canvas, x: float, y: float, fill: str) -> None:
    canvas.box(Area(x, y - 2, 14, 4), fill, radius=2)
