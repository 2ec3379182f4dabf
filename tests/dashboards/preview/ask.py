"""A panel's queries, put to Prometheus as Grafana puts them.

The one decision: whatever goes wrong with a query is one error that names dashboard, panel and query, so that a
preview that ends says where.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tests.dashboards.preview.config import configure
from tests.dashboards.preview.frames import Frame, bucket_frames, series_frames, table_frame
from tests.dashboards.preview.interpolate import Chosen, Json, in_words, interpolated, interval
from tests.dashboards.preview.transform import transformed


class Ask(Protocol):
    """Who answers queries: a Prometheus, or a test with canned answers. Both give the result list of its HTTP API."""

    def query_at(self, expression: str, at: float, /) -> list[Json]:
        """The result of an instant query at a Unix time."""

    def query_range(self, expression: str, start: float, end: float, step: float, /) -> list[Json]:
        """The result of a range query."""


class Window(NamedTuple):
    """A time range; its end is "now" for whoever looks."""

    start: float
    end: float


class QueryRefusedError(Exception):
    """A query, or what a panel does with its answer, does not work; the message says which one."""


@dataclass(frozen=True)
class Answered:
    """A panel with what its queries gave."""

    panel: Json
    frames: list[Frame]
    window: Window
    title: str
    step: float
    lines: tuple[str, ...] = ()
    """Sample lines of a logs panel."""


def targets_of(panel: Json) -> list[Json]:
    """The queries of a panel that go to Prometheus."""
    own = panel.get("datasource") or {}
    return [
        target
        for target in panel.get("targets", [])
        if not target.get("hide") and (target.get("datasource") or own).get("type", "prometheus") == "prometheus"
    ]


def answered(
    panel: Json,
    dashboard: Json,
    ask: Ask,
    window: Window,
    chosen: Chosen,
    width_px: float,
    *,
    lines: tuple[str, ...] = (),
) -> Answered:
    """Ask all queries of a panel and prepare the answers for its drawing.

    Raises:
        QueryRefusedError: Something of it does not work.
    """
    title = in_words(panel.get("title", ""), dashboard, chosen)
    targets = targets_of(panel)
    tables = sum(target.get("format") == "table" for target in targets)
    frames: list[Frame] = []
    points = float(panel.get("maxDataPoints") or width_px)
    step = interval(window.start, window.end, points, panel.get("interval"))
    for target in targets:
        least = target.get("interval") or panel.get("interval")
        own_step = interval(window.start, window.end, points, least)
        where = f"{dashboard.get('title')} / {title or panel.get('id')} / {target.get('refId')}"
        expression = target["expr"]
        try:
            expression = interpolated(expression, dashboard, chosen, *window, step=own_step)
            frames += _asked(target, expression, ask, window, own_step, alone=tables == 1)
        except Exception as error:  # whatever the one who answers raises
            raise QueryRefusedError(f"{where}: {error}\n  {expression}") from error
    try:
        frames = transformed(frames, panel.get("transformations", []))
        frames = [frame for frame in frames if frame.rows]
        config = panel.get("fieldConfig", {})
        configure(frames, config)
    except ValueError as error:
        raise QueryRefusedError(f"{dashboard.get('title')} / {title}: {error}") from error
    for frame in frames:
        for field in frame.fields:
            if "displayName" in field.config:
                field.config["displayName"] = in_words(field.config["displayName"], dashboard, chosen)
    return Answered(panel, frames, window, title, step, lines)


def _asked(target: Json, expression: str, ask: Ask, window: Window, step: float, *, alone: bool) -> list[Frame]:
    ref, form = target.get("refId", "A"), target.get("format", "time_series")
    legend = target.get("legendFormat") or ""
    instant = bool(target.get("instant"))
    frames: list[Frame] = []
    if instant:
        result = ask.query_at(expression, window.end)
        if form == "table":
            frames.append(table_frame(ref, result, window.end, alone=alone))
        else:
            frames += series_frames(ref, legend, [_at(one, window.end) for one in result], [window.end])
    if target.get("range") or not instant:
        # Grafana asks at whole multiples of the step, so that a reload gives the same points.
        start, end = (math.floor(edge / step) * step for edge in window)
        result = ask.query_range(expression, start, end, step)
        times = [start + index * step for index in range(round((end - start) / step) + 1)]
        if form == "table":
            frames.append(table_frame(ref, result, window.end, alone=alone))
        else:
            frames += series_frames(ref, legend, result, times)
    return bucket_frames(frames) if form == "heatmap" else frames


def _at(series: Json, when: float) -> Json:
    return {**series, "value": [when, series["value"][1]]}
