"""Annotations of a dashboard: the vertical lines in its charts over time.

The one decision: they are asked once for a dashboard, and a refused query is an error as a panel's is.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tests.dashboards.preview import colours
from tests.dashboards.preview.ask import Ask, QueryRefusedError, Window
from tests.dashboards.preview.axes import x_of
from tests.dashboards.preview.canvas import Area, Canvas
from tests.dashboards.preview.interpolate import Chosen, Json, interpolated, seconds_of


class Mark(NamedTuple):
    """A moment with its colour."""

    when: float
    colour: str


def marks_of(dashboard: Json, ask: Ask, window: Window, chosen: Chosen) -> list[Mark]:
    """The moments that a dashboard's annotations mark within the window.

    Raises:
        QueryRefusedError: A query does not work.
    """
    found: set[Mark] = set()
    for annotation in dashboard.get("annotations", {}).get("list", []):
        if not annotation.get("enable", True) or (annotation.get("datasource") or {}).get("type") != "prometheus":
            continue
        step = seconds_of(annotation.get("step") or "60s")
        expression = annotation["expr"]
        try:
            expression = interpolated(expression, dashboard, chosen, *window, step=step)
            start, end = (math.floor(edge / step) * step for edge in window)
            result = ask.query_range(expression, start, end, step)
        except Exception as error:  # whatever the one who answers raises
            where = f"{dashboard.get('title')} / annotation {annotation.get('name')}"
            raise QueryRefusedError(f"{where}: {error}\n  {expression}") from error
        fill = colours.colour(annotation.get("iconColor", "red"))
        for series in result:
            for when, value in series["values"]:
                if annotation.get("useValueForTime"):
                    found.add(Mark(float(value) / 1000, fill))
                elif float(value):
                    found.add(Mark(float(when), fill))
    return sorted(mark for mark in found if window.start <= mark.when <= window.end)


def draw_marks(canvas: Canvas, inner: Area, window: Window, marks: Sequence[Mark]) -> None:
    """Draw them into the area of a chart: a dashed line, with a triangle below."""
    for mark in marks:
        x = x_of(mark.when, inner, window)
        canvas.line([x, x], [inner.y, inner.bottom], mark.colour, dashed=True)
        canvas.fill([x - 5, x, x + 5], [inner.bottom + 5, inner.bottom, inner.bottom + 5], [inner.bottom + 5] * 3,
                    mark.colour, opacity=1)  # fmt: skip
