"""One canonical log line a sync: structlog renders it, the stdlib logger ``sglang_telemetry`` carries it.

The host's logging is never changed. Has the host configured handlers, they get our record, once; has it not, the line
goes to stderr all the same, through a handler of our own that is attached to nothing.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TextIO

import structlog

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.codec import to_json
from sglang_telemetry.events import (
    CheckpointInspected,
    EnginePrint,
    Event,
    Identity,
    ServerSeen,
    SyncRecord,
    SyncResolved,
    SyncStarted,
    TelemetryError,
)
from sglang_telemetry.names import LOGGER, Applied, Attribute, Component, Env, LogEvent, Result
from sglang_telemetry.sinks.pretty import render_pretty
from sglang_telemetry.text import clean, is_terminal

FORMATS = ("auto", "json", "console")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


# One line a sync is an error: the coordinator's. What other ranks say stands beside it, not instead of it.
_LEVEL_AND_NAME = {
    (Result.SUCCESS, True): ("info", LogEvent.SUCCEEDED),
    (Result.SUCCESS, False): ("debug", LogEvent.SUCCEEDED),
    (Result.FAILURE, True): ("error", LogEvent.FAILED),
    (Result.FAILURE, False): ("warning", LogEvent.FAILED),
    (Result.CANCELLED, True): ("warning", LogEvent.CANCELLED),
    (Result.CANCELLED, False): ("debug", LogEvent.CANCELLED),
}


_RESTARTED = "it serves its START weights until the next sync, unless it was started with what was synced last"
_WENT_BACK = "it shows the weight version of an earlier sync: did somebody send older weights, or label them so?"
_NOT_APPLIED = {
    "cause": FailureCause.NOT_APPLIED.value,
    "hint": FailureCause.NOT_APPLIED.hint,
    "runbook": FailureCause.NOT_APPLIED.runbook,
}
_SAME = "is this the model that is trained, and does its optimizer step?"
_NEW = "the weights ARE new, do not send them again"


class LogSink:
    """Log lines on a terminal or as JSON.

    Args:
        fmt: ``auto`` (pretty on a terminal, JSON otherwise), ``json`` or ``console``; default
            ``SGLANG_TELEMETRY_LOG_FORMAT``, else ``auto``.
        stream: Where lines go when the host has configured no logging; default ``sys.stderr`` at that moment.

    Raises:
        ValueError: ``fmt`` is none of the three.
    """

    component = Component.LOG

    def __init__(self, *, fmt: str | None = None, stream: TextIO | None = None) -> None:
        if fmt is not None and fmt not in FORMATS:
            raise ValueError(f"log format {fmt!r}: use one of {', '.join(FORMATS)}")
        from_environ = os.environ.get(Env.LOG_FORMAT, "auto")
        self._format = fmt or (from_environ if from_environ in FORMATS else "auto")
        self._stream = stream
        self._told: set[Component] = set()
        self._log = structlog.wrap_logger(
            _Carrier(self._stream),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                self._render,
            ],
            wrapper_class=structlog.BoundLogger,
        ).bind()
        if from_environ not in FORMATS:
            text = f"{Env.LOG_FORMAT}={clean(from_environ, limit=60)!r} is none of {', '.join(FORMATS)}: auto is used"
            self.emit(TelemetryError(component=Component.LOG, text=text))

    def emit(self, event: Event) -> bool | None:
        """Log the event, if it is one that people read.

        Returns:
            False for a print of the engine's that neither a line of its own nor the sync's record will tell of.
        """
        match event:
            case SyncRecord():
                self._write(*_LEVEL_AND_NAME[event.result, event.coordinator], lambda: record_fields(event))
            case SyncStarted():
                self._write("debug", LogEvent.STARTED, lambda: _who(event.identity) | _sync(event))
            case EnginePrint():
                level = "debug" if event.recognised else "warning"
                fields = {"sequence": event.sequence, "text": event.text}
                self._write(level, LogEvent.ENGINE_PRINT, lambda: _who(event.identity) | fields)
                return _enabled(logging.ERROR if event.recognised else logging.WARNING)
            case CheckpointInspected() if event.mixed:
                self._write("error", LogEvent.NOT_APPLIED, lambda: _inspected(event))
            case CheckpointInspected() if event.unchanged:
                self._write("warning", LogEvent.SAME_BYTES, lambda: _inspected(event))
            case SyncResolved():
                self._write(*_resolved_as(event), lambda: _resolved(event))
            case ServerSeen() if event.restarted:
                self._write("warning", LogEvent.SERVER_RESTARTED, lambda: {"server": event.server, "hint": _RESTARTED})
            case ServerSeen() if event.went_back:
                self._write("warning", LogEvent.SERVER_WENT_BACK, lambda: {"server": event.server, "hint": _WENT_BACK})
            case TelemetryError() if event.component not in self._told:
                self._told.add(event.component)
                fields = {"component": event.component, "text": event.text, "hint": "the training goes on; said once"}
                self._write("warning", LogEvent.TELEMETRY_ERROR, lambda: fields)
            case _:
                pass
        return None

    def close(self) -> None:
        """Nothing is held."""

    def _write(self, level: str, event: LogEvent, fields: Callable[[], Mapping[str, Any]]) -> None:
        if not _enabled(_LEVELS[level]):
            return
        method: Callable[..., Any] = getattr(self._log, level)
        method(event.value, **fields())

    def _render(self, _: Any, level: str, fields: MutableMapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        pretty = self._format == "console" or (self._format == "auto" and is_terminal(self._stream or sys.stderr))
        text = render_pretty(fields) if pretty else _JSON(None, level, fields)
        # One attribute of our own: a field called "name" or "args" would collide with a LogRecord's.
        return (_LEVELS[level], str(text)), {"extra": {"sglang_telemetry": dict(fields)}}


_JSON = structlog.processors.JSONRenderer(serializer=lambda fields, **_: to_json(fields).decode())


class _Carrier:
    """Carries a rendered line to the host's handlers, or to stderr when it has none."""

    def __init__(self, stream: TextIO | None) -> None:
        self._logger = logging.getLogger(LOGGER)
        self._stream = stream

    def _carry(self, level: int, text: str, *, extra: Mapping[str, Any]) -> None:
        if self._logger.hasHandlers():
            self._logger.log(level, "%s", text, extra=extra)
            return
        stream = self._stream or sys.stderr
        if stream is not None:
            stream.write(text + "\n")
            stream.flush()

    debug = info = warning = error = _carry


def _enabled(level: int) -> bool:
    logger = logging.getLogger(LOGGER)
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        return logger.isEnabledFor(level)
    return level >= logging.INFO and not logger.disabled and logger.manager.disable < level


def _who(identity: Identity) -> dict[str, Any]:
    return {
        "run": identity.run,
        "run_id": identity.run_id,
        "rank": identity.rank,
        "world_size": identity.world_size,
        Attribute.HOST.value: identity.host,
        Attribute.PID.value: identity.pid,
    }


def _sync(event: SyncStarted | SyncRecord) -> dict[str, Any]:
    return {
        "sequence": event.sequence,
        "version": event.version,
        "server": event.target.server,
        "transport": event.target.transport.value,
        "trace_id": event.trace_id,
    }


def _inspected(event: CheckpointInspected) -> dict[str, Any]:
    cause = _NOT_APPLIED if event.mixed else {"hint": _SAME}
    return {
        **_who(event.identity),
        **_of_sync(event),
        **cause,
        "checkpoint.path": event.path,
        **({"checkpoint.fault": event.fault} if event.mixed else {"compared_bytes": event.sampled_bytes}),
    }


def _resolved_as(event: SyncResolved) -> tuple[str, LogEvent]:
    if event.applied is event.claimed:
        return "debug", LogEvent.RESOLVED
    if event.applied is Applied.NO and event.claimed is Applied.YES:
        return "error", LogEvent.NOT_APPLIED
    return "warning", LogEvent.RESOLVED


def _resolved(event: SyncResolved) -> dict[str, Any]:
    refuted = event.applied is Applied.NO and event.claimed is Applied.YES
    late = event.applied is Applied.YES and event.claimed is not Applied.YES
    return {
        **_who(event.identity),
        **_of_sync(event),
        **(_NOT_APPLIED if refuted else {}),
        **({"hint": f"the sync was told as failed: {_NEW}"} if late else {}),
        "weights_applied": event.applied.value,
        "claimed": event.claimed.value,
        "evidence": event.evidence.value,
        "delay_seconds": round(event.delay_seconds, 3),
        "shown": event.shown,
    }


def _of_sync(event: CheckpointInspected | SyncResolved) -> dict[str, Any]:
    return {"sequence": event.sequence, "server": event.target.server, "trace_id": event.trace_id}


def record_fields(record: SyncRecord) -> dict[str, Any]:
    """All that a log line says of a sync, under OpenTelemetry's attribute names; unknown values are left out."""
    exchange, checkpoint = record.exchange, record.checkpoint
    fields = _who(record.identity) | _sync(record)
    fields |= {
        "span_id": record.span_id,
        "result": record.result.value,
        "duration_seconds": round(record.duration_ns / 1e9, 6),
        "phases": {phase.value: round(seconds, 6) for phase, seconds in record.phase_seconds().items()},
        "weights_applied": record.weights_applied.value,
        "attempts": record.attempts,
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
