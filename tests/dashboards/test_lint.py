"""What Grafana's types do not say and a dashboard of ours has to be."""

import re
from typing import Any

import pytest

from dashboards.build import files
from dashboards.look import PAGE, PAGE_DARK
from sglang_telemetry.causes import FailureCause
from tests.dashboards.board import BOARDS, asked, panels
from tests.harness.assets import ALERTS, alerts

KINDS = {"stat", "table", "timeseries", "heatmap", "state-timeline", "bargauge", "logs"}
BUILT_IN = {
    "__range",
    "__rate_interval",
    "__rate_interval_ms",
    "__from",
    "__to",
    "__value",
    "__url_time_range",
    "__all",
}
boards = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


def texts(value: Any) -> list[str]:
    """All texts in some JSON."""
    if isinstance(value, dict):
        return [text for one in value.values() for text in texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts(one)]
    return [value] if isinstance(value, str) else []


def test_files_are_what_the_code_says() -> None:
    """Both files, and no other, are built."""
    assert {path: path.read_text() for path in files()} == files()
    assert {path.stem for path in files()} == BOARDS.keys() == {"weight-sync", "weight-sync-ranks"}


@boards
def test_ids_and_titles_are_unique(board: dict[str, Any]) -> None:
    """Also those of rows, and of panels in collapsed rows."""
    everything = [*board["panels"], *(one for row in board["panels"] for one in row.get("panels", []))]
    for key in ("id", "title"):
        values = [one[key] for one in everything]
        assert len(values) == len(set(values))


@boards
def test_the_file_can_be_imported(board: dict[str, Any]) -> None:
    """A version that Grafana 11 to 13 migrate, the uid that alerts link to, and no data source of somebody's own."""
    assert 39 <= board["schemaVersion"] <= 41
    assert board["uid"] in BOARDS
    assert "id" not in board
    for one in panels(board):
        for source in (one["datasource"], *(target["datasource"] for target in one["targets"])):
            assert source["uid"] in ("${datasource}", "${loki}")


@boards
def test_panels_do_not_overlap(board: dict[str, Any]) -> None:
    """Each cell of the grid of 24 columns has one panel at most; a collapsed row's panels are shown alone."""
    taken: set[tuple[int, int]] = set()
    for one in board["panels"]:
        at = one["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, one["title"]
        taken |= cells


@boards
def test_each_panel_says_what_it_is(board: dict[str, Any]) -> None:
    """A known type, a description, a unit, and words for "nothing"; narrower than four columns nothing can be read."""
    for one in panels(board):
        assert one["type"] in KINDS
        assert one["description"].endswith("."), one["title"]
        assert one["fieldConfig"]["defaults"]["unit"]
        assert one["fieldConfig"]["defaults"]["noValue"]
        assert one["gridPos"]["w"] >= 4
        assert one["targets"]


@boards
def test_variables_are_defined_and_used(board: dict[str, Any]) -> None:
    """A misspelt one would be sent to Prometheus as it is."""
    declared = {one["name"] for one in board["templating"]["list"]}
    found = {name for text in texts(board) for name in re.findall(r"\$\{?(\w+)", text) if not name.isdigit()} - BUILT_IN
    assert found <= declared
    assert declared - found <= {"tempo", "runbooks", "loki"}
    chosen = [one for one in board["templating"]["list"] if one["type"] == "query"]
    assert all(one["multi"] and one["includeAll"] and one["current"]["value"] == ["$__all"] for one in chosen)


@boards
def test_links_lead_somewhere(board: dict[str, Any]) -> None:
    """To a dashboard of ours, to a runbook that is there, or to Explore."""
    urls = [text for text in texts(board) if re.match(r"(\$\{runbooks|/d/|/explore|https?:)", text)]
    assert urls
    for url in urls:
        if url.startswith("/d/"):
            assert url[3:].partition("?")[0] in BOARDS
        elif url.startswith("${runbooks:raw}/"):
            path = url.removeprefix("${runbooks:raw}/")
            names = [alert["alert"] for alert in alerts()] if path.startswith("$") else [path.partition(".md")[0]]
            for name in names:
                text = (ALERTS / "runbooks" / f"{name}.md").read_text()
                if "#" in path:
                    assert all(f"## {cause}" in text for cause in FailureCause)
        else:
            assert url.startswith("/explore?")


@pytest.mark.parametrize("one", asked(), ids=lambda one: f"{one.board}: {one.place}")
def test_queries_name_nobody(one: Any) -> None:
    """No run, server, job or rank of somebody's own, but rank 0, which coordinates; no window but Grafana's."""
    for label, value in re.findall(r'\b(run|server|job|instance|rank)\s*(?:=~|=|!=|!~)\s*"([^"]*)"', one.expr):
        assert value.startswith("$") or (label, value) == ("rank", "0"), one.expr
    windows = re.findall(r"\[([^\]]+)\]", re.sub(r"sglang\[:_\]", "", one.expr))
    assert set(windows) <= {"$__range", "$__rate_interval"}


@boards
def test_red_is_for_what_pages(board: dict[str, Any]) -> None:
    """No other red, no green; and each red is one of these."""
    colours = {text.upper() for text in texts(board) if re.fullmatch(r"#[0-9A-Fa-f]{6}", text)}
    reddish = {
        one for one in colours if int(one[1:3], 16) > 150 and int(one[3:5], 16) < 100 and int(one[5:7], 16) < 100
    }
    assert reddish <= {PAGE.upper(), PAGE_DARK.upper()}
    assert not {text for text in texts(board) if text in ("red", "green", "dark-red", "palette-classic")}
    red = {one["title"] for one in panels(board) if PAGE in texts(one)}
    assert red <= {
        "Since a sync or start",
        "Last failure",
        "In one phase for",
        "Server",
        "State of each server",
        "Firing alerts",
        "Failures by cause",
        "Exits",
    }
