"""Marks on a monotonic clock that cut one call into phases which add up to it, to the nanosecond."""

import time
from typing import Protocol

from sglang_telemetry.events import PhaseSpan
from sglang_telemetry.names import Phase


class Clock(Protocol):
    """Where time comes from; a test gives its own."""

    def wall(self) -> float:
        """Unix seconds."""

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that is never set."""


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()

    def monotonic_ns(self) -> int:
        """Nanoseconds since some fixed moment."""
        return time.monotonic_ns()


class Timeline:
    """The phases of one call: one is open at every moment, and time only goes forward.

    The wall clock is read once, at the start, so that a clock that is set in the middle changes no duration.
    """

    __slots__ = ("_clock", "_last_ns", "_open_since_ns", "_phase", "_spans", "_start_ns", "started_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_at = clock.wall()
        self._start_ns = self._last_ns = self._open_since_ns = clock.monotonic_ns()
        self._phase = Phase.SETUP
        self._spans: list[PhaseSpan] = []

    @property
    def phase(self) -> Phase:
        """The phase that is open now."""
        return self._phase

    @property
    def index(self) -> int:
        """Number of the phase that is open now, from 0."""
        return len(self._spans)

    def offset_ns(self) -> int:
        """Nanoseconds from the start to now."""
        return self._now() - self._start_ns

    def mark(self, phase: Phase) -> int | None:
        """Close the open phase and open another.

        Returns:
            Nanoseconds since the start, or None when that phase was open already.
        """
        if phase is self._phase:
            return None
        now = self._now()
        self._close(now)
        self._phase, self._open_since_ns = phase, now
        return now - self._start_ns

    def finish(self) -> tuple[PhaseSpan, ...]:
        """Close the last phase and return all; their durations sum to the whole."""
        self._close(self._now())
        return tuple(self._spans)

    def _now(self) -> int:
        self._last_ns = max(self._last_ns, self._clock.monotonic_ns())
        return self._last_ns

    def _close(self, now: int) -> None:
        self._spans.append(
            PhaseSpan(
                phase=self._phase, offset_ns=self._open_since_ns - self._start_ns, duration_ns=now - self._open_since_ns
            )
        )
