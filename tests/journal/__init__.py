"""The journal: format, writer, reader and retention. Here: one event of every kind with every field set."""

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    Checkpoint,
    EnginePrint,
    Event,
    Exchange,
    Identity,
    LaunchEnded,
    LaunchSignalled,
    LaunchStarted,
    PhaseSpan,
    PhaseStarted,
    ProcessEnded,
    ProcessLost,
    ProcessStarted,
    ProcessUnwatched,
    RequestRecord,
    ServerSeen,
    SyncRecord,
    SyncStarted,
    Target,
    TelemetryError,
)
from sglang_telemetry.names import Applied, Component, Exit, Phase, Result, Transport

IDENTITY = Identity(run="grpo", run_id="abc", rank=3, world_size=8, host="node-1", pid=4711)
TARGET = Target(server="10.0.0.7:30000", transport=Transport.TENSOR, timeout_seconds=60.5)

HEAD = ProcessStarted(
    identity=IDENTITY,
    at=1_700_000_000.25,
    engine="SGLangEngine",
    target=TARGET,
    versions={"torch": "2.13.0", "requests": "2.34.2"},
    boot_id="b-o-o-t",
    pid_namespace="pid:[4026531836]",
    pid_start_ticks=123456,
    locked=True,
    launch_id="launch",
    coordinator=True,
    expected_interval_seconds=300.0,
)
RECORD = SyncRecord(
    identity=IDENTITY,
    sequence=7,
    started_at=1_700_000_001.125,
    duration_ns=3_000_000_001,
    phases=(
        PhaseSpan(phase=Phase.SETUP, offset_ns=0, duration_ns=1),
        PhaseSpan(phase=Phase.REQUEST, offset_ns=1, duration_ns=3_000_000_000),
    ),
    result=Result.FAILURE,
    coordinator=True,
    trace_id="0" * 31 + "1",
    span_id="0" * 15 + "1",
    target=TARGET,
    cause=FailureCause.SERVER_ERROR,
    weights_applied=Applied.NO,
    error_type="500",
    error_text='said "no"\nand more: 模型 🙂',
    exchanges=(
        Exchange(
            method="POST",
            url="http://10.0.0.7:30000/update_weights_from_disk",
            status_code=500,
            response_text='{"success": false}',
            response_bytes=18,
            offset_ns=1,
            duration_ns=2_999_999_999,
            error_type="ReadTimeout",
            error_text="timed out",
            error_errno=110,
        ),
    ),
    decisive=0,
    failed_phase=Phase.REQUEST,
    parent_span_id="a" * 16,
    attempts=2,
    checkpoint=Checkpoint(path="/dev/shm/w", files=2, bytes=1 << 40, free_bytes=0, fault="truncated"),
    reached_before=True,
    version="step-7",
)
EVERY_KIND: tuple[Event, ...] = (
    HEAD,
    ProcessStarted(identity=IDENTITY, at=0.0),
    SyncStarted(
        identity=IDENTITY, sequence=7, at=1.5, coordinator=False, trace_id="f" * 32, target=TARGET, version="v"
    ),
    PhaseStarted(identity=IDENTITY, sequence=7, phase=Phase.BROADCAST, offset_ns=0),
    PhaseStarted(
        identity=IDENTITY,
        sequence=7,
        phase=Phase.REQUEST,
        offset_ns=1,
        exchange=Exchange(method="POST", url="http://10.0.0.7:30000/update_weights_from_disk", offset_ns=2),
        exchange_index=3,
    ),
    RECORD,
    RequestRecord(
        identity=IDENTITY,
        at=1.75,
        sequence=7,
        trace_id="e" * 32,
        span_id="d" * 16,
        exchange=Exchange(method="POST", url="http://10.0.0.7:30000/generate", status_code=200, duration_ns=5),
        parent_span_id="c" * 16,
    ),
    EnginePrint(identity=IDENTITY, sequence=7, text="[Rollout] failed\x85", recognised=True),
    TelemetryError(identity=None, component=Component.JOURNAL, text="", count=0),
    TelemetryError(identity=IDENTITY, component=Component.LOG, text="x", count=12),
    ProcessEnded(identity=IDENTITY, at=2.5, how=Exit.FAILED),
    ProcessLost(identity=IDENTITY, at=3.5, how=Exit.LOST, result=Result.CANCELLED),
    ProcessLost(identity=IDENTITY, at=3.5, how=Exit.CLEAN),
    ProcessLost(
        identity=IDENTITY,
        at=3.5,
        how=Exit.LOST,
        result=Result.FAILURE,
        sync=SyncStarted(
            identity=IDENTITY,
            sequence=7,
            at=1.5,
            coordinator=True,
            trace_id="f" * 32,
            target=TARGET,
            parent_span_id="b" * 16,
        ),
        phases=(PhaseSpan(phase=Phase.SETUP, offset_ns=0, duration_ns=2 * 10**9),),
    ),
    ProcessUnwatched(identity=IDENTITY, at=4.5),
    ServerSeen(
        server="10.0.0.7:30000", at=4.5, up=True, ready=False, version="0.5.23", restarted=True, current={"grpo": False}
    ),
    LaunchStarted(launch_id="launch", run="grpo", at=1.0),
    LaunchSignalled(launch_id="launch", signal=15, at=2.0),
    LaunchEnded(launch_id="launch", exit_code=-9, at=3.0),
)
