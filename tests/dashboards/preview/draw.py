"""A whole dashboard on one sheet: its head, its rows, its panels on the grid.

The one decision: a collapsed row is drawn as its title bar, but the queries in it are asked all the same, so that a
refused one is found.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tests.dashboards.preview import bargauge, colours, heatmap, plain, stat, table, timeline, timeseries
from tests.dashboards.preview.annotate import Mark, marks_of
from tests.dashboards.preview.ask import Answered, Ask, Window, answered
from tests.dashboards.preview.canvas import Area, Canvas, width_of
from tests.dashboards.preview.interpolate import Chosen, Json, choice_in_words, variables_of

WIDTH: Final = 1280
_EDGE, _GAP, _ROW, _COLUMNS = 16.0, 8.0, 38.0, 24
_HEAD, _SUBMENU = 44.0, 44.0

Drawing = Callable[[Canvas, Area, Answered], bool]
_KINDS: Final[dict[str, Drawing]] = {
    "stat": stat.draw,
    "timeseries": timeseries.draw,
    "table": table.draw,
    "heatmap": heatmap.draw,
    "state-timeline": timeline.draw,
    "bargauge": bargauge.draw,
    "logs": plain.draw_logs,
    "text": plain.draw_text,
}


@dataclass(frozen=True)
class Picture:
    """A drawn dashboard."""

    png: bytes
    width: int
    height: int
    panels: int
    """How many panels were drawn, rows not counted."""
    empty: tuple[str, ...]
    """Titles of the panels whose queries gave nothing."""
    links: int
    """How many links there are: of the dashboard, of panels, and of fields."""


def panels_of(dashboard: Json) -> Iterator[Json]:
    """All panels, those of collapsed rows included, and rows themselves."""
    for panel in dashboard.get("panels", []):
        yield panel
        yield from panel.get("panels") or []


def panel_width(panel: Json, width: float = WIDTH) -> float:
    """Pixels that Grafana makes of a panel's columns; its queries' steps depend on it."""
    return _place(panel, width).w


def drawn(
    dashboard: Json,
    ask: Ask,
    window: Window,
    chosen: Chosen,
    *,
    logs: Mapping[str, Sequence[str]] | None = None,
) -> Picture:
    """Ask all queries of a dashboard and draw it.

    Args:
        dashboard: Its JSON.
        ask: Who answers.
        window: The time range, whose end is "now".
        chosen: What is chosen of its variables; others have the value that the dashboard was saved with.
        logs: Sample lines for logs panels, by the panel's title.

    Raises:
        QueryRefusedError: A query does not work; the message says which one.
    """
    shown = [panel for panel in dashboard.get("panels", []) if "gridPos" in panel]
    top = _HEAD + (_SUBMENU if _has_submenu(dashboard) else 0) + 8
    rows = max((panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shown), default=1)
    canvas = Canvas(WIDTH, top + rows * _ROW + _EDGE)
    _head(canvas, dashboard, window, chosen)
    empty: list[str] = []
    marks = marks_of(dashboard, ask, window, chosen)
    count = 0
    for panel in panels_of(dashboard):
        if panel.get("type") == "row":
            if panel in shown:
                _row(canvas, _place(panel, WIDTH, top), panel)
            continue
        lines = tuple((logs or {}).get(panel.get("title", ""), ()))
        content = answered(panel, dashboard, ask, window, chosen, panel_width(panel), lines=lines)
        count += 1
        if panel.get("targets") and panel["type"] in _KINDS and panel["type"] != "logs" and not content.frames:
            empty.append(content.title)
        if panel in shown:
            _panel(canvas, _place(panel, WIDTH, top), content, marks)
    height = round(canvas.height)
    return Picture(canvas.png(), WIDTH, height, count, tuple(empty), _links(dashboard))


def _place(panel: Json, width: float, top: float = 0.0) -> Area:
    grid = panel["gridPos"]
    column = (width - 2 * _EDGE + _GAP) / _COLUMNS
    return Area(_EDGE + grid["x"] * column, top + grid["y"] * _ROW, grid["w"] * column - _GAP, grid["h"] * _ROW - _GAP)


def _panel(canvas: Canvas, area: Area, content: Answered, marks: Sequence[Mark]) -> None:
    panel = content.panel
    canvas.box(area, colours.PAGE if panel.get("transparent") else colours.PANEL, edge=colours.BORDER, radius=2)
    titled = bool(content.title)
    if titled:
        room = area.w - 24 - (20 if panel.get("description") else 0)
        wide = canvas.text(area.x + 9, area.y + 17, content.title, weight="medium", room=room)
        if panel.get("description"):
            x = area.x + 9 + wide + 15
            canvas.box(Area(x - 6, area.y + 11, 12, 12), colours.PANEL, edge=colours.FAINT, radius=6)
            canvas.text(x, area.y + 17, "i", size=10, fill=colours.FAINT, align="center")
    inner = area.inset(9, 33 if titled else 9, 9, 9)
    if panel["type"] == "timeseries":
        done = timeseries.draw(canvas, inner, content, marks)
    else:
        done = _KINDS.get(panel["type"], plain.draw_unknown)(canvas, inner, content)
    if not done:
        text = panel.get("fieldConfig", {}).get("defaults", {}).get("noValue") or "No data"
        canvas.text(*inner.middle, text, size=16, fill=colours.FAINT, align="center", room=inner.w)


def _row(canvas: Canvas, area: Area, panel: Json) -> None:
    folded = bool(panel.get("collapsed"))
    wide = canvas.text(area.x + 4, area.y + 15, "▸" if folded else "▾", size=18)
    wide += canvas.text(area.x + 14 + wide, area.y + 15, panel.get("title", ""), size=16, weight="medium")
    if folded:
        count = len(panel.get("panels", []))
        canvas.text(area.x + 28 + wide, area.y + 15, f"({count} panel{'' if count == 1 else 's'})", fill=colours.FAINT)
        canvas.line([area.x, area.right], [area.bottom] * 2, colours.BORDER)


def _head(canvas: Canvas, dashboard: Json, window: Window, chosen: Chosen) -> None:
    canvas.box(Area(0, 0, WIDTH, _HEAD), colours.PANEL)
    canvas.line([0, WIDTH], [_HEAD] * 2, colours.BORDER)
    canvas.text(_EDGE, _HEAD / 2, dashboard.get("title", ""), size=18, weight="medium", room=WIDTH * 0.6)
    begin, end = (datetime.fromtimestamp(edge, UTC) for edge in window)
    times = f"{begin:%Y-%m-%d %H:%M} to {end:%H:%M} UTC"
    canvas.text(WIDTH - _EDGE, _HEAD / 2, times, align="right", fill=colours.FAINT)
    x, y = _EDGE, _HEAD + 8 + 15
    for variable in variables_of(dashboard):
        if variable.get("hide") == 2:
            continue
        name = variable.get("label") or variable["name"]
        words = choice_in_words(variable["name"], variable, chosen) or variable.get("query", "")
        if variable.get("type") == "datasource":
            words = str(variable.get("query", "")).capitalize()
        if variable.get("hide") != 1:
            x = _chip(canvas, x, y, name, colours.LINK, filled=True)
        x = _chip(canvas, x, y, f"{words}  ▾", colours.TEXT) + 8
    right = WIDTH - _EDGE
    for link in reversed(_shown_links(dashboard)):
        title = f"{link.get('title') or link.get('type')} ↗"
        wide = width_of(title, 13) + 20
        _chip(canvas, right - wide, y, title, colours.TEXT)
        right -= wide + 8


def _chip(canvas: Canvas, x: float, y: float, text: str, fill: str, *, filled: bool = False) -> float:
    wide = width_of(text, 13) + 20
    canvas.box(Area(x, y - 15, wide, 30), colours.RAISED if filled else colours.PAGE, edge=colours.BORDER)
    canvas.text(x + 10, y, text, size=13, fill=fill)
    return x + wide


def _shown_links(dashboard: Json) -> list[Json]:
    return [link for link in dashboard.get("links", []) if link.get("placement") != "inControlsMenu"]


def _has_submenu(dashboard: Json) -> bool:
    return any(one.get("hide") != 2 for one in variables_of(dashboard)) or bool(_shown_links(dashboard))


def _links(dashboard: Json) -> int:
    count = len(dashboard.get("links", []))
    for panel in panels_of(dashboard):
        config = panel.get("fieldConfig", {})
        count += len(panel.get("links", [])) + len(config.get("defaults", {}).get("links", []))
        for override in config.get("overrides", []):
            count += sum(len(entry["value"]) for entry in override["properties"] if entry["id"] == "links")
    return count
