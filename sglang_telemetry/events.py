"""What happened, as frozen values: the only thing that flows from the instrumentation to the sinks.

``None`` is "unknown", never 0. Durations are whole nanoseconds of a monotonic clock, wall times are Unix seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.names import Action, Applied, Component, Evidence, Exit, Outcome, Phase, Result, Transport

MAX_EXCHANGES = 16
"""A record holds no more requests than these, so that an engine that polls in its sync does not write a long one."""

__all__ = [
    "Checkpoint",
    "CheckpointInspected",
    "EnginePrint",
    "Event",
    "Exchange",
    "Identity",
    "LaunchEnded",
    "LaunchSignalled",
    "LaunchStarted",
    "PhaseSpan",
    "PhaseStarted",
    "ProcessEnded",
    "ProcessLost",
    "ProcessStarted",
    "ProcessUnwatched",
    "Remedied",
    "Remedy",
    "RequestRecord",
    "RolloutsSeen",
    "ServerSeen",
    "SyncRecord",
    "SyncResolved",
    "SyncStarted",
    "Target",
    "TelemetryError",
    "WatchedPath",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which trainer process speaks.

    Args:
        run: Stable name of the training job; a label value.
        run_id: The same on all ranks of one start, new for every start.
        rank: Rank in the process group, 0 without one.
        world_size: Number of ranks, 1 without a process group.
        host: Host name.
        pid: Process id as the process itself sees it.
    """

    run: str
    run_id: str
    rank: int
    world_size: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a sync goes: ``host:port`` (None when not known), transport, and the request time-out in seconds."""

    server: str | None = None
    transport: Transport = Transport.DISK
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted:
    """A trainer process was instrumented; the first line of its journal.

    Args:
        at: Unix seconds.
        engine: Class name of the engine, None without one.
        versions: Package name to version.
        boot_id: The kernel's boot id, for hosts where record locks cannot be trusted.
        pid_namespace: Which pid namespace ``pid`` belongs to.
        pid_start_ticks: Start time of the process in clock ticks since boot.
        locked: The record lock on the journal was got, so that the kernel tells of the process's death.
        launch_id: Id of the ``sglang-telemetry run`` that started it.
        coordinator: This process counts syncs.
        remedies: Names of the remedies that were asked for.
    """

    identity: Identity
    at: float
    engine: str | None = None
    target: Target = field(default_factory=Target)
    versions: Mapping[str, str] = field(default_factory=dict)
    boot_id: str | None = None
    pid_namespace: str | None = None
    pid_start_ticks: int | None = None
    locked: bool = False
    launch_id: str | None = None
    coordinator: bool = False
    expected_interval_seconds: float | None = None
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded:
    """A trainer process said good-bye."""

    identity: Identity
    at: float
    how: Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLost:
    """A process vanished without a word; told by the exporter, never by the process.

    Args:
        at: Unix seconds at which it was last known to live.
        how: What its end is counted as.
        result: What a sync that was open is counted as; None when none was open.
        sync: The start of the sync that was open.
        phases: The phases it went through; the last one was open, and lasts until ``at``.
        exchange: The request that had no answer yet, which lasts until ``at``.
        exchange_index: Its number among the requests of the sync.
    """

    identity: Identity
    at: float
    how: Exit
    result: Result | None = None
    sync: "SyncStarted | None" = None
    phases: "tuple[PhaseSpan, ...]" = ()
    exchange: "Exchange | None" = None
    exchange_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUnwatched:
    """The exporter cannot tell whether this process lives: no record lock, and another host or pid namespace."""

    identity: Identity
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStarted:
    """A sync has begun; its first phase is ``setup``.

    Args:
        at: Unix seconds.
        trace_id: The trace that this rank's spans are in.
        parent_span_id: The caller's active span, when this rank's spans are in the caller's trace; else None, and the
            trace is the one that all ranks derive alike.
    """

    identity: Identity
    sequence: int
    at: float
    coordinator: bool
    trace_id: str
    target: Target
    version: str | None = None
    parent_span_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """A running sync went into another phase, ``offset_ns`` after its start.

    Args:
        exchange: The request that this phase began with, not answered yet.
        exchange_index: Its number among the requests of the sync.
    """

    identity: Identity
    sequence: int
    phase: Phase
    offset_ns: int
    exchange: "Exchange | None" = None
    exchange_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    """One stretch of a sync in one phase, in nanoseconds from the sync's start."""

    phase: Phase
    offset_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One HTTP exchange of the engine with the server, already cleaned of secrets.

    Args:
        method: HTTP method.
        url: Without user information and query values.
        status_code: None when no answer came.
        response_text: At most 8 KiB.
        response_bytes: True length of the answer, None when no answer came.
        offset_ns: From the start of the sync to the call.
        duration_ns: From the call to its return.
        error_type: Class name of the exception that came instead of an answer.
        error_text: Its text, cleaned.
        error_errno: The first errno found in the exception's chain.
        weights_applied: Did this server take the weights, by its own answer? None where the sync's own says it.
    """

    method: str
    url: str
    status_code: int | None = None
    response_text: str | None = None
    response_bytes: int | None = None
    offset_ns: int = 0
    duration_ns: int = 0
    error_type: str | None = None
    error_text: str | None = None
    error_errno: int | None = None
    weights_applied: Applied | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What lies in the checkpoint folder, seen from the trainer.

    Args:
        path: Absolute path.
        files: Number of weight files, None when the folder could not be read.
        bytes: Size of all files in it.
        free_bytes: Free space of its file system for this user.
        free_inodes: Free inodes of it; None where it has no fixed number of them.
        read_only: It is mounted read-only here.
        fs_type: Such as ``nfs4`` or ``tmpfs``.
        fault: What is wrong with it; None when nothing is known to be.
    """

    path: str
    files: int | None = None
    bytes: int | None = None
    free_bytes: int | None = None
    free_inodes: int | None = None
    read_only: bool | None = None
    fs_type: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What a remedy did in a sync.

    Args:
        offset_ns: From the start of the sync to the moment at which it began.
        duration_ns: How long it took.
        detail: In words, cleaned: what was done, or why it was not.
    """

    action: Action
    outcome: Outcome
    offset_ns: int
    duration_ns: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedied:
    """A remedy did something in a sync; told at once, so that it is known also when the trainer dies next.

    Args:
        at: Unix seconds at which it was over.
        target: The server that it was about.
    """

    identity: Identity
    sequence: int
    at: float
    trace_id: str
    target: Target
    remedy: Remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRecord:
    """A sync has ended: everything that is known of it on this rank.

    Args:
        started_at: Unix seconds, read once.
        duration_ns: The sum of the phases, to the nanosecond.
        coordinator: This rank counts the sync; the others report their waits only.
        trace_id: The trace that this rank's spans are in.
        span_id: The root span on the coordinator, the rank's span elsewhere.
        parent_span_id: As in :class:`SyncStarted`.
        failed_phase: The phase in which it failed, None when it did not.
        error_type: ``error.type`` as OpenTelemetry has it: status code or exception class.
        error_text: Text of the exception that says most, cleaned.
        exchanges: What the engine sent during the sync, at most :data:`MAX_EXCHANGES`.
        decisive: Index in ``exchanges`` of the update that decided on the result, None when there was none.
        reached_before: The server had answered this process before this sync.
        remedies: What remedies did in it, those that came to something.
    """

    identity: Identity
    sequence: int
    started_at: float
    duration_ns: int
    phases: tuple[PhaseSpan, ...]
    result: Result
    coordinator: bool
    trace_id: str
    span_id: str
    target: Target
    parent_span_id: str | None = None
    cause: FailureCause | None = None
    failed_phase: Phase | None = None
    weights_applied: Applied = Applied.UNKNOWN
    error_type: str | None = None
    error_text: str | None = None
    exchanges: tuple[Exchange, ...] = ()
    decisive: int | None = None
    attempts: int = 1
    checkpoint: Checkpoint | None = None
    reached_before: bool = False
    version: str | None = None
    remedies: tuple[Remedy, ...] = ()

    @property
    def ended_at(self) -> float:
        """Unix seconds of the end: the wall clock at the start plus the monotonic duration."""
        return self.started_at + self.duration_ns / 1e9

    @property
    def exchange(self) -> Exchange | None:
        """The update request that decided on the result."""
        return None if self.decisive is None else self.exchanges[self.decisive]

    def phase_seconds(self) -> dict[Phase, float]:
        """Seconds by phase, in the order in which the phases were first entered."""
        total: dict[Phase, int] = {}
        for span in self.phases:
            total[span.phase] = total.get(span.phase, 0) + span.duration_ns
        return {phase: duration / 1e9 for phase, duration in total.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInspected:
    """What was sent was looked at beside the sync, which waited for nothing; told after the sync's record.

    Args:
        at: Unix seconds.
        target: Where it was sent.
        trace_id: The sync's.
        result: How the sync ended.
        path: The checkpoint's folder.
        fault: What is wrong with the checkpoint, as seen from the trainer.
        incomplete: Tensors of the model are missing in it, while others of their kind are there.
        digest: Of the content; None when it was not read to its end.
        sampled_bytes: How much of the content the digest is of.
        same: The content is that of the sync before; None when that is not known.
        changed: Share of the tensors whose content is another than in the sync before, 0 to 1; None when that is not
            known, or may be less than a server keeps of it, as of single precision.
        trained: The model was changed or generated rollouts since then; None when that cannot be told.
        seconds: How long the look took.
    """

    identity: Identity
    sequence: int
    at: float
    target: Target
    trace_id: str
    result: Result
    path: str
    fault: str | None = None
    incomplete: bool = False
    digest: str | None = None
    sampled_bytes: int = 0
    same: bool | None = None
    changed: float | None = None
    trained: bool | None = None
    seconds: float = 0.0

    @property
    def unchanged(self) -> bool:
        """The same content was sent again, unless the model is known not to have been trained in between."""
        return self.same is True and self.trained is not False

    @property
    def mixed(self) -> bool:
        """The server took a checkpoint with missing tensors, which kept their old values (SGLang 0.5.23, measured)."""
        return self.incomplete and self.result is Result.SUCCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsSeen:
    """What the engine's generated answers since the last of these said of the weights that made them.

    Args:
        at: Unix seconds.
        sequence: The last sync that had begun before.
        counts: Answers by the values of :class:`~sglang_telemetry.names.Policy`, without those that had none.
        aborted: How many of them the server cut off.
    """

    identity: Identity
    at: float
    sequence: int
    counts: Mapping[str, int]
    aborted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """The engine sent something outside of a sync, such as a rollout, and was answered or not.

    Args:
        at: Unix seconds of the call.
        sequence: The last sync that had begun before, 0 before the first.
        trace_id: The trace that the request carries, the caller's where the caller has an active span.
        span_id: The span that the request names as its parent.
        parent_span_id: The caller's active span.
    """

    identity: Identity
    at: float
    sequence: int
    trace_id: str
    span_id: str
    exchange: Exchange
    parent_span_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResolved:
    """The exporter has seen whether a server took the weights of a sync; never told by a trainer.

    Args:
        identity: The coordinator's.
        trace_id: The sync's.
        ended_at: Unix seconds of the end of the sync.
        at: Unix seconds of the end of the look that told.
        claimed: What the sync's record says.
        applied: What was found: yes or no.
        evidence: By what.
        shown: What the server showed, in words.
    """

    identity: Identity
    sequence: int
    trace_id: str
    target: Target
    ended_at: float
    at: float
    claimed: Applied
    applied: Applied
    evidence: Evidence
    shown: str = ""

    @property
    def delay_seconds(self) -> float:
        """From the end of the sync to the look that told; never negative."""
        return max(0.0, self.at - self.ended_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedPath:
    """The exporter looked at the folder that it watches.

    Args:
        at: Unix seconds.
        writable: Its own probe file could be written.
        ages: By host, seconds since the probe file of that host's exporter was last seen to change here.
    """

    at: float
    writable: bool
    ages: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePrint:
    """The engine printed something during a sync; ``recognised`` when the sync's record will say the same."""

    identity: Identity
    sequence: int
    text: str
    recognised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSeen:
    """The exporter looked at a server that live runs sync to; told by the exporter, never by a trainer.

    Args:
        server: ``host:port``.
        at: Unix seconds of the end of the look.
        up: It answered over HTTP, whatever it said.
        ready: It takes requests; None when that is unknown.
        version: SGLang's own, as far as it is known.
        restarted: A restart was noticed with this look.
        went_back: It showed the weight version of an earlier sync than the one that it was seen to run.
        current: By run, does it show the weights that the run synced last; without the runs of which that is unknown.
        confirmed: By run, the sequence of the last sync that it was seen to run.
        confirmed_of: By run, the run id of that sync's start: sequences of another start are others.
        left_paused: Runs of which a trainer paused this server and is gone, while it is not ready.
        newly_left_paused: Those of them of which the look before did not say so.
        released: Runs of which that was so before.
    """

    server: str
    at: float
    up: bool
    ready: bool | None = None
    version: str | None = None
    restarted: bool = False
    went_back: bool = False
    current: Mapping[str, bool] = field(default_factory=dict)
    confirmed: Mapping[str, int] = field(default_factory=dict)
    confirmed_of: Mapping[str, str] = field(default_factory=dict)
    left_paused: tuple[str, ...] = ()
    newly_left_paused: tuple[str, ...] = ()
    released: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryError:
    """Something of this package failed; the training went on.

    Args:
        count: How many errors this stands for.
        at: Unix seconds of the last of them.
    """

    component: Component
    text: str
    identity: Identity | None = None
    count: int = 1
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStarted:
    """``sglang-telemetry run`` started a command."""

    launch_id: str
    run: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSignalled:
    """``sglang-telemetry run`` was told to stop: what vanishes now was stopped, not lost."""

    launch_id: str
    signal: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnded:
    """The command of ``sglang-telemetry run`` ended."""

    launch_id: str
    exit_code: int
    at: float


Event = (
    ProcessStarted
    | ProcessEnded
    | ProcessLost
    | ProcessUnwatched
    | SyncStarted
    | PhaseStarted
    | Remedied
    | SyncRecord
    | CheckpointInspected
    | RequestRecord
    | RolloutsSeen
    | EnginePrint
    | SyncResolved
    | ServerSeen
    | WatchedPath
    | TelemetryError
    | LaunchStarted
    | LaunchSignalled
    | LaunchEnded
)
