"""Sinks: the log, the metrics, and the guard around them. Here: the events that their tests feed."""

from typing import Any

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    Checkpoint,
    CheckpointInspected,
    Exchange,
    Identity,
    PhaseSpan,
    PhaseStarted,
    ProcessEnded,
    ProcessStarted,
    Remedied,
    Remedy,
    ServerSeen,
    SyncRecord,
    SyncResolved,
    SyncStarted,
    Target,
)
from sglang_telemetry.names import Action, Applied, Evidence, Exit, Outcome, Phase, Result

START = 1_700_000_000.0
SERVER = "10.0.0.7:30000"
TARGET = Target(server=SERVER, timeout_seconds=60.0)


def who(rank: int = 0, *, run: str = "grpo", run_id: str = "one", pid: int | None = None) -> Identity:
    """A trainer process of two ranks."""
    return Identity(run=run, run_id=run_id, rank=rank, world_size=2, host="node-1", pid=pid or 100 + rank)


def started(identity: Identity, **changes: Any) -> ProcessStarted:
    """It was instrumented."""
    values: dict[str, Any] = {"engine": "Engine", "target": TARGET, "coordinator": identity.rank == 0, "at": START}
    return ProcessStarted(identity=identity, **(values | changes))


def begun(identity: Identity, sequence: int = 1, *, at: float = START + 10, **changes: Any) -> SyncStarted:
    """A sync has begun."""
    values: dict[str, Any] = {"coordinator": identity.rank == 0, "trace_id": f"{sequence:032x}", "target": TARGET}
    return SyncStarted(identity=identity, sequence=sequence, at=at, **(values | changes))


def entered(identity: Identity, phase: Phase, sequence: int = 1, offset_ns: int = 10**9) -> PhaseStarted:
    """The sync went into a phase."""
    return PhaseStarted(identity=identity, sequence=sequence, phase=phase, offset_ns=offset_ns)


def record(identity: Identity, sequence: int = 1, *, at: float = START + 10, **changes: Any) -> SyncRecord:
    """A sync of 4 s that went well: 1 s setup, 2 s request, 1 s barrier."""
    values: dict[str, Any] = {
        "duration_ns": 4 * 10**9,
        "phases": (
            PhaseSpan(phase=Phase.SETUP, offset_ns=0, duration_ns=10**9),
            PhaseSpan(phase=Phase.REQUEST, offset_ns=10**9, duration_ns=2 * 10**9),
            PhaseSpan(phase=Phase.BARRIER, offset_ns=3 * 10**9, duration_ns=10**9),
        ),
        "result": Result.SUCCESS,
        "coordinator": identity.rank == 0,
        "trace_id": f"{sequence:032x}",
        "span_id": f"{sequence:016x}",
        "target": TARGET,
        "weights_applied": Applied.YES,
    }
    return SyncRecord(identity=identity, sequence=sequence, started_at=at, **(values | changes))


def failed(identity: Identity, sequence: int = 1, *, at: float = START + 10, **changes: Any) -> SyncRecord:
    """A sync that the server refused with its own words."""
    values: dict[str, Any] = {
        "result": Result.FAILURE,
        "cause": FailureCause.SERVER_ERROR,
        "weights_applied": Applied.NO,
        "error_type": "500",
        "error_text": "500 Server Error",
        "exchanges": (
            Exchange(
                method="POST",
                url=f"http://{SERVER}/update_weights_from_disk",
                status_code=500,
                response_text='{"success": false, "message": "no such key"}',
                response_bytes=44,
                duration_ns=2 * 10**9,
            ),
        ),
        "decisive": 0,
        "checkpoint": Checkpoint(path="/dev/shm/w", files=2, bytes=2048, free_bytes=4096),
    }
    return record(identity, sequence, at=at, **(values | changes))


def remedy(action: Action, outcome: Outcome = Outcome.DONE, *, offset_ns: int = 10**9, **changes: Any) -> Remedy:
    """It took half a second, a second after the start of the sync."""
    values: dict[str, Any] = {"duration_ns": 5 * 10**8} | changes
    return Remedy(action=action, outcome=outcome, offset_ns=offset_ns, **values)


def remedied(
    identity: Identity, action: Action, outcome: Outcome = Outcome.DONE, *, sequence: int = 1, **changes: Any
) -> Remedied:
    """A remedy told what it did."""
    return Remedied(
        identity=identity,
        sequence=sequence,
        at=START + 11.5,
        trace_id=f"{sequence:032x}",
        target=TARGET,
        remedy=remedy(action, outcome, **changes),
    )


def seen(*, at: float = START + 50, **changes: Any) -> ServerSeen:
    """The exporter looked at the server, and all was well."""
    values: dict[str, Any] = {"server": SERVER, "up": True, "ready": True, "version": "0.5.23"}
    return ServerSeen(at=at, **(values | changes))


def inspected(identity: Identity, sequence: int = 1, **changes: Any) -> CheckpointInspected:
    """What was sent is whole, and another than before."""
    values: dict[str, Any] = {
        "at": START + 15,
        "target": TARGET,
        "trace_id": f"{sequence:032x}",
        "result": Result.SUCCESS,
        "path": "/w",
        "same": False,
        "trained": True,
    }
    return CheckpointInspected(identity=identity, sequence=sequence, **(values | changes))


def resolved(identity: Identity, sequence: int = 1, **changes: Any) -> SyncResolved:
    """It was confirmed 3 s after its end."""
    values: dict[str, Any] = {
        "trace_id": f"{sequence:032x}",
        "target": TARGET,
        "ended_at": START + 14,
        "at": START + 17,
        "claimed": Applied.YES,
        "applied": Applied.YES,
        "evidence": Evidence.CHECKSUM,
    }
    return SyncResolved(identity=identity, sequence=sequence, **(values | changes))


def ended(identity: Identity, how: Exit = Exit.CLEAN, *, at: float = START + 100) -> ProcessEnded:
    """It said good-bye."""
    return ProcessEnded(identity=identity, at=at, how=how)
