"""A clock that a test sets, and a sink that remembers."""

import threading

from sglang_telemetry.events import Event, SyncRecord
from sglang_telemetry.names import Component


class ManualClock:
    """Time stands still until it is told to go on.

    Args:
        wall: Unix seconds at the start.
    """

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._wall = wall
        self._monotonic_ns = 0

    def wall(self) -> float:
        """Unix seconds."""
        return self._wall

    def monotonic_ns(self) -> int:
        """Nanoseconds since this clock was made."""
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._wall += seconds
        self._monotonic_ns += round(seconds * 1e9)

    def set_wall(self, wall: float) -> None:
        """Set the wall clock alone, as an administrator or NTP does."""
        self._wall = wall


class RecordingSink:
    """Keeps every event in the order it came.

    Args:
        component: What its errors would be counted for; with ``Component.LOG`` the engine's prints are left out.
    """

    def __init__(self, component: Component = Component.SINK) -> None:
        self.component = component
        self.events: list[Event] = []
        self.closed = False
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        """Keep the event."""
        with self._lock:
            self.events.append(event)

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    @property
    def records(self) -> list[SyncRecord]:
        """The records of the syncs that ended."""
        return [event for event in self.events if isinstance(event, SyncRecord)]
