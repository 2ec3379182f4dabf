"""A dashboard with every kind of panel is drawn, full or empty, and a refused query is named."""

import io
from typing import Any

import pytest
from PIL import Image

from tests.dashboards.preview.ask import QueryRefusedError, Window
from tests.dashboards.preview.draw import WIDTH, drawn

WINDOW = Window(1768460400.0, 1768464000.0)
KINDS = ("stat", "timeseries", "table", "heatmap", "state-timeline", "bargauge")


class Canned:
    """Answers each query with the same series; a query `broken` is refused."""

    def __init__(self, labels: list[dict[str, str]]) -> None:
        self._labels = labels

    def query_at(self, expression: str, at: float) -> list[dict[str, Any]]:
        """The series with a value each."""
        assert expression != "broken", "parse error"
        return [{"metric": one, "value": [at, str(index + 1)]} for index, one in enumerate(self._labels)]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The series with a value at each step."""
        assert expression != "broken", "parse error"
        times = [start + index * step for index in range(round((end - start) / step) + 1)]
        return [
            {"metric": one, "values": [[when, str(index + 1)] for when in times]}
            for index, one in enumerate(self._labels)
        ]


SERIES = Canned([{"run": "a", "le": "1"}, {"run": "b", "le": "+Inf"}])


def panel(kind: str, place: int, expression: str = "up") -> dict[str, Any]:
    table = kind == "table"
    target = {"refId": "A", "expr": expression, "instant": table, "format": "table" if table else "time_series"}
    links = {"links": [{"url": "x"}]} if table else {}
    return {
        "type": kind,
        "title": f"The {kind}",
        "gridPos": {"x": place % 2 * 12, "y": place // 2 * 6, "w": 12, "h": 6},
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "targets": [target],
        "fieldConfig": {"defaults": {"unit": "s", "noValue": "nothing yet", **links}, "overrides": []},
    }


def dashboard(*panels: dict[str, Any]) -> dict[str, Any]:
    return {"title": "Sample", "uid": "sample", "panels": list(panels)}


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    text = {"type": "text", "title": "", "gridPos": {"x": 0, "y": 18, "w": 24, "h": 3}}
    return dashboard(
        *(panel(kind, place) for place, kind in enumerate(KINDS)),
        {**text, "options": {"content": "# Head\n- one **bold** word"}},
        {"type": "row", "title": "More", "collapsed": True, "gridPos": {"x": 0, "y": 21, "w": 24, "h": 1},
         "panels": [panel("stat", 0)]},
    )  # fmt: skip


def test_every_kind_is_drawn_to_scale(everything: dict[str, Any]) -> None:
    picture = drawn(everything, SERIES, WINDOW, {})
    image = Image.open(io.BytesIO(picture.png))
    assert image.size == (picture.width, picture.height) == (WIDTH, (44 + 8 + 22 * 38 + 16))
    assert (picture.panels, picture.links, picture.empty) == (8, 1, ())
    assert len(picture.png) < 250_000


def test_panels_without_an_answer_are_told(everything: dict[str, Any]) -> None:
    picture = drawn(everything, Canned([]), WINDOW, {})
    assert picture.empty == (*(f"The {kind}" for kind in KINDS), "The stat")


def test_a_stat_without_an_answer_has_the_colour_of_the_lowest_threshold() -> None:
    image = panel("stat", 0) | {"options": {"colorMode": "background"}}
    picture = drawn(dashboard(image), Canned([]), WINDOW, {})
    colours = Image.open(io.BytesIO(picture.png)).convert("RGB").getcolors(1 << 20) or []
    assert (0x73, 0xBF, 0x69) in {rgb for _, rgb in colours}


def test_a_refused_query_is_named_with_its_panel_and_dashboard() -> None:
    with pytest.raises(QueryRefusedError, match=r"(?s)Sample / The stat / A: .*parse error.*broken"):
        drawn(dashboard(panel("stat", 0, "broken")), SERIES, WINDOW, {})


def test_a_query_in_a_collapsed_row_is_asked_too() -> None:
    row = {"type": "row", "title": "More", "collapsed": True, "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1}}
    with pytest.raises(QueryRefusedError, match="broken"):
        drawn(dashboard({**row, "panels": [panel("table", 0, "broken")]}), SERIES, WINDOW, {})
