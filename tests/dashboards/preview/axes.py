"""The grid, ticks and labels around a chart.

The one decision: the room for the left and right labels is taken by measuring them first.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tests.dashboards.preview.ask import Window
from tests.dashboards.preview.canvas import Area, Canvas, width_of
from tests.dashboards.preview.colours import FAINT, GRID, TEXT
from tests.dashboards.preview.scale import Scale, scale_of, time_ticks

_SIZE = 12


class Side(NamedTuple):
    """A vertical axis with the values that are drawn on it."""

    values: Sequence[float]
    config: dict[str, object]
    right: bool


def plot_area(area: Area) -> Area:
    """The part of a chart's area above the time labels."""
    return area.inset(0, 6, 0, 22)


def with_axes(canvas: Canvas, area: Area, window: Window, sides: Sequence[Side]) -> tuple[Area, list[Scale]]:
    """Draw grid and labels.

    Returns:
        The area for the data, and the scale of each side.
    """
    inner = plot_area(area)
    scales = [scale_of(side.values, side.config, inner.y, inner.bottom) for side in sides]
    left = right = 4.0
    places: list[tuple[float, bool, bool]] = []
    for side, scale in zip(sides, scales, strict=True):
        hidden = _custom(side).get("axisPlacement") == "hidden"
        width = 0.0 if hidden else max((width_of(label, _SIZE) for label in scale.labels()), default=0.0) + 10
        width += 18 if _custom(side).get("axisLabel") and not hidden else 0
        if side.right:
            right += width
            places.append((right, True, hidden))
        else:
            left += width
            places.append((left, False, hidden))
    inner = inner.inset(left, 0, max(right, 10), 0)
    for index, (side, scale, (offset, is_right, hidden)) in enumerate(zip(sides, scales, places, strict=True)):
        if hidden:
            continue
        edge = area.right - offset if is_right else area.x + offset
        for tick, label in zip(scale.ticks(), scale.labels(), strict=True):
            y = scale.y(tick)
            if index == 0:
                canvas.line([inner.x, inner.right], [y, y], GRID)
            canvas.text(edge + (8 if is_right else -8), y, label, size=_SIZE, align="left" if is_right else "right")
        name = str(_custom(side).get("axisLabel") or "")
        if name:
            x = area.right - offset if is_right else area.x + 8
            canvas.text(x, inner.middle[1], name, size=_SIZE, align="center", turned=True, room=inner.h)
    time_axis(canvas, inner, window)
    return inner, scales


def time_axis(canvas: Canvas, inner: Area, window: Window, *, grid: bool = True) -> None:
    """Draw the time labels below an area, with a line at each."""
    for when, label in time_ticks(*window, inner.w):
        x = x_of(when, inner, window)
        if grid:
            canvas.line([x, x], [inner.y, inner.bottom], GRID)
        half = width_of(label, _SIZE) / 2
        if inner.x - 20 <= x - half and x + half <= inner.right + 12:
            canvas.text(x, inner.bottom + 14, label, size=_SIZE, fill=TEXT, align="center")
    canvas.line([inner.x, inner.right], [inner.bottom] * 2, FAINT, opacity=0.4)


def x_of(when: float, inner: Area, window: Window) -> float:
    """The pixel of a time."""
    return inner.x + (when - window.start) / (window.end - window.start) * inner.w


def _custom(side: Side) -> dict[str, object]:
    found = side.config.get("custom", {})
    assert isinstance(found, dict)
    return found
