"""Phases partition a call to the nanosecond, whatever the clocks do."""

import random

import pytest

from sglang_telemetry.events import PhaseSpan
from sglang_telemetry.names import Phase
from sglang_telemetry.testing.doubles import ManualClock
from sglang_telemetry.timeline import SystemClock, Timeline


class ScriptedClock:
    """A monotonic clock that says what a test tells it to, backwards too."""

    def __init__(self) -> None:
        self.now = 0

    def wall(self) -> float:
        """Always the same moment."""
        return 1_700_000_000.0

    def monotonic_ns(self) -> int:
        """What was set last."""
        return self.now


def span(phase: Phase, offset_ns: int, duration_ns: int) -> PhaseSpan:
    """One stretch of a sync."""
    return PhaseSpan(phase=phase, offset_ns=offset_ns, duration_ns=duration_ns)


def assert_partition(spans: tuple[PhaseSpan, ...], total_ns: int) -> None:
    """Each span begins where the one before ended, none is negative, and all of them are the whole."""
    at = 0
    for one in spans:
        assert one.offset_ns == at
        assert one.duration_ns >= 0
        at += one.duration_ns
    assert at == total_ns


def test_phases_of_one_call() -> None:
    """Marks cut the call; the first phase is setup, and the last one ends with the call."""
    clock = ManualClock()
    timeline = Timeline(clock)
    clock.advance(0.25)
    assert timeline.mark(Phase.SAVE) == 250_000_000
    clock.advance(1.5)
    assert timeline.mark(Phase.REQUEST) == 1_750_000_000
    assert timeline.phase is Phase.REQUEST
    clock.advance(3)
    assert timeline.finish() == (
        span(Phase.SETUP, 0, 250_000_000),
        span(Phase.SAVE, 250_000_000, 1_500_000_000),
        span(Phase.REQUEST, 1_750_000_000, 3_000_000_000),
    )


def test_mark_of_the_open_phase_changes_nothing() -> None:
    """Going where one is already is no new stretch."""
    clock = ManualClock()
    timeline = Timeline(clock)
    clock.advance(1)
    assert timeline.mark(Phase.SETUP) is None
    clock.advance(1)
    assert timeline.finish() == (span(Phase.SETUP, 0, 2_000_000_000),)


def test_phase_entered_twice_is_two_stretches() -> None:
    """A phase that comes back, such as the request of a retry, has a stretch of its own each time."""
    clock = ManualClock()
    timeline = Timeline(clock)
    for phase in (Phase.REQUEST, Phase.OTHER, Phase.REQUEST):
        timeline.mark(phase)
        clock.advance(1)
    assert [one.phase for one in timeline.finish()] == [Phase.SETUP, Phase.REQUEST, Phase.OTHER, Phase.REQUEST]


@pytest.mark.parametrize("seed", range(100))
def test_random_marks_partition_the_call(seed: int) -> None:
    """Whatever is marked and however the clock jumps: the phases sum to the call, to the nanosecond."""
    dice = random.Random(seed)
    clock = ScriptedClock()
    clock.now = dice.randrange(10**18)
    first = latest = clock.now
    timeline = Timeline(clock)
    for _ in range(dice.randrange(60)):
        clock.now += dice.choice((0, 1, -1, dice.randrange(10**12), -dice.randrange(10**12)))
        phase = dice.choice(list(Phase))
        if phase is not timeline.phase:
            latest = max(latest, clock.now)
        timeline.mark(phase)
    clock.now += dice.randrange(-(10**9), 10**9)
    latest = max(latest, clock.now)
    assert_partition(timeline.finish(), latest - first)


def test_clock_that_goes_backwards() -> None:
    """Time stands still until the clock is where it was; nothing becomes negative."""
    clock = ScriptedClock()
    clock.now = 1_000
    timeline = Timeline(clock)
    clock.now = 1_500
    assert timeline.mark(Phase.SAVE) == 500
    clock.now = 900
    assert timeline.mark(Phase.REQUEST) == 500
    clock.now = 1_700
    assert timeline.finish() == (span(Phase.SETUP, 0, 500), span(Phase.SAVE, 500, 0), span(Phase.REQUEST, 500, 200))


def test_wall_clock_set_back_by_an_hour() -> None:
    """Neither a duration nor the start changes when an administrator sets the clock in the middle."""
    clock = ManualClock(wall=1_700_000_000.0)
    timeline = Timeline(clock)
    clock.advance(2)
    clock.set_wall(clock.wall() - 3600)
    timeline.mark(Phase.REQUEST)
    clock.advance(1)
    spans = timeline.finish()
    assert timeline.started_at == 1_700_000_000.0
    assert spans == (span(Phase.SETUP, 0, 2_000_000_000), span(Phase.REQUEST, 2_000_000_000, 1_000_000_000))


def test_system_clock_goes_forward() -> None:
    """The clock that is used without a word partitions a real call too."""
    timeline = Timeline(SystemClock())
    timeline.mark(Phase.SAVE)
    spans = timeline.finish()
    assert_partition(spans, sum(one.duration_ns for one in spans))
    assert timeline.started_at > 1_700_000_000
