"""Every query of both dashboards over the scripted day: it gives what is there, and nothing where there is nothing."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import Exchange, Identity, SyncRecord, Target
from sglang_telemetry.names import Phase, Result
from sglang_telemetry.sinks.log import LogSink
from tests.dashboards.board import BOARDS, EVERYTHING, Asked, asked, filled, panels
from tests.dashboards.day import END, GRPO, GRPO_SERVER, NOTHING, PPO, PPO_SERVER, SCALE_NOW, State, scale
from tests.dashboards.preview.ask import Answered, Window, answered
from tests.dashboards.preview.draw import panel_width
from tests.dashboards.preview.interpolate import ALL, Chosen
from tests.harness.assets import samples
from tests.harness.backfill import LOOKBACK
from tests.harness.prometheus import Prometheus
from tests.harness.promql import asked_for

SGLANG = json.loads((Path(__file__).parents[1] / "real_sglang" / "metrics.json").read_text())
PANELS = [(uid, one) for uid, board in BOARDS.items() for one in panels(board) if one["type"] != "logs"]
every_panel = pytest.mark.parametrize(("uid", "panel"), PANELS, ids=[one["title"] for _, one in PANELS])

ONLY_IN = {
    "Last failure": {State.FAILING},
    "In one phase for": {State.FAILING, State.STUCK},
    "Firing alerts": {State.FAILING, State.STUCK, State.SERVER_RESTARTED},
    "Failures by cause": {State.FAILING},
    "Last failures": {State.FAILING},
    "Exits": {State.FAILING},
    "Errors of this monitoring": set(),
}
"""Panels that are empty when nothing is the matter; all others have data in each state."""


def shown(prometheus: Prometheus, uid: str, panel: Any, state: State, chosen: Chosen = EVERYTHING) -> Answered:
    """A panel with its data, as the preview draws it."""
    window = Window(state.start, state.now)
    return answered(panel, BOARDS[uid], prometheus, window, chosen, panel_width(panel))


def panel_of(title: str) -> tuple[str, Any]:
    """A panel by its title, with its dashboard."""
    return next((uid, one) for uid, one in PANELS if one["title"] == title)


def values(prometheus: Prometheus, title: str, state: State, ref: str = "A") -> dict[str, float]:
    """What one query of a panel gives at the end of a state's window: legend to value, the labels joined by a blank."""
    uid, panel = panel_of(title)
    target = next(one for one in panel["targets"] if one["refId"] == ref)
    expression = filled(Asked(uid, title, target["expr"]), state.start, state.now)
    return {
        " ".join(value for _, value in sorted(one["metric"].items())): float(one["value"][1])
        for one in prometheus.query_at(expression, state.now)
    }


def rounded(value: Any) -> Any:
    """Without the last digits, which depend on the order in which Prometheus adds."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


@pytest.mark.parametrize("one", asked(), ids=lambda one: f"{one.board}: {one.place}")
def test_uses_only_metrics_that_are_served(one: Asked) -> None:
    """Of ours those that the exporter serves, of SGLang's those of the real server, in both spellings."""
    for metric, labels in asked_for(filled(one)).items():
        if metric.startswith("sglang[:_]"):
            name = metric.removeprefix("sglang[:_]")
            for spelling, known in ((f"sglang:{name}", SGLANG["text"]), (f"sglang_{name}", SGLANG["openmetrics"])):
                assert labels <= {*known[spelling].partition(": ")[2].split(", "), "instance", "server"}
        elif metric == "ALERTS":
            assert labels <= {"alertname", "alertstate", "severity", "run", "server", "cause"}
        else:
            extra = {"instance"} if "label_replace" in one.expr else set()
            extra |= {"first"} if "label_join" in one.expr else set()
            assert labels <= samples()[metric] | extra, metric


@pytest.mark.parametrize("state", State)
@every_panel
def test_panel_has_data_where_there_is_some(day: Prometheus, uid: str, panel: Any, state: State) -> None:
    """And is empty, rather than zero, where there is none."""
    expected = state in ONLY_IN.get(panel["title"], set(State))
    assert bool(shown(day, uid, panel, state).frames) == expected


@pytest.mark.parametrize("one", asked(), ids=lambda one: f"{one.board}: {one.place}")
def test_before_the_first_start_there_is_nothing(day: Prometheus, one: Asked) -> None:
    """No zero, no error, in any query."""
    assert day.query_at(filled(one, NOTHING - 3600, NOTHING), NOTHING) == []


@every_panel
def test_one_run_and_both(day: Prometheus, uid: str, panel: Any) -> None:
    """Both runs by name are what All is, and one run alone is no more than both."""

    def frames(chosen: Chosen) -> list[Any]:
        found = shown(day, uid, panel, State.FAILING, chosen).frames
        return [[(field.title, list(map(rounded, field.values))) for field in frame.fields] for frame in found]

    everything = frames(EVERYTHING)
    assert frames({**EVERYTHING, "run": [GRPO, PPO]}) == everything
    alone = [frames({**EVERYTHING, "run": [run]}) for run in (GRPO, PPO)]
    assert all(len(one) <= len(everything) for one in alone)
    assert bool(everything) == any(map(bool, alone))
    nobody = {"run": ["nobody"], "server": ALL, "rank": ALL}
    if panel["title"] not in ("Errors of this monitoring", "Firing alerts"):
        assert frames(nobody) == []


def test_nothing_is_red_on_a_good_day(day: Prometheus) -> None:
    """The queries that are drawn in red have no result, and no server is in a state that is."""
    for title in ("Since a sync or start", "Last failure", "In one phase for"):
        assert values(day, title, State.HEALTHY) == {}
    assert values(day, "Server", State.HEALTHY) in ({GRPO_SERVER: 0.0}, {PPO_SERVER: 0.0})
    assert values(day, "Firing alerts", State.HEALTHY) == {}


def test_failing(day: Prometheus) -> None:
    """Which run, why, since when; and what to do."""
    assert values(day, "Last failure", State.FAILING) == {f"timeout {GRPO} {GRPO_SERVER}": pytest.approx(120, abs=15)}
    uid, panel = panel_of("Last failures")
    [table] = shown(day, uid, panel, State.FAILING).frames
    columns = {field.title: field.values for field in table.fields}
    assert sorted(columns["Cause"]) == ["server_busy", "server_busy", "timeout"]
    assert columns["First"] == columns["Cause"]
    assert all(len(trace) == 32 for trace in columns["Trace"])
    [alert] = (one for one in values(day, "Firing alerts", State.FAILING) if "WeightSyncFailed" in one)
    assert "timeout" in alert


def test_stuck(day: Prometheus) -> None:
    """Run, rank, phase, since when."""
    assert values(day, "In one phase for", State.STUCK) == {f"request 0 {GRPO}": pytest.approx(540, abs=20)}
    phases = values(day, "Phase of each rank", State.STUCK)
    numbers = [Phase.SETUP, Phase.STATE_DICT, Phase.SAVE, Phase.REQUEST, Phase.CONFIRM, Phase.BROADCAST]
    assert phases[f"0 {GRPO}"] == numbers.index(Phase.REQUEST) + 1
    assert {phases[f"{rank} {GRPO}"] for rank in range(1, 8)} == {numbers.index(Phase.BROADCAST) + 1}


def test_server_with_other_weights(day: Prometheus) -> None:
    """The worst server is the one that came back with its start weights."""
    assert values(day, "Server", State.SERVER_RESTARTED) == {GRPO_SERVER: 2.0}


def test_late_rank(day: Prometheus) -> None:
    """The rank that waits least is the one that comes last."""
    waits = values(day, "Who comes last", State.HEALTHY)
    assert min((wait, name) for name, wait in waits.items() if GRPO in name)[1] == f"5 {GRPO}"
    assert f"0 {GRPO}" not in waits


def test_an_exporter_that_is_gone_is_no_quiet_night(day: Prometheus) -> None:
    """Ten minutes after the last scrape nobody lives, and both runs are named as not heard of; before, nobody was."""
    _, panel = panel_of("Live runs")
    found = []
    for now in (State.HEALTHY.now, END + 600):
        for target in panel["targets"]:
            query = filled(Asked("weight-sync", "Live runs", target["expr"]), now - 3600, now)
            found.append([float(one["value"][1]) for one in day.query_at(query, now)])
    assert found == [[2.0], [], [], [2.0]]


def test_log_query_finds_our_lines(caplog: pytest.LogCaptureFixture) -> None:
    """What it looks for stands in a line of ours, and the labels that it uses are keys there."""
    [target] = next(one for board in BOARDS.values() for one in panels(board) if one["type"] == "logs")["targets"]
    identity = Identity(run="grpo", run_id="1", rank=0, world_size=1, host="node", pid=1)
    record = SyncRecord(
        identity=identity,
        sequence=1,
        started_at=0.0,
        duration_ns=1,
        phases=(),
        result=Result.FAILURE,
        cause=FailureCause.SERVER_BUSY,
        coordinator=True,
        trace_id="0" * 32,
        span_id="0" * 16,
        target=Target(server="s:1"),
        exchanges=(Exchange(method="POST", url="http://s:1/", status_code=400, response_text="no"),),
        decisive=0,
    )
    LogSink(fmt="json").emit(record)
    [line] = caplog.messages
    [sought] = re.findall(r"\|= `([^`]+)`", target["expr"])
    assert sought in line
    keys = {*re.findall(r"\{\{\.(\w+)\}\}", target["expr"]), *re.findall(r"\| (\w+)=~", target["expr"])}
    assert keys <= json.loads(line).keys()


@pytest.mark.parametrize("ranks", [8, 512])
def test_many_ranks(tmp_path: Path, ranks: int) -> None:
    """Prometheus answers every query, and a panel has no more series than ranks and runs make."""
    data, count = scale(tmp_path, ranks)
    with Prometheus(tmp_path / "prometheus", {}, data=data, lookback=LOOKBACK) as prometheus:
        for uid, panel in PANELS:
            window = Window(SCALE_NOW - 3600, SCALE_NOW)
            found = answered(panel, BOARDS[uid], prometheus, window, EVERYTHING, 640)
            assert len(found.frames) <= 2 * ranks, panel["title"]
    assert count > ranks
