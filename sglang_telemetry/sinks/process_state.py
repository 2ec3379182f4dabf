"""What is known of one trainer process: the gauges of something that is going on are read off it."""

import statistics
from collections import deque
from dataclasses import dataclass, field

from sglang_telemetry.events import Checkpoint, Identity, Target
from sglang_telemetry.names import Exit, Phase, Result

INTERVALS_KEPT = 32


@dataclass(slots=True)
class ProcessState:
    """What is known of one trainer process. ``alive`` is None when it cannot be told."""

    identity: Identity
    started_at: float
    coordinator: bool = False
    engine: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    target: Target = field(default_factory=Target)
    alive: bool | None = None
    ended_at: float | None = None
    how: Exit | None = None
    sequence: int | None = None
    active: bool = False
    phase: Phase | None = None
    phase_at: float | None = None
    last_start: float | None = None
    last_result: Result | None = None
    last_duration: float | None = None
    last_phases: dict[str, float] = field(default_factory=dict)
    given_interval: float | None = None
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=INTERVALS_KEPT))
    step_share: float | None = None
    payload_bytes: int | None = None
    shared_path: Checkpoint | None = None
    published: int | None = None
    unchanged: int | None = None
    stale: int | None = None
    """Failed syncs in a row over which it went on; None when it does not use the remedy that lets it."""
    beside: tuple[str, ...] = ()
    """Servers that its last sync went to beside the target."""

    def servers(self) -> tuple[str, ...]:
        """All servers that it syncs to, the target first."""
        return (*([self.target.server] if self.target.server is not None else ()), *self.beside)

    @property
    def expected_interval(self) -> float | None:
        """Seconds between two syncs: given, else the median of the observed."""
        if self.given_interval is not None:
            return self.given_interval
        return statistics.median(self.intervals) if self.intervals else None


ProcessKey = tuple[str, str, int, str, int]


def process_key(identity: Identity) -> ProcessKey:
    """What tells one process from another."""
    return (identity.run, identity.run_id, identity.rank, identity.host, identity.pid)
