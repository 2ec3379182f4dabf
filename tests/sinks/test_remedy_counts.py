"""What remedies did, as the metrics tell it."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_telemetry.events import Event, ProcessUnwatched
from sglang_telemetry.exporter import snapshot
from sglang_telemetry.names import REMEDIES, REMEDY_ACTIONS, REMEDY_SECONDS, STALE_SYNCS, Action, Exit, Outcome, Result
from sglang_telemetry.sinks.metrics import MetricsSink
from sglang_telemetry.sinks.tally import Tally
from tests.sinks import SERVER, START, ended, failed, inspected, record, remedied, seen, started, who
from tests.sinks.scrape import Scrape

STALE = Action.CONTINUE_STALE


def using(*remedies: str, rank: int = 0, run: str = "grpo") -> Event:
    """A trainer that asked for these."""
    return started(who(rank, run=run), remedies=remedies)


def test_series_of_what_was_asked_for_exist_at_zero_before_the_first() -> None:
    """All outcomes of all that these remedies can do, or increase() would miss the first; nothing of the others."""
    scrape = Scrape(using("pause", "validate"))
    actions = (*REMEDY_ACTIONS["pause"], *REMEDY_ACTIONS["validate"])
    assert scrape.series("remedies_total") == {
        (action.value, outcome.value, "grpo"): 0.0 for action in actions for outcome in Outcome
    }
    assert scrape.series("remedy_seconds_total") == {(action.value, "grpo"): 0.0 for action in actions}


def test_a_run_without_remedies_has_no_series() -> None:
    """They are off by default; a name that only a newer trainer knows is passed over."""
    scrape = Scrape(using(), using("tea", rank=1))
    for name in ("remedies_total", "remedy_seconds_total", "stale_syncs"):
        assert scrape.series(name) == {}


def test_what_they_did_and_how_long_it_took() -> None:
    """By action and outcome; the seconds of all outcomes together, also of one that was not announced."""
    scrape = Scrape(using("retry"))
    for outcome, seconds in ((Outcome.DONE, 1.5), (Outcome.FAILED, 0.25), (Outcome.FAILED, 0.25)):
        scrape.feed(remedied(who(0), Action.RETRY, outcome, duration_ns=round(seconds * 1e9)))
    scrape.feed(remedied(who(0), Action.PUBLISH))
    assert {labels: count for labels, count in scrape.series("remedies_total").items() if count} == {
        ("retry", "done", "grpo"): 1.0,
        ("retry", "failed", "grpo"): 2.0,
        ("publish", "done", "grpo"): 1.0,
    }
    assert scrape.series("remedy_seconds_total") == {
        ("retry", "grpo"): 2.0,
        ("wait", "grpo"): 0.0,
        ("flush", "grpo"): 0.0,
        ("publish", "grpo"): 0.5,
    }


def test_the_record_that_tells_them_again_counts_nothing() -> None:
    """Each was told at once; the sync's record holds them for those who read of the sync."""
    done = remedied(who(0), Action.VALIDATE)
    scrape = Scrape(using("validate"), done, record(who(0), remedies=(done.remedy,)))
    assert scrape.value("remedies_total", run="grpo", action="validate", outcome="done") == 1.0
    assert scrape.value("remedy_seconds_total", run="grpo", action="validate") == 0.5


def test_a_start_again_takes_nothing_back() -> None:
    """Neither a further segment's head nor another trainer of the same run; forgotten with the run."""
    scrape = Scrape(using("validate"), remedied(who(0), Action.VALIDATE), using("validate"), ended(who(0)))
    scrape.feed(started(who(0, run_id="two", pid=7), at=START + 200, remedies=("validate",)))
    assert scrape.value("remedies_total", run="grpo", action="validate", outcome="done") == 1.0
    assert scrape.value("remedy_seconds_total", run="grpo", action="validate") == 0.5
    scrape.feed(ended(who(0, run_id="two", pid=7), at=START + 300))
    scrape.sink.tally.forget(ended_before=START + 1000)
    assert scrape.series("remedies_total") == scrape.series("remedy_seconds_total") == {}


def test_stale_syncs_in_a_row() -> None:
    """Those over which the run went on: a success begins anew, whatever failed or was refused changes nothing."""
    scrape = Scrape(using("on_failure"))
    steps: tuple[tuple[Event, float], ...] = (
        (failed(who(0), 1), 0.0),
        (remedied(who(0), STALE), 1.0),
        (remedied(who(0), Action.VALIDATE), 1.0),
        (remedied(who(0), STALE, Outcome.REFUSED), 1.0),
        (record(who(0), 2, result=Result.CANCELLED), 1.0),
        (failed(who(0), 3), 1.0),
        (remedied(who(0), STALE), 2.0),
        (record(who(1), 4), 2.0),
        (record(who(0), 4), 0.0),
        (inspected(who(0), 4, same=True), 0.0),
    )
    assert scrape.series("stale_syncs") == {("grpo",): 0.0}
    for event, expected in steps:
        scrape.feed(event)
        assert scrape.series("stale_syncs") == {("grpo",): expected}


def test_stale_syncs_are_of_a_coordinator_that_uses_the_remedy() -> None:
    """Absent for one that does not, and for other ranks, whose trainer may ask for it as well."""
    scrape = Scrape(using("on_failure", rank=1), using("validate", run="ppo"))
    scrape.feed(record(who(1)), record(who(0, run="ppo")))
    assert scrape.series("stale_syncs") == {}


@pytest.mark.parametrize("how", Exit)
def test_stale_syncs_go_with_their_process(how: Exit) -> None:
    """Also where nobody can tell whether it lives they stay; the next start begins anew."""
    scrape = Scrape(using("on_failure"), remedied(who(0), STALE))
    scrape.feed(ProcessUnwatched(identity=who(0), at=START))
    assert scrape.series("stale_syncs") == {("grpo",): 1.0}
    scrape.feed(ended(who(0), how))
    assert scrape.series("stale_syncs") == {}
    scrape.feed(started(who(0, run_id="two", pid=7), at=START + 200, remedies=("on_failure",)))
    assert scrape.series("stale_syncs") == {("grpo",): 0.0}


def test_a_server_that_was_left_paused() -> None:
    """It is said while the trainer that paused it is gone, and until a look says otherwise; never 0."""
    scrape = Scrape(using(), seen(left_paused=("grpo", "ppo"), newly_left_paused=("grpo",)), ended(who(0)))
    assert scrape.series("server_left_paused") == {("grpo", SERVER): 1.0, ("ppo", SERVER): 1.0}
    scrape.feed(seen(at=START + 60, left_paused=("ppo",)))
    assert scrape.series("server_left_paused") == {("ppo", SERVER): 1.0}
    scrape.feed(seen(at=START + 70))
    assert scrape.series("server_left_paused") == {}


def test_a_server_that_was_left_paused_is_forgotten_with_the_last_run() -> None:
    """Nobody looks at it any more."""
    scrape = Scrape(using(), seen(left_paused=("grpo",)), ended(who(0)))
    scrape.sink.tally.forget(ended_before=START + 1000)
    assert scrape.series("server_left_paused") == {}


@pytest.mark.parametrize("seed", range(4))
def test_restarts_of_the_exporter_change_nothing(seed: int, tmp_path: Path) -> None:
    """Saved and loaded at random points, all is as if it had run all the time, to the nanosecond; no count sinks."""
    dice = random.Random(seed)
    unbroken, restarted, before = Tally(), Tally(), dict[tuple[str, ...], float]()
    events: list[Event] = [using("validate", "retry", "on_failure")]
    for sequence in range(1, 60):
        for _ in range(dice.randrange(4)):
            action, outcome = dice.choice(list(Action)), dice.choice(list(Outcome))
            events.append(remedied(who(0), action, outcome, sequence=sequence, duration_ns=dice.randrange(10**12)))
        events.append(dice.choice((record, failed))(who(0), sequence, at=START + sequence))
    for event in events:
        unbroken.add(event)
        restarted.add(event)
        if dice.random() < 0.2:
            snapshot.save(tmp_path, restarted, {})
            restarted = snapshot.load(tmp_path)[0]
        now = served(restarted)
        assert all(now[labels] >= value for labels, value in before.items())
        before = {labels: value for labels, value in now.items() if labels[0] != STALE_SYNCS.name}
    assert vars(restarted) == vars(unbroken)
    assert served(restarted) == served(unbroken)
    assert {labels[0] for labels in served(restarted)} == {
        REMEDIES.served_as,
        REMEDY_SECONDS.served_as,
        STALE_SYNCS.name,
    }


def served(tally: Tally) -> dict[tuple[str, ...], float]:
    """What a scrape reads of the remedies."""
    families = (REMEDIES.name, REMEDY_SECONDS.name, STALE_SYNCS.name)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in MetricsSink(tally=tally).collect()
        if family.name in families
        for sample in family.samples
    }


def test_a_server_that_a_remedy_names_is_one_of_the_runs() -> None:
    """Of several, before the first sync has ended: who dies in it may leave the second one paused."""
    scrape = Scrape(using())
    for server in (SERVER, "10.0.0.9:30000", "10.0.0.9:30000"):
        pause = remedied(who(0), Action.PAUSE)
        scrape.feed(replace(pause, target=replace(pause.target, server=server)))
    assert scrape.sink.tally.targets() == {SERVER, "10.0.0.9:30000"}
