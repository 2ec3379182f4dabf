"""What the log line of an event says, under OpenTelemetry's attribute names, and how loud it is."""

from typing import Any

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    CheckpointInspected,
    Identity,
    Remedied,
    Remedy,
    ServerSeen,
    SyncRecord,
    SyncResolved,
    SyncStarted,
)
from sglang_telemetry.names import Action, Applied, Attribute, LogEvent, Outcome, Result, release_command

# One line a sync is an error: the coordinator's. What other ranks say stands beside it, not instead of it.
LEVEL_AND_NAME = {
    (Result.SUCCESS, True): ("info", LogEvent.SUCCEEDED),
    (Result.SUCCESS, False): ("debug", LogEvent.SUCCEEDED),
    (Result.FAILURE, True): ("error", LogEvent.FAILED),
    (Result.FAILURE, False): ("warning", LogEvent.FAILED),
    (Result.CANCELLED, True): ("warning", LogEvent.CANCELLED),
    (Result.CANCELLED, False): ("debug", LogEvent.CANCELLED),
}

RESTARTED = "it serves its START weights until the next sync, unless it was started with what was synced last"
WENT_BACK = "it shows the weight version of an earlier sync: did somebody send older weights, or label them so?"
_NOT_APPLIED = {
    "cause": FailureCause.NOT_APPLIED.value,
    "hint": FailureCause.NOT_APPLIED.hint,
    "runbook": FailureCause.NOT_APPLIED.runbook,
}
_CONTINUED = (
    "the training goes on with the weights of an earlier sync: its rollouts are stale; weight_sync.failed says why"
)
_LEFT_PAUSED = "its trainer paused it for a sync and left it so: it answers no rollout"
_SAME = "is this the model that is trained, and does its optimizer step?"
_NEW = "the weights ARE new, do not send them again"


def who(identity: Identity) -> dict[str, Any]:
    """Which process speaks."""
    return {
        "run": identity.run,
        "run_id": identity.run_id,
        "rank": identity.rank,
        "world_size": identity.world_size,
        Attribute.HOST.value: identity.host,
        Attribute.PID.value: identity.pid,
    }


def sync_fields(event: SyncStarted | SyncRecord) -> dict[str, Any]:
    """Which sync it is."""
    return {
        "sequence": event.sequence,
        "version": event.version,
        "server": event.target.server,
        "transport": event.target.transport.value,
        "trace_id": event.trace_id,
    }


def inspected_fields(event: CheckpointInspected) -> dict[str, Any]:
    """What is wrong with what was sent."""
    cause = _NOT_APPLIED if event.mixed else {"hint": _SAME}
    return {
        **who(event.identity),
        **_of_sync(event),
        **cause,
        "checkpoint.path": event.path,
        **({"checkpoint.fault": event.fault} if event.mixed else {"compared_bytes": event.sampled_bytes}),
    }


def resolved_as(event: SyncResolved) -> tuple[str, LogEvent]:
    """How loud the line of a finding is, and its name."""
    if event.applied is event.claimed:
        return "debug", LogEvent.RESOLVED
    if event.applied is Applied.NO and event.claimed is Applied.YES:
        return "error", LogEvent.NOT_APPLIED
    return "warning", LogEvent.RESOLVED


def resolved_fields(event: SyncResolved) -> dict[str, Any]:
    """What was found out of a sync that was over."""
    refuted = event.applied is Applied.NO and event.claimed is Applied.YES
    late = event.applied is Applied.YES and event.claimed is not Applied.YES
    return {
        **who(event.identity),
        **_of_sync(event),
        **(_NOT_APPLIED if refuted else {}),
        **({"hint": f"the sync was told as failed: {_NEW}"} if late else {}),
        "weights_applied": event.applied.value,
        "claimed": event.claimed.value,
        "evidence": event.evidence.value,
        "delay_seconds": round(event.delay_seconds, 3),
        "shown": event.shown,
    }


def remedied_as(event: Remedied) -> tuple[str, LogEvent]:
    """How loud the line of a remedy is, and its name: a second attempt is seen, stale weights are an error."""
    action, outcome = event.remedy.action, event.remedy.outcome
    if action is Action.RETRY and outcome is not Outcome.SKIPPED:
        return "warning", LogEvent.RETRIED
    if action is Action.CONTINUE_STALE and outcome is Outcome.DONE:
        return "error", LogEvent.CONTINUED_STALE
    return "warning" if outcome in {Outcome.FAILED, Outcome.REFUSED} else "debug", LogEvent.REMEDY


def remedied_fields(event: Remedied) -> dict[str, Any]:
    """What a remedy did."""
    fields = _remedy(event.remedy)
    if not event.remedy.detail:
        del fields["detail"]
    stale = remedied_as(event)[1] is LogEvent.CONTINUED_STALE
    return {**who(event.identity), **_of_sync(event), **fields, **({"hint": _CONTINUED} if stale else {})}


def left_paused_fields(event: ServerSeen, run: str) -> dict[str, Any]:
    """Which server a run left paused, and how it is released."""
    hint = f"{_LEFT_PAUSED}; {release_command(f'http://{event.server}')}"
    return {"run": run, "server": event.server, "hint": hint}


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "action": remedy.action.value,
        "outcome": remedy.outcome.value,
        "duration_seconds": round(remedy.duration_ns / 1e9, 6),
        "detail": remedy.detail,
    }


def _of_sync(event: CheckpointInspected | Remedied | SyncResolved) -> dict[str, Any]:
    return {"sequence": event.sequence, "server": event.target.server, "trace_id": event.trace_id}


def record_fields(record: SyncRecord) -> dict[str, Any]:
    """All that a log line says of a sync, under OpenTelemetry's attribute names; unknown values are left out."""
    exchange, checkpoint = record.exchange, record.checkpoint
    fields = who(record.identity) | sync_fields(record)
    fields |= {
        "span_id": record.span_id,
        "result": record.result.value,
        "duration_seconds": round(record.duration_ns / 1e9, 6),
        "phases": {phase.value: round(seconds, 6) for phase, seconds in record.phase_seconds().items()},
        "weights_applied": record.weights_applied.value,
        "attempts": record.attempts,
        "remedies": [_remedy(one) for one in record.remedies] or None,
    }
    if record.cause is not None:
        fields |= {"cause": record.cause.value, "hint": hint(record), "runbook": record.cause.runbook}
        fields |= {"failed_phase": record.failed_phase.value if record.failed_phase is not None else None}
    fields |= {Attribute.ERROR_TYPE.value: record.error_type, Attribute.ERROR_MESSAGE.value: record.error_text}
    if exchange is not None:
        fields |= {
            Attribute.HTTP_METHOD.value: exchange.method,
            Attribute.URL.value: exchange.url,
            Attribute.HTTP_STATUS.value: exchange.status_code,
            Attribute.HTTP_RESPONSE_SIZE.value: exchange.response_bytes,
            "response_text": exchange.response_text,
            "request_seconds": round(exchange.duration_ns / 1e9, 6),
            "errno": exchange.error_errno,
            "timeout_seconds": record.target.timeout_seconds,
        }
    if checkpoint is not None:
        fields |= {
            "checkpoint.path": checkpoint.path,
            "checkpoint.files": checkpoint.files,
            "checkpoint.bytes": checkpoint.bytes,
            "checkpoint.fault": checkpoint.fault,
            "free_bytes": checkpoint.free_bytes,
        }
    return {name: value for name, value in fields.items() if value is not None}


def hint(record: SyncRecord) -> str:
    """The first thing to do, with what this record adds to the cause's own hint."""
    if record.cause is None:
        return ""
    text = record.cause.hint
    if record.cause is FailureCause.UNREACHABLE and record.weights_applied is Applied.UNKNOWN:
        return f"{text} (it closed the connection without an answer, and accepts connections: a proxy, or a restart?)"
    if record.cause is FailureCause.UNREACHABLE:
        known = "it answered before: it went away" if record.reached_before else "never reached since start"
        return f"{text} ({known})"
    if record.cause is not FailureCause.PEER and record.weights_applied is Applied.YES:
        return f"{text}; {_NEW}"
    return text
