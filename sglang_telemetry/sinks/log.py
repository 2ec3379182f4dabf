"""One canonical log line a sync: structlog renders it, the stdlib logger ``sglang_telemetry`` carries it.

The host's logging is never changed. Has the host configured handlers, they get our record, once; has it not, the line
goes to stderr all the same, through a handler of our own that is attached to nothing.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, TextIO

import structlog

from sglang_telemetry.codec import to_json
from sglang_telemetry.events import (
    CheckpointInspected,
    EnginePrint,
    Event,
    Remedied,
    ServerSeen,
    SyncRecord,
    SyncResolved,
    SyncStarted,
    TelemetryError,
)
from sglang_telemetry.names import LOGGER, Component, Env, LogEvent
from sglang_telemetry.sinks.log_fields import (
    LEVEL_AND_NAME,
    RESTARTED,
    WENT_BACK,
    inspected_fields,
    left_paused_fields,
    record_fields,
    remedied_as,
    remedied_fields,
    resolved_as,
    resolved_fields,
    sync_fields,
    who,
)
from sglang_telemetry.sinks.pretty import render_pretty
from sglang_telemetry.text import clean, is_terminal

FORMATS = ("auto", "json", "console")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


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
                self._write(*LEVEL_AND_NAME[event.result, event.coordinator], lambda: record_fields(event))
            case SyncStarted():
                self._write("debug", LogEvent.STARTED, lambda: who(event.identity) | sync_fields(event))
            case EnginePrint():
                level = "debug" if event.recognised else "warning"
                fields = {"sequence": event.sequence, "text": event.text}
                self._write(level, LogEvent.ENGINE_PRINT, lambda: who(event.identity) | fields)
                return _enabled(logging.ERROR if event.recognised else logging.WARNING)
            case CheckpointInspected() if event.mixed:
                self._write("error", LogEvent.NOT_APPLIED, lambda: inspected_fields(event))
            case CheckpointInspected() if event.unchanged:
                self._write("warning", LogEvent.SAME_BYTES, lambda: inspected_fields(event))
            case SyncResolved():
                self._write(*resolved_as(event), lambda: resolved_fields(event))
            case Remedied():
                self._write(*remedied_as(event), lambda: remedied_fields(event))
            case ServerSeen():
                self._server_seen(event)
            case TelemetryError() if event.component not in self._told:
                self._told.add(event.component)
                fields = {"component": event.component, "text": event.text, "hint": "the training goes on; said once"}
                self._write("warning", LogEvent.TELEMETRY_ERROR, lambda: fields)
            case _:
                pass
        return None

    def close(self) -> None:
        """Nothing is held."""

    def _server_seen(self, event: ServerSeen) -> None:
        for run in event.newly_left_paused:
            self._write("error", LogEvent.SERVER_LEFT_PAUSED, partial(left_paused_fields, event, run))
        if event.restarted:
            self._write("warning", LogEvent.SERVER_RESTARTED, lambda: {"server": event.server, "hint": RESTARTED})
        elif event.went_back:
            self._write("warning", LogEvent.SERVER_WENT_BACK, lambda: {"server": event.server, "hint": WENT_BACK})

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
