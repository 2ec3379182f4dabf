"""Every query of both dashboards over the scripted day: it gives what is there, and nothing where there is nothing."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from dashboards.look import WARN
from sglang_telemetry import names
from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import Exchange, Identity, SyncRecord, Target
from sglang_telemetry.names import Metric, Phase, Result
from sglang_telemetry.sinks.log import LogSink
from tests.dashboards.board import BOARDS, EVERYTHING, Asked, asked, filled, panels
from tests.dashboards.day import END, GRPO, GRPO_SERVER, NOTHING, PPO, PPO_SERVER, SCALE_NOW, State, at, scale
from tests.dashboards.preview.ask import Answered, Window, answered
from tests.dashboards.preview.colours import colour
from tests.dashboards.preview.config import threshold_colour
from tests.dashboards.preview.draw import panel_width
from tests.dashboards.preview.interpolate import ALL, Chosen
from tests.dashboards.truth import LATE_SECONDS
from tests.harness.assets import samples
from tests.harness.backfill import LOOKBACK, Scrape, backfill
from tests.harness.prometheus import Prometheus
from tests.harness.promql import asked_for
from tests.harness.simulation import SCRAPE

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


def values(prometheus: Prometheus, title: str, when: State | float, ref: str = "A") -> dict[str, float]:
    """What one query of a panel gives: the labels joined by a blank to the value.

    Args:
        prometheus: Who is asked.
        title: Of the panel.
        when: At the end of a state's window, or at a Unix time, of the hour before it.
        ref: Of the query.
    """
    start, now = (when.start, when.now) if isinstance(when, State) else (when - 3600, when)
    uid, panel = panel_of(title)
    target = next(one for one in panel["targets"] if one["refId"] == ref)
    return {
        " ".join(value for _, value in sorted(one["metric"].items())): float(one["value"][1])
        for one in prometheus.query_at(filled(Asked(uid, title, target["expr"]), start, now), now)
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


def test_sent_and_seen_to_run(day: Prometheus) -> None:
    """Nothing behind on a good day; two syncs while an old replica answers; and how long each finding took."""
    title = "Sent, and seen to run"
    assert values(day, title, State.HEALTHY) == {GRPO: 0.0, PPO: 0.0}
    assert values(day, title, at("06:35:45")) == {GRPO: 2.0, PPO: 0.0}
    assert values(day, title, at("06:45"))[GRPO] == 0.0
    assert values(day, title, State.HEALTHY, "B") == {"yes yes": pytest.approx(0.4, abs=0.3)}
    # Found no, said yes; and found yes, said unknown: each the first of its kind.
    assert values(day, title, at("06:27:45"), "B")["no yes"] == pytest.approx(0.4, abs=0.3)
    assert values(day, title, at("07:58:30"), "B")["yes unknown"] == pytest.approx(LATE_SECONDS + 3, abs=3)


def test_rollouts_by_policy(day: Prometheus) -> None:
    """Answers a second of both runs: what the last sync made, what an older one did, and what nothing can tell of."""
    title = "Rollouts by policy"
    healthy = values(day, title, State.HEALTHY)
    assert healthy == {"current": pytest.approx(32 * 0.9 * 1.5 / 15, rel=0.25)}
    assert values(day, title, State.HEALTHY, "B") == {"": pytest.approx(6 / 60, rel=0.4)}
    stale = values(day, title, at("06:31"))
    assert stale == {"stale": pytest.approx(24 * 0.9 * 1.5 / 15, rel=0.25)}  # the other run is away
    assert values(day, title, at("07:58:45"))["mixed"] > 0
    assert values(day, title, State.SERVER_RESTARTED).keys() == {"current", "unknown"}


def test_runs_that_send_the_same_and_servers_that_went_back(day: Prometheus) -> None:
    """In their tables, with the colour of a warning from where the alert warns."""
    for title, column, expected in (
        ("Runs", "Unchanged", {GRPO: 4.0, PPO: 0.0}),
        ("Servers", "Went back", {GRPO_SERVER: 1.0, PPO_SERVER: 0.0}),
    ):
        uid, panel = panel_of(title)
        for state in State:
            [table] = shown(day, uid, panel, state).frames
            columns = {field.title: field for field in table.fields}
            found = dict(zip(columns[title[:-1]].values, columns[column].values, strict=True))
            assert found == (expected if state is State.FAILING else dict.fromkeys(expected, 0.0)), state
        config = columns[column].config
        assert threshold_colour(0.0, config) != threshold_colour(max(expected.values()), config) == colour(WARN)


def test_free_inodes(day: Prometheus) -> None:
    """Beside the free bytes."""
    assert values(day, "Checkpoint and free space", State.HEALTHY, "C") == {GRPO: 13e6, PPO: 13e6}


def little(folder: Path, read: Callable[[int], dict[str, list[Family]]]) -> Prometheus:
    """A Prometheus over a quarter of an hour.

    Args:
        folder: For its data.
        read: By number of the scrape, what each exporter says.
    """
    backfill(
        (
            Scrape(at=SCALE_NOW - 900 + SCRAPE * number, families=families, target={"instance": name, "job": "rl"})
            for name in read(0)
            for number in range(900 // SCRAPE + 1)
            for families in [read(number)[name]]
        ),
        folder / "data",
    )
    return Prometheus(folder / "prometheus", {}, data=folder / "data", lookback=LOOKBACK)


def gauge(metric: Metric, found: dict[tuple[str, ...], float]) -> Family:
    """One gauge as the exporter serves it."""
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in found.items():
        family.add_metric(labels, value)
    return family


def test_behind_is_absent_where_it_is_not_known(tmp_path: Path) -> None:
    """Neither zero without a confirmed sync, nor less than nothing where the confirmed one is known first."""
    published = {("well", "s:1"): 7.0, ("behind", "s:2"): 7.0, ("unseen", "s:3"): 7.0, ("late", "s:4"): 6.0}
    confirmed = {("well", "s:1"): 7.0, ("behind", "s:2"): 4.0, ("late", "s:4"): 7.0, ("beside", "s:5"): 7.0}
    with little(
        tmp_path, lambda _: {"a": [gauge(names.PUBLISHED, published), gauge(names.CONFIRMED, confirmed)]}
    ) as prometheus:
        assert values(prometheus, "Sent, and seen to run", SCALE_NOW) == {"well": 0.0, "behind": 3.0}


def test_rollouts_of_several_hosts_are_added(tmp_path: Path) -> None:
    """Each exporter knows the ranks of its host only."""

    def read(number: int) -> dict[str, list[Family]]:
        hosts = {}
        for name, policy, each in (("a", "current", 15), ("b", "current", 30), ("c", "stale", 45)):
            counter = CounterMetricFamily(names.ROLLOUTS.name, names.ROLLOUTS.help, labels=names.ROLLOUTS.labels)
            counter.add_metric(("one", policy), each * number)
            hosts[name] = [counter]
        return hosts

    with little(tmp_path, read) as prometheus:
        assert values(prometheus, "Rollouts by policy", SCALE_NOW) == {
            "current": pytest.approx(3.0),
            "stale": pytest.approx(3.0),
        }


def test_remedies(day: Prometheus) -> None:
    """What they did, with what came of it, and what it cost a sync; nothing of a run without them."""
    assert values(day, "Remedies", at("07:58:30")).keys() == {
        "continue_stale done",
        "publish done",
        "timeout done",
        "validate done",
    }
    assert values(day, "Remedies", State.HEALTHY).keys() == {"publish done", "timeout done", "validate done"}
    assert values(day, "Seconds of remedies", State.HEALTHY) == {
        "publish": pytest.approx(0.003, rel=0.1),
        "validate": pytest.approx(0.04, rel=0.1),
    }
    uid, panel = panel_of("Remedies")
    assert shown(day, uid, panel, State.STUCK, {**EVERYTHING, "run": [GRPO]}).frames == []


def test_runs_that_go_on_with_stale_weights(day: Prometheus) -> None:
    """Beside the others, with the colour of a warning; a run that does not use the remedy has no number."""
    uid, panel = panel_of("Runs")
    for state, expected in ((State.FAILING, {GRPO: 1.0, PPO: None}), (State.HEALTHY, None)):
        [table] = shown(day, uid, panel, state).frames
        columns = {field.title: field for field in table.fields}
        assert ("Stale" in columns) == (expected is not None)
        if expected is not None:
            assert dict(zip(columns["Run"].values, columns["Stale"].values, strict=True)) == expected
            assert threshold_colour(1.0, columns["Stale"].config) == colour(WARN)
            assert threshold_colour(0.0, columns["Stale"].config) != colour(WARN)


def test_a_server_that_was_left_paused(tmp_path: Path) -> None:
    """It is a state of its own, worse than not ready, also when no run lives that asks for it."""
    attempts = CounterMetricFamily(names.ATTEMPTS.name, names.ATTEMPTS.help, labels=names.ATTEMPTS.labels)
    for server in ("s:1", "s:2", "s:3", "s:4"):
        attempts.add_metric(("one", server, "disk", "success"), 1)
    families = [
        attempts,
        gauge(names.SERVER_UP, {("s:2",): 1.0, ("s:3",): 0.0, ("s:4",): 1.0}),
        gauge(names.SERVER_READY, {("s:2",): 0.0}),
        gauge(names.SERVER_LEFT_PAUSED, {("one", "s:1"): 1.0, ("one", "s:4"): 0.0}),
    ]
    with little(tmp_path, lambda _: {"a": families}) as prometheus:
        states = values(prometheus, "State of each server", SCALE_NOW)
        assert states == {"s:1": 4.0, "s:2": 3.0, "s:3": 5.0, "s:4": 1.0}
        assert values(prometheus, "Server", SCALE_NOW) == {"s:3": 5.0}


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
