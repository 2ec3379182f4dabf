"""Panels of states over time: a row for each series, a block for each state.

The one decision: a block says its state where the text fits, as in Grafana with `showValue` "auto".
"""

from itertools import pairwise
from typing import Any, NamedTuple

from tests.dashboards.preview import colours
from tests.dashboards.preview.ask import Answered
from tests.dashboards.preview.axes import time_axis, x_of
from tests.dashboards.preview.canvas import Area, Canvas, width_of
from tests.dashboards.preview.config import Shown, extent, show
from tests.dashboards.preview.frames import Field
from tests.dashboards.preview.interpolate import Json
from tests.dashboards.preview.legend import Entry, with_legend


class _Block(NamedTuple):
    start: float
    end: float
    shown: Shown


def draw(canvas: Canvas, area: Area, content: Answered) -> bool:
    """Draw the panel; False when there is nothing to draw."""
    options: Json = content.panel.get("options", {})
    rows = [
        (field, _blocks(frame.of_kind("time")[0].values, field, content))
        for frame in content.frames
        if frame.of_kind("time")
        for field in frame.of_kind("number", "string")
    ]
    rows = [(field, blocks) for field, blocks in rows if blocks]
    if not rows:
        return False
    states = {block.shown.text: block.shown.colour for _, blocks in rows for block in blocks if block.shown.text}
    entries = [Entry(fill, text) for text, fill in states.items()]
    chart = with_legend(canvas, area, entries, options.get("legend", {}))
    names = min(max(width_of(field.title, 12) for field, _ in rows) + 12, area.w * 0.35)
    inner = chart.inset(names, 0, 10, 22)
    time_axis(canvas, inner, content.window)
    height = inner.h / len(rows)
    thick = height * float(options.get("rowHeight", 0.9))
    for index, (field, blocks) in enumerate(rows):
        middle = inner.y + (index + 0.5) * height
        if height >= 11 or index % 2 == 0:
            canvas.text(inner.x - 8, middle, field.title, size=12, align="right", room=names - 8)
        for block in blocks:
            left = max(x_of(block.start, inner, content.window), inner.x)
            right = min(x_of(block.end, inner, content.window), inner.right)
            if right <= left:
                continue
            place = Area(left, middle - thick / 2, max(right - left, 1), thick)
            opacity = float(field.custom.get("fillOpacity", 70)) / 100
            fill = colours.mixed(colours.PANEL, block.shown.colour, opacity)
            canvas.box(place, fill)
            _say(canvas, place, block.shown.text, fill, options)
    return True


def _say(canvas: Canvas, place: Area, text: str, fill: str, options: Json) -> None:
    how = options.get("showValue", "auto")
    if how == "never" or place.h < 12 or (how == "auto" and width_of(text, 12) + 6 > place.w):
        return
    x, align = place.middle[0], options.get("alignValue", "left")
    if align == "left":
        canvas.text(place.x + 4, place.middle[1], text, size=12, fill=colours.on(fill))
    else:
        canvas.text(x, place.middle[1], text, size=12, fill=colours.on(fill), align="center")


def _blocks(times: list[float], field: Field, content: Answered) -> list[_Block]:
    merges = content.panel.get("options", {}).get("mergeValues", True)
    of = extent(field.config, field.values)
    found: list[_Block] = []
    previous: Any = None
    edges = [*times, times[-1] + content.step]
    # A span of nothing is drawn through where it is no longer than so many milliseconds.
    span = field.custom.get("spanNulls", False)
    for (start, end), value in zip(pairwise(edges), field.values, strict=True):
        if value is None:
            if found and (span is True or (span and (end - found[-1].end) * 1000 <= float(span))):
                continue
            previous = None
            continue
        shown = show(value, field.config, now=content.window.end, of=of)
        same = previous is not None and (value == previous or (shown.mapped and shown == found[-1].shown))
        if found and same and merges:
            found[-1] = found[-1]._replace(end=end)
        else:
            found.append(_Block(start, end, shown))
        previous = value
    return found
