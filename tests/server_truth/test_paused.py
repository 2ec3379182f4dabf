"""Was a server left paused? Only when its trainer is gone, or could not continue it, and it is seen not to be ready."""

from dataclasses import replace

import pytest

from sglang_telemetry.events import Remedied
from sglang_telemetry.names import Action, Outcome
from sglang_telemetry.server_truth.paused import Pauses
from tests.sinks import START, remedied, who

PAUSED = remedied(who(), Action.PAUSE)
RELEASED = remedied(who(), Action.RELEASE)


def after(*events: Remedied, ended: bool = False) -> Pauses:
    """What is known after these, and after the end of the process."""
    known = Pauses()
    for event in events:
        known.note(event)
    if ended:
        known.gone(who())
    return known


def test_left_by_a_process_that_is_gone() -> None:
    """It is told once, and lasts until the server is ready."""
    known = after(PAUSED, ended=True)
    assert known.looked(ready=False, began_at=START + 20) == ("grpo",)
    assert known.looked(ready=False, began_at=START + 25) == ()
    assert known.left() == ("grpo",)
    assert known.looked(ready=True, began_at=START + 30) == ()
    assert known.left() == ()
    assert known.looked(ready=False, began_at=START + 35) == ()


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        ((), True),
        ((PAUSED,), False),
        ((PAUSED, RELEASED), True),
        ((PAUSED, remedied(who(), Action.RELEASE, Outcome.SKIPPED)), True),
        ((remedied(who(), Action.PAUSE, Outcome.FAILED),), True),
        ((PAUSED, remedied(who(run="other"), Action.RELEASE)), True),
        ((PAUSED, RELEASED, remedied(who(), Action.RELEASE, Outcome.FAILED)), True),
    ],
)
def test_not_left(events: tuple[Remedied, ...], ended: bool) -> None:
    """Somebody else paused it, a trainer is in the middle of its sync, or all was undone."""
    known = after(*events, ended=ended)
    assert known.looked(ready=False, began_at=START + 20) == ()
    assert known.left() == ()


def test_left_by_a_trainer_that_could_not_continue_it() -> None:
    """It lives, and rollouts hang all the same."""
    known = after(PAUSED, remedied(who(), Action.RELEASE, Outcome.FAILED))
    assert known.looked(ready=False, began_at=START + 20) == ("grpo",)


def test_another_process_of_that_run_says_nothing() -> None:
    """Rank 1 ends first."""
    known = after(PAUSED)
    assert not known.gone(replace(who(1), pid=who().pid + 1))
    assert known.looked(ready=False, began_at=START + 20) == ()


@pytest.mark.parametrize("ready", [None, True])
def test_only_a_server_that_says_so_is_paused(ready: bool | None) -> None:
    """One that does not tell is not called paused."""
    known = after(PAUSED, ended=True)
    assert known.looked(ready=ready, began_at=START + 20) == ()
    assert known.left() == ()


def test_a_look_from_before_the_pause_says_nothing_of_it() -> None:
    """It was ready then."""
    known = after(PAUSED, ended=True)
    known.looked(ready=True, began_at=START)
    assert known.looked(ready=False, began_at=START + 20) == ("grpo",)


def test_left_by_a_pause_that_got_no_answer_and_could_not_be_ended() -> None:
    """The server may have taken it; nobody tries to end a pause that was refused."""
    known = after(remedied(who(), Action.PAUSE, Outcome.FAILED), remedied(who(), Action.RELEASE, Outcome.FAILED))
    assert known.looked(ready=False, began_at=START + 20) == ("grpo",)


def test_an_earlier_start_with_the_same_pid_says_nothing() -> None:
    """In a container each start has the same, and its loss may be told late."""
    known = after(PAUSED)
    assert not known.gone(replace(who(), run_id="another"))
    assert known.looked(ready=False, began_at=START + 20) == ()


@pytest.mark.parametrize("run", ["grpo", "ppo"])
def test_a_pause_that_is_read_after_what_ended_it(run: str) -> None:
    """Journals are read one after the other: that of the next start, or of another run, may come first."""
    later = remedied(who(run=run), Action.RELEASE)
    known = after(replace(later, at=PAUSED.at + 5), PAUSED, ended=True)
    assert known.looked(ready=False, began_at=START + 20) == ()


def test_a_pause_that_is_read_after_the_next_one_of_its_run() -> None:
    """The live trainer's counts, in whatever order the two are read."""
    alive = replace(who(), pid=who().pid + 1, run_id="another")
    known = after(replace(PAUSED, identity=alive, at=PAUSED.at + 5), PAUSED, ended=True)
    assert known.looked(ready=False, began_at=START + 20) == ()
    assert known.gone(alive)
    assert known.looked(ready=False, began_at=START + 25) == ("grpo",)


def test_a_live_trainer_in_its_sync_says_why_it_is_not_ready() -> None:
    """And ends the pause of the one that is gone with its own; when it goes too, both have left it."""
    known = after(PAUSED, replace(PAUSED, identity=who(run="ppo"), at=PAUSED.at + 5), ended=True)
    assert known.looked(ready=False, began_at=START + 20) == ()
    known.gone(who(run="ppo"))
    assert known.looked(ready=False, began_at=START + 25) == ("grpo", "ppo")


def test_a_trainer_that_pauses_what_was_left_takes_nothing_back() -> None:
    """It was told; it is over when generation goes on."""
    known = after(PAUSED, ended=True)
    known.looked(ready=False, began_at=START + 20)
    known.note(replace(PAUSED, identity=who(run="ppo"), at=START + 21))
    assert (known.looked(ready=False, began_at=START + 22), known.left()) == ((), ("grpo",))
    known.note(replace(RELEASED, identity=who(run="ppo"), at=START + 23))
    assert (known.left(), known.released()) == ((), ("grpo",))


def test_the_next_trainer_of_the_run_has_it_in_hand() -> None:
    """What was 1 is 0 then, and not gone; so it stays over its later pauses, until it is left again."""
    known = after(PAUSED, ended=True)
    known.looked(ready=False, began_at=START + 20)
    assert (known.left(), known.released()) == (("grpo",), ())
    alive = replace(who(), pid=who().pid + 1, run_id="another")
    for second in (21, 25):
        known.note(replace(PAUSED, identity=alive, at=START + second))
        assert known.looked(ready=False, began_at=START + second + 1) == ()
        assert (known.left(), known.released()) == ((), ("grpo",))
        known.note(replace(RELEASED, identity=alive, at=START + second + 2))
        assert (known.left(), known.released()) == ((), ("grpo",))
    known.note(replace(PAUSED, identity=alive, at=START + 30))
    assert known.gone(alive)
    assert known.looked(ready=False, began_at=START + 31) == ("grpo",)
    assert (known.left(), known.released()) == (("grpo",), ())
