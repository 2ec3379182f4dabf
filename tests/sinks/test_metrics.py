"""The metrics, as a scrape sees them."""

import io
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from sglang_telemetry import names
from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    Checkpoint,
    Event,
    ProcessLost,
    ProcessUnwatched,
    RolloutsSeen,
    Target,
    TelemetryError,
    WatchedPath,
)
from sglang_telemetry.exporter.status import RecentNews
from sglang_telemetry.journal.format import decode, encode
from sglang_telemetry.names import Action, Applied, Component, Exit, Phase, Result
from sglang_telemetry.sinks.log import LogSink
from sglang_telemetry.spans import spans_of
from tests.sinks import (
    SERVER,
    START,
    begun,
    ended,
    entered,
    failed,
    inspected,
    record,
    remedied,
    resolved,
    seen,
    started,
    who,
)
from tests.sinks.scrape import TARGET_LABELS, Scrape


def lost(rank: int, result: Result | None = Result.FAILURE, how: Exit = Exit.LOST) -> ProcessLost:
    """A trainer vanished."""
    return ProcessLost(identity=who(rank), at=START + 12, how=how, result=result)


FOLDER = Checkpoint(path="/w", files=1, bytes=10, free_bytes=20, free_inodes=30, read_only=False, fs_type="tmpfs")


def everything() -> Scrape:
    """A run in which all families have a sample."""
    remedies = ("validate", "on_failure")
    scrape = Scrape(started(who(0), versions={"torch": "2"}, remedies=remedies), started(who(1)))
    for number, make in enumerate((record, failed, record), 1):
        at = START + 100 * number
        for rank in (0, 1):
            scrape.feed(begun(who(rank), number, at=at), make(who(rank), number, at=at))
    scrape.feed(
        record(who(0), 4, at=START + 400, checkpoint=FOLDER),
        begun(who(0), 5, at=START + 500),
        entered(who(0), Phase.REQUEST, 5),
        TelemetryError(identity=None, component=Component.JOURNAL, text="x", count=3, at=START + 501),
        ended(who(2)),
        seen(
            at=START + 502,
            restarted=True,
            current={"grpo": True},
            confirmed={"grpo": 4},
            confirmed_of={"grpo": "one"},
            left_paused=("ppo",),
        ),
        remedied(who(0), Action.VALIDATE),
        inspected(who(0), 4),
        resolved(who(0), 4),
        RolloutsSeen(identity=who(0), at=START + 503, sequence=4, counts={"current": 2}, aborted=1),
        WatchedPath(at=START + 504, writable=True, ages={"node-2": 3.0}),
    )
    return scrape


def test_nothing_before_the_first_event() -> None:
    """All families are announced, none has a sample."""
    scrape = Scrape()
    families = list(scrape.registry.collect())
    assert [family.name for family in families] == [metric.name for metric in names.METRICS]
    assert [family.samples for family in families] == [[]] * len(families)


def test_failures_exist_at_zero_before_the_first() -> None:
    """All 17 causes of the target, or increase() would miss the first failure."""
    scrape = Scrape(started(who(0)))
    assert len(FailureCause) == 17
    assert scrape.series("failures_total") == {(cause.value, "grpo", SERVER, "disk"): 0.0 for cause in FailureCause}
    assert scrape.series("attempts_total") == {(result.value, "grpo", SERVER, "disk"): 0.0 for result in Result}
    assert scrape.series("process_exits_total") == {(how.value, "grpo"): 0.0 for how in Exit}
    assert scrape.series("telemetry_errors_total") == {(component.value,): 0.0 for component in Component}


def test_failures_of_a_target_that_shows_late_exist_at_its_first_sync() -> None:
    """The engine did not say its address: the series are there from the start of the first sync."""
    scrape = Scrape(started(who(0), target=Target()))
    assert scrape.series("failures_total") == {}
    scrape.feed(begun(who(0)))
    assert set(scrape.series("failures_total").values()) == {0.0}
    assert len(scrape.series("failures_total")) == 17


def test_two_ranks_one_failure() -> None:
    """All ranks of a sync fail together; it is counted once, by the coordinator."""
    scrape = Scrape(*(started(who(rank)) for rank in (0, 1)), *(begun(who(rank)) for rank in (0, 1)))
    scrape.feed(failed(who(1), cause=FailureCause.PEER), failed(who(0)))
    assert scrape.failures(FailureCause.SERVER_ERROR) == 1.0
    assert scrape.failures(FailureCause.PEER) == 0.0
    assert scrape.value("attempts_total", **TARGET_LABELS, result="failure") == 1.0
    assert scrape.value("duration_seconds_count", **TARGET_LABELS, result="failure") == 1.0
    assert sum(scrape.series("failures_total").values()) == 1.0


def test_success() -> None:
    """Duration, phases, stamps, version and size of one sync of 4 s."""
    checkpoint = Checkpoint(path="/w", files=1, bytes=1000, free_bytes=5000)
    scrape = Scrape(started(who(0)), begun(who(0)), record(who(0), checkpoint=checkpoint))
    assert scrape.value("duration_seconds_sum", **TARGET_LABELS, result="success") == 4.0
    assert scrape.value("duration_seconds_bucket", **TARGET_LABELS, result="success", le="2.5") == 0.0
    assert scrape.value("duration_seconds_bucket", **TARGET_LABELS, result="success", le="5.0") == 1.0
    assert scrape.value("duration_seconds_bucket", **TARGET_LABELS, result="success", le="+Inf") == 1.0
    assert scrape.series("phase_duration_seconds_sum") == {
        ("setup", "grpo"): 1.0,
        ("request", "grpo"): 2.0,
        ("barrier", "grpo"): 1.0,
    }
    assert scrape.series("rank_wait_seconds_sum") == {("0", "grpo"): 1.0}
    assert scrape.series("last_start_timestamp_seconds") == {("0", "grpo"): START + 10}
    assert scrape.series("last_success_timestamp_seconds") == {("grpo", SERVER): START + 14}
    assert scrape.series("last_failure_timestamp_seconds") == {}
    assert scrape.series("published_version") == {("grpo", SERVER): 1.0}
    assert scrape.series("payload_bytes") == {("grpo",): 1000.0}
    assert scrape.series("shared_path_free_bytes") == {("grpo",): 5000.0}
    assert scrape.series("timeout_seconds") == {("grpo", SERVER): 60.0}


def test_failure_has_a_stamp_and_publishes_nothing() -> None:
    """The version that the server runs stays the one before."""
    scrape = Scrape(started(who(0)), record(who(0), 1), failed(who(0), 2, at=START + 20))
    assert scrape.series("last_failure_timestamp_seconds") == {("server_error", "grpo", SERVER): START + 24}
    assert scrape.series("published_version") == {("grpo", SERVER): 1.0}


def test_failure_with_new_weights_publishes() -> None:
    """Status codes lie both ways: what counts is whether the server took them."""
    scrape = Scrape(started(who(0)), failed(who(0), 2, weights_applied=Applied.YES))
    assert scrape.series("published_version") == {("grpo", SERVER): 2.0}


def test_broken_checkpoint_is_no_payload() -> None:
    """The size of half a checkpoint says nothing."""
    checkpoint = Checkpoint(path="/w", files=1, bytes=7, free_bytes=0, fault="truncated")
    scrape = Scrape(started(who(0)), failed(who(0), checkpoint=checkpoint))
    assert scrape.series("payload_bytes") == {}
    assert scrape.series("shared_path_free_bytes") == {("grpo",): 0.0}


def test_retry_is_another_attempt() -> None:
    """Three attempts, the last one good: two failed attempts, no failed sync."""
    scrape = Scrape(started(who(0)), record(who(0), attempts=3))
    assert scrape.value("attempts_total", **TARGET_LABELS, result="failure") == 2.0
    assert scrape.value("attempts_total", **TARGET_LABELS, result="success") == 1.0
    assert sum(scrape.series("failures_total").values()) == 0.0


def test_cancelled_is_no_failure() -> None:
    """A stop that was asked for is an attempt of its own kind."""
    scrape = Scrape(started(who(0)), record(who(0), result=Result.CANCELLED, weights_applied=Applied.UNKNOWN))
    assert scrape.value("attempts_total", **TARGET_LABELS, result="cancelled") == 1.0
    assert sum(scrape.series("failures_total").values()) == 0.0
    assert scrape.series("last_success_timestamp_seconds") == {}


def test_failure_without_a_cause_is_unknown() -> None:
    """It is counted all the same."""
    scrape = Scrape(started(who(0)), failed(who(0), cause=None))
    assert scrape.failures(FailureCause.UNKNOWN) == 1.0


def test_active_appears_and_disappears() -> None:
    """One phase at a time while a sync runs, none when it is over, nothing when the process is."""
    scrape = Scrape(started(who(0)))
    seen: list[tuple[dict[Any, float], dict[Any, float]]] = []
    for event in (begun(who(0)), entered(who(0), Phase.REQUEST), record(who(0)), ended(who(0))):
        scrape.feed(event)
        seen.append((scrape.series("active"), scrape.series("active_phase")))
    assert seen == [
        ({("0", "grpo"): 1.0}, {("setup", "0", "grpo"): 1.0}),
        ({("0", "grpo"): 1.0}, {("request", "0", "grpo"): 1.0}),
        ({("0", "grpo"): 0.0}, {}),
        ({}, {}),
    ]


def test_phase_without_a_sync_is_ignored() -> None:
    """The line of the sync's start was lost: no phase is claimed to run."""
    scrape = Scrape(started(who(0)), entered(who(0), Phase.SAVE))
    assert scrape.series("active_phase") == {}


@pytest.mark.parametrize(
    ("last", "up", "exits"),
    [
        (None, 1.0, {}),
        (ended(who(0), Exit.CLEAN), None, {"clean": 1.0}),
        (ended(who(0), Exit.FAILED), 0.0, {"failed": 1.0}),
        (lost(0, None), 0.0, {"lost": 1.0}),
        (lost(0, None, Exit.FAILED), 0.0, {"failed": 1.0}),
        (lost(0, Result.CANCELLED, Exit.CLEAN), None, {"clean": 1.0}),
        (ProcessUnwatched(identity=who(0), at=START), None, {}),
    ],
)
def test_process_up(last: Event | None, up: float | None, exits: dict[str, float]) -> None:
    """1 while it lives, 0 after it failed or vanished; absent after a clean end and where it cannot be known."""
    scrape = Scrape(started(who(0)), *([last] if last else []))
    assert scrape.value("process_up", run="grpo", rank="0") == up
    assert scrape.series("process_exits_total") == {(how.value, "grpo"): exits.get(how.value, 0.0) for how in Exit}


def test_process_up_of_a_restart() -> None:
    """The process that lives speaks for its rank, not the one before it."""
    scrape = Scrape(started(who(0)), lost(0, None), started(who(0, run_id="two", pid=200), at=START + 50))
    assert scrape.series("process_up") == {("0", "grpo"): 1.0}


def test_end_is_counted_once() -> None:
    """A good-bye and a loss of the same process are one exit."""
    scrape = Scrape(started(who(0)), ended(who(0), Exit.FAILED), lost(0))
    assert scrape.series("process_exits_total") == {
        ("clean", "grpo"): 0.0,
        ("failed", "grpo"): 1.0,
        ("lost", "grpo"): 0.0,
    }


def test_lost_inside_a_sync() -> None:
    """The coordinator's sync failed with trainer_lost; another rank's loss is an exit and no second failure."""
    scrape = Scrape(*(started(who(rank)) for rank in (0, 1)), *(begun(who(rank)) for rank in (0, 1)))
    scrape.feed(lost(1))
    assert scrape.failures(FailureCause.TRAINER_LOST) == 0.0
    scrape.feed(lost(0))
    assert scrape.failures(FailureCause.TRAINER_LOST) == 1.0
    assert scrape.value("attempts_total", **TARGET_LABELS, result="failure") == 1.0
    assert scrape.series("last_failure_timestamp_seconds") == {("trainer_lost", "grpo", SERVER): START + 12}
    assert scrape.value("process_exits_total", run="grpo", how="lost") == 2.0
    assert scrape.series("active") == {}


@pytest.mark.parametrize("result", [None, Result.CANCELLED])
def test_lost_without_a_failed_sync(result: Result | None) -> None:
    """Outside of a sync, or stopped on purpose: no failure."""
    scrape = Scrape(started(who(0)), *([begun(who(0))] if result else []), lost(0, result))
    assert sum(scrape.series("failures_total").values()) == 0.0
    expected = 1.0 if result else 0.0
    assert scrape.value("attempts_total", **TARGET_LABELS, result="cancelled") == expected


def test_expected_interval() -> None:
    """The median of the starts seen; absent before the second."""
    scrape = Scrape(started(who(0)))
    assert scrape.series("expected_interval_seconds") == {}
    for number, at in enumerate((0, 100, 200, 1000)):
        scrape.feed(begun(who(0), number, at=START + at), record(who(0), number, at=START + at))
    assert scrape.series("expected_interval_seconds") == {("grpo",): 100.0}


def test_expected_interval_given() -> None:
    """What the user says counts, from the start."""
    scrape = Scrape(started(who(0), expected_interval_seconds=300.0))
    scrape.feed(*(begun(who(0), number, at=START + 10 * number) for number in range(5)))
    assert scrape.series("expected_interval_seconds") == {("grpo",): 300.0}


def test_step_share() -> None:
    """A sync of 4 s, the next one begins 16 s after it began: a quarter."""
    scrape = Scrape(started(who(0)), begun(who(0), 1), record(who(0), 1))
    assert scrape.series("step_share_ratio") == {}
    scrape.feed(begun(who(0), 2, at=START + 26))
    assert scrape.series("step_share_ratio") == {("grpo",): 0.25}


def test_clock_set_back_makes_no_negative_interval() -> None:
    """The wall clock went back between two syncs."""
    scrape = Scrape(started(who(0)), begun(who(0), 1), record(who(0), 1), begun(who(0), 2, at=START - 3600))
    assert scrape.series("expected_interval_seconds") == {}
    assert scrape.series("step_share_ratio") == {}


def test_run_id_agreed_on_after_the_start() -> None:
    """The process that started under another run id is that process, not a second one."""
    scrape = Scrape(started(who(0, run_id="before")), begun(who(0)), record(who(0)), ended(who(0)))
    assert [key[1] for key in scrape.sink.tally.processes] == ["one"]
    assert scrape.value("process_exits_total", run="grpo", how="clean") == 1.0
    assert scrape.series("process_up") == {}


def test_head_of_a_further_segment_is_no_start() -> None:
    """A rotated journal says again whose it is; that resets nothing."""
    scrape = Scrape(started(who(0)), begun(who(0)), started(who(0)))
    assert scrape.series("active") == {("0", "grpo"): 1.0}


def test_run_info() -> None:
    """The random run id stands here and nowhere else."""
    scrape = everything()
    labels = {"run": "grpo", "run_id": "one", "engine": "Engine", "world_size": "2", "host": "node-1"}
    assert scrape.value("run_info", **labels, versions="torch=2") == 1.0
    assert scrape.value("run_info", **labels, versions="") == 1.0
    for family in scrape.registry.collect():
        for sample in family.samples:
            assert ("run_id" in sample.labels) == (sample.name == "weight_sync_run_info")
    scrape.feed(ended(who(0)), ended(who(1)))
    assert scrape.series("run_info") == {}


def test_telemetry_errors_add_up() -> None:
    """An error that stands for more counts as many."""
    scrape = Scrape(started(who(0)))
    for count in (1, 4):
        scrape.feed(TelemetryError(identity=who(0), component=Component.JOURNAL, text="x", count=count))
    assert scrape.value("telemetry_errors_total", component="journal") == 5.0


def test_restarted_run_keeps_counters() -> None:
    """A counter never goes backwards because a trainer was started again."""
    again = who(0, run_id="two", pid=200)
    scrape = Scrape(started(who(0)), failed(who(0)), ended(who(0), Exit.FAILED))
    scrape.feed(started(again, at=START + 200), failed(again, 1, at=START + 210))
    assert scrape.failures(FailureCause.SERVER_ERROR) == 2.0
    assert scrape.value("process_exits_total", run="grpo", how="failed") == 1.0
    assert scrape.series("process_up") == {("0", "grpo"): 1.0}


def test_forget_drops_a_run() -> None:
    """All series of a run whose processes ended long ago go; those of other runs and our own errors stay."""
    other = who(0, run="ppo", pid=300)
    scrape = Scrape(started(who(0)), begun(who(0)), failed(who(0)), ended(who(0), at=START + 100))
    scrape.feed(started(other), begun(other), record(other))
    scrape.feed(TelemetryError(identity=None, component=Component.LOG, text="x"))
    tally = scrape.sink.tally
    assert tally.forget(ended_before=START + 100) is False
    assert tally.forget(ended_before=START + 101) is True
    assert tally.forget(ended_before=START + 101) is False
    samples = [sample for family in scrape.registry.collect() for sample in family.samples]
    assert {sample.labels.get("run") for sample in samples} == {"ppo", None}
    assert scrape.value("telemetry_errors_total", component="log") == 1.0


def test_forget_keeps_a_run_of_which_a_process_is_left() -> None:
    """Its counters go on."""
    scrape = Scrape(started(who(0)), failed(who(0)), ended(who(0)), started(who(1)))
    scrape.sink.tally.forget(ended_before=START + 1000)
    assert scrape.failures(FailureCause.SERVER_ERROR) == 1.0
    assert [key[2] for key in scrape.sink.tally.processes] == [1]


def test_exemplar_in_openmetrics() -> None:
    """Each bucket leads to the last trace that fell into it; the labels keep within the 128 characters allowed."""
    scrape = everything()
    text = openmetrics.generate_latest(scrape.registry).decode()
    exemplars = [
        (sample.labels["le"], sample.exemplar)
        for family in openmetrics_parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.exemplar is not None and sample.labels.get("result") == "success"
    ]
    ((bound, exemplar),) = exemplars
    assert (bound, exemplar.labels, exemplar.value) == ("5.0", {"trace_id": f"{4:032x}"}, 4.0)
    assert float(exemplar.timestamp) == START + 404
    assert sum(len(name) + len(value) for name, value in exemplar.labels.items()) <= 128


def test_text_format_parses() -> None:
    """Every family is served under its name, kind and help, with exactly its labels."""
    text = generate_latest(everything().registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in names.METRICS:
        family = families.get(metric.served_as) or families[metric.name]
        assert family.documentation == metric.help
        assert family.type == {"info": "gauge"}.get(metric.kind, metric.kind)
        assert family.samples
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
            assert not (metric.kind == "counter" and sample.value < 0)


def test_odd_names_are_escaped() -> None:
    """A run may be called anything."""
    run = 'a"b\\c\nd 模'
    identity = replace(who(0), run=run)
    scrape = Scrape(started(identity), record(identity))
    text = generate_latest(scrape.registry).decode()
    runs = {
        sample.labels["run"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "run" in sample.labels
    }
    assert runs == {run}


def test_promtool_accepts_it() -> None:
    """Prometheus's own linter finds nothing to say."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=generate_latest(everything().registry),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "", "")


def test_records_of_other_ranks_count_their_wait_only() -> None:
    """Nothing of the sync itself."""
    scrape = Scrape(started(who(1)), begun(who(1)), record(who(1)))
    samples = {
        sample.name
        for family in scrape.registry.collect()
        for sample in family.samples
        if sample.value and not sample.name.endswith("_info")
    }
    assert samples == {
        "weight_sync_rank_wait_seconds_bucket",
        "weight_sync_rank_wait_seconds_count",
        "weight_sync_rank_wait_seconds_sum",
        "weight_sync_last_start_timestamp_seconds",
        "weight_sync_process_start_timestamp_seconds",
        "weight_sync_process_up",
    }


def test_stamps_of_a_process() -> None:
    """When it was started, by rank, and when one last ended in each way; a restart moves the start forward only."""
    scrape = Scrape(started(who(0)), started(who(1), at=START + 1), lost(1), ended(who(0), at=START + 30))
    starts = {("0", "grpo"): START, ("1", "grpo"): START + 1}
    assert scrape.series("process_start_timestamp_seconds") == starts
    exits = {("lost", "grpo"): START + 12, ("clean", "grpo"): START + 30}
    assert scrape.series("process_last_exit_timestamp_seconds") == exits
    scrape.feed(started(who(1, pid=7), at=START + 40), lost(1))  # told late: it is the end of the process before
    assert scrape.series("process_start_timestamp_seconds") == starts | {("1", "grpo"): START + 40}
    assert scrape.series("process_last_exit_timestamp_seconds") == exits


def test_phases_of_the_last_sync() -> None:
    """In seconds, of the coordinator alone; gone with its process."""
    scrape = Scrape(started(who(0)), started(who(1)), begun(who(0)), record(who(0)), record(who(1)))
    phases = {("setup", "grpo"): 1.0, ("request", "grpo"): 2.0, ("barrier", "grpo"): 1.0}
    assert scrape.series("last_phase_duration_seconds") == phases
    scrape.feed(ended(who(0)))
    assert scrape.series("last_phase_duration_seconds") == {}


def test_since_when_a_phase_is_open() -> None:
    """The start of the phase, not of the sync; gone with the sync."""
    scrape = Scrape(started(who(0)), begun(who(0)))
    assert scrape.series("active_phase_start_timestamp_seconds") == {("setup", "0", "grpo"): START + 10}
    scrape.feed(entered(who(0), Phase.REQUEST, offset_ns=3 * 10**9))
    assert scrape.series("active_phase_start_timestamp_seconds") == {("request", "0", "grpo"): START + 13}
    scrape.feed(record(who(0)))
    assert scrape.series("active_phase_start_timestamp_seconds") == {}


def test_phase_of_an_earlier_process_is_not_left_beside_the_new_ones() -> None:
    """Nobody can tell whether the first one lives; the rank is in the phase of the one that started last."""
    scrape = Scrape(
        started(who(0)), begun(who(0)), entered(who(0), Phase.SAVE), ProcessUnwatched(identity=who(0), at=START)
    )
    later = who(0, pid=7)
    scrape.feed(started(later, at=START + 90), begun(later, at=START + 100), entered(later, Phase.REQUEST))
    assert scrape.series("active_phase") == {("request", "0", "grpo"): 1.0}
    assert scrape.series("active_phase_start_timestamp_seconds") == {("request", "0", "grpo"): START + 101}
    scrape.feed(record(later))
    assert scrape.series("active_phase") == {}


def test_time_of_the_last_error_of_ours() -> None:
    """By component; outlives every run; one that only makes the counter exist leaves none."""
    scrape = Scrape(TelemetryError(component=Component.JOURNAL, text="", count=0, at=START))
    assert scrape.series("telemetry_last_error_timestamp_seconds") == {}
    error = TelemetryError(component=Component.JOURNAL, text="x", at=START + 5)
    scrape.feed(started(who(0)), error, replace(error, at=START + 3), ended(who(0)))
    scrape.sink.tally.forget(ended_before=START + 1000)
    assert scrape.series("telemetry_last_error_timestamp_seconds") == {("journal",): START + 5}


SERVERS = ("up", "ready", "info", "restarts_total", "last_restart_timestamp_seconds", "current")


def servers(scrape: Scrape) -> dict[str, dict[tuple[str, ...], float]]:
    """All that is said of servers."""
    return {name: found for name in SERVERS if (found := scrape.series(f"server_{name}"))}


def test_server_that_was_seen() -> None:
    """Restarts are born at 0; what is unknown is absent."""
    scrape = Scrape(started(who(0)), seen())
    assert servers(scrape) == {
        "up": {(SERVER,): 1.0},
        "ready": {(SERVER,): 1.0},
        "info": {(SERVER, "0.5.23"): 1.0},
        "restarts_total": {(SERVER,): 0.0},
    }
    scrape.feed(seen(ready=None, version=None, restarted=True, current={"grpo": False}, at=START + 60))
    assert servers(scrape) == {
        "up": {(SERVER,): 1.0},
        "restarts_total": {(SERVER,): 1.0},
        "last_restart_timestamp_seconds": {(SERVER,): START + 60},
        "current": {("grpo", SERVER): 0.0},
    }
    scrape.feed(seen(up=False, ready=None, at=START + 70))
    assert servers(scrape)["up"] == {(SERVER,): 0.0}
    assert "current" not in servers(scrape)


def test_server_without_a_live_coordinator_that_targets_it() -> None:
    """Only the counts are left; another run's server is nobody's business here."""
    scrape = Scrape(started(who(0)), started(who(1)), seen(restarted=True), ended(who(0)), seen(server="other:1"))
    assert servers(scrape).keys() == {"restarts_total", "last_restart_timestamp_seconds"}


def test_server_of_two_runs() -> None:
    """The gauges go with the last run; what a run that ended synced is not said any more."""
    scrape = Scrape(
        started(who(0)), started(who(0, run="ppo")), seen(current={"grpo": True, "ppo": False, "dpo": True})
    )
    assert scrape.series("server_current") == {("grpo", SERVER): 1.0, ("ppo", SERVER): 0.0}
    scrape.feed(ended(who(0)))
    assert scrape.series("server_current") == {("ppo", SERVER): 0.0}
    scrape.feed(ended(who(0, run="ppo")))
    assert servers(scrape).keys() == {"restarts_total"}


def test_server_is_forgotten_with_its_last_run() -> None:
    """As the run's own counts are."""
    scrape = Scrape(started(who(0)), started(who(0, run="ppo"), target=Target(server="other:1")))
    scrape.feed(seen(restarted=True), seen(server="other:1", restarted=True), ended(who(0)))
    assert scrape.sink.tally.forget(ended_before=START + 1000)
    assert scrape.series("server_restarts_total") == {("other:1",): 1.0}
    assert scrape.series("server_last_restart_timestamp_seconds") == {("other:1",): START + 50}
    assert list(scrape.sink.tally.servers) == ["other:1"]


def test_other_sinks_have_nothing_to_say_of_it() -> None:
    """No line, no span, no failure; and as a line of a journal it comes back whole."""
    event = seen(restarted=True, current={"grpo": False})
    stream = io.StringIO()
    LogSink(stream=stream).emit(event)
    assert stream.getvalue() == ""
    assert spans_of(event) == ()
    recent = RecentNews()
    recent.emit(event)
    assert recent.lists() == ([], [], [])
    assert decode(encode(event)) == event


def test_sync_that_was_not_applied_is_counted_without_a_failures_stamp() -> None:
    """The page is that of the server that is not current; a claim that held is no failure."""
    scrape = Scrape(started(who(0)), begun(who(0)), record(who(0)), resolved(who(0)))
    assert scrape.failures(FailureCause.NOT_APPLIED) == 0
    scrape.feed(resolved(who(0), applied=Applied.NO), inspected(who(0), fault="a tensor is missing", incomplete=True))
    assert scrape.failures(FailureCause.NOT_APPLIED) == 2
    assert scrape.series("last_failure_timestamp_seconds") == {}


def test_confirmation_delay() -> None:
    """By what was claimed and what was found; what turned out to be applied is published."""
    scrape = Scrape(started(who(0)), begun(who(0)))
    scrape.feed(failed(who(0), weights_applied=Applied.UNKNOWN))
    assert scrape.series("published_version") == {}
    scrape.feed(resolved(who(0), claimed=Applied.UNKNOWN))
    assert scrape.series("published_version") == {("grpo", SERVER): 1.0}
    assert scrape.series("confirmation_delay_seconds_sum") == {("yes", "unknown", "grpo", SERVER): 3.0}


def test_unchanged_syncs_in_a_row() -> None:
    """Only such as follow a training; a change begins anew, and what is not known changes nothing."""
    scrape = Scrape(started(who(0)))
    assert scrape.series("unchanged_syncs") == {}
    for changes, expected in (
        ({"same": True}, 1.0),
        ({"same": True, "trained": None}, 2.0),
        ({"same": None}, 2.0),
        ({"same": True, "trained": False}, 0.0),
        ({"same": False}, 0.0),
    ):
        scrape.feed(inspected(who(0), **changes))
        assert scrape.series("unchanged_syncs") == {("grpo",): expected}


def test_rollouts_by_policy() -> None:
    """All ranks' answers are added up, and each policy has a series."""
    scrape = Scrape()
    for rank in (0, 1):
        scrape.feed(RolloutsSeen(identity=who(rank), at=START, sequence=1, counts={"stale": 2, "mixed": 1}, aborted=1))
    assert scrape.series("rollouts_total") == {
        ("current", "grpo"): 0.0,
        ("stale", "grpo"): 4.0,
        ("mixed", "grpo"): 2.0,
        ("unknown", "grpo"): 0.0,
    }
    assert scrape.series("rollouts_aborted_total") == {("grpo",): 2.0}


def test_shared_and_watched_folder() -> None:
    """What the last sync's file system is like, and how old the other hosts' files are."""
    scrape = everything()
    assert scrape.series("shared_path_free_inodes") == {("grpo",): 30.0}
    assert scrape.series("shared_path_writable") == {("grpo",): 1.0}
    assert scrape.series("shared_path_info") == {("tmpfs", "grpo"): 1.0}
    assert scrape.series("watched_path_writable") == {(): 1.0}
    assert scrape.series("watched_path_age_seconds") == {("node-2",): 3.0}


def test_confirmed_is_of_the_start_that_lives() -> None:
    """The sequences of a trainer that was started again begin anew."""
    before = seen(at=START + 50, confirmed={"grpo": 300}, confirmed_of={"grpo": "one"})
    again = replace(before, at=START + 250, confirmed={"grpo": 2}, confirmed_of={"grpo": "two"})
    scrape = Scrape(started(who(0)), before)
    labels = {"run": "grpo", "server": SERVER}
    assert scrape.value("confirmed_version", **labels) == 300.0
    scrape.feed(ended(who(0), at=START + 100), started(who(0, run_id="two", pid=7), at=START + 150))
    scrape.feed(replace(before, at=START + 200))
    assert scrape.value("confirmed_version", **labels) is None
    scrape.feed(again)
    assert scrape.value("confirmed_version", **labels) == 2.0
