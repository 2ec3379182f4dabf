"""Was a server left paused? Only when its trainer is gone, or could not continue it, and it is seen not to be ready."""

import pytest

from sglang_telemetry.events import Remedied
from sglang_telemetry.names import Action, Outcome
from sglang_telemetry.server_truth.paused import Paused, gone, left, looked, note
from tests.sinks import START, remedied, who

PAUSED = remedied(who(), Action.PAUSE)
RELEASED = remedied(who(), Action.RELEASE)


def after(*events: Remedied, ended: bool = False) -> dict[str, Paused]:
    """What is known after these, and after the end of the process."""
    known: dict[str, Paused] = {}
    for event in events:
        note(known, event)
    if ended:
        gone(known, who())
    return known


def test_left_by_a_process_that_is_gone() -> None:
    """It is told once, and lasts until the server is ready."""
    known = after(PAUSED, ended=True)
    assert looked(known, ready=False, began_at=START + 20) == ("grpo",)
    assert looked(known, ready=False, began_at=START + 25) == ()
    assert left(known) == ("grpo",)
    assert looked(known, ready=True, began_at=START + 30) == ()
    assert left(known) == ()
    assert looked(known, ready=False, began_at=START + 35) == ()


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        ((), True),
        ((PAUSED,), False),
        ((PAUSED, RELEASED), True),
        ((PAUSED, remedied(who(), Action.RELEASE, Outcome.SKIPPED)), True),
        ((remedied(who(), Action.PAUSE, Outcome.FAILED),), True),
        ((PAUSED, remedied(who(run="other"), Action.RELEASE)), True),
        ((remedied(who(), Action.RELEASE, Outcome.FAILED),), True),
    ],
)
def test_not_left(events: tuple[Remedied, ...], ended: bool) -> None:
    """Somebody else paused it, a trainer is in the middle of its sync, or all was undone."""
    known = after(*events, ended=ended)
    assert looked(known, ready=False, began_at=START + 20) == ()
    assert left(known) == ()


def test_left_by_a_trainer_that_could_not_continue_it() -> None:
    """It lives, and rollouts hang all the same."""
    known = after(PAUSED, remedied(who(), Action.RELEASE, Outcome.FAILED))
    assert looked(known, ready=False, began_at=START + 20) == ("grpo",)


def test_another_process_of_that_run_says_nothing() -> None:
    """Rank 1 ends first."""
    known = after(PAUSED)
    assert not gone(known, who(1))
    assert looked(known, ready=False, began_at=START + 20) == ()


@pytest.mark.parametrize("ready", [None, True])
def test_only_a_server_that_says_so_is_paused(ready: bool | None) -> None:
    """One that does not tell is not called paused."""
    known = after(PAUSED, ended=True)
    assert looked(known, ready=ready, began_at=START + 20) == ()
    assert left(known) == ()


def test_a_look_from_before_the_pause_says_nothing_of_it() -> None:
    """It was ready then."""
    known = after(PAUSED, ended=True)
    looked(known, ready=True, began_at=START)
    assert looked(known, ready=False, began_at=START + 20) == ("grpo",)
