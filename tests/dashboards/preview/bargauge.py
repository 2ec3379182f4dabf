"""Panels of horizontal bars, one for each value.

The one decision: names stand left of the bars where these are low, above them where there is room, as in Grafana.
"""

from tests.dashboards.preview import colours
from tests.dashboards.preview.ask import Answered
from tests.dashboards.preview.canvas import Area, Canvas, width_of
from tests.dashboards.preview.stat import Value, values_of


def draw(canvas: Canvas, area: Area, content: Answered) -> bool:
    """Draw the panel; False when there is nothing to draw."""
    if not content.frames:
        return False
    values = values_of(content)
    options = content.panel.get("options", {})
    most = float(options.get("maxVizHeight", 300)) if options.get("sizing") == "manual" else 300.0
    least = float(options.get("minVizHeight", 16))
    height = min(max((area.h + 10) / len(values) - 10, least), most)
    placement = options.get("namePlacement", "auto")
    above = placement == "top" or (placement == "auto" and height >= 40)
    name_size, size = 14.0 if above else 12.0, min(max(height * (0.35 if above else 0.7), 11), 18)
    names = 0.0
    if not above and placement != "hidden":
        names = min(max(width_of(value.name, name_size) for value in values) + 10, area.w * 0.4)
    figures = max(width_of(value.shown.text, size, "medium") for value in values) + 12
    y = area.y
    for value in values:
        if y + height > area.bottom + 1:
            break  # Grafana scrolls here
        bar = Area(area.x + names, y, area.w - names - figures, height)
        if above:
            canvas.text(area.x, y + 9, value.name, size=name_size, room=area.w)
            bar = bar.inset(0, 20, 0, 0)
        elif names:
            canvas.text(area.x, bar.middle[1], value.name, size=name_size, room=names - 8)
        _bar(canvas, bar, value, options.get("displayMode", "gradient"))
        fill = colours.TEXT if options.get("valueMode") == "text" else value.shown.colour
        if options.get("valueMode") != "hidden":
            canvas.text(
                area.right, bar.middle[1], value.shown.text, size=size, fill=fill, weight="medium", align="right"
            )
        y += height + 10
    return True


def _bar(canvas: Canvas, area: Area, value: Value, mode: str) -> None:
    share = min(max(value.of.share(value.value), 0.0), 1.0) if value.value is not None else 0.0
    filled = area._replace(w=area.w * share)
    canvas.box(area, colours.RAISED, radius=2)
    if mode == "lcd":
        x = area.x
        while x < area.right - 4:
            lit = x < filled.right
            canvas.box(Area(x, area.y, 6, area.h), value.shown.colour if lit else colours.GRID, radius=1)
            x += 9
    elif filled.w >= 1:
        canvas.box(filled, value.shown.colour, opacity=0.35 if mode == "basic" else 0.7)
        canvas.line([filled.right, filled.right], [area.y, area.bottom], value.shown.colour, width=2)
