"""What an engine sends outside of a sync, such as a rollout: a trace of its own, linked to the sync before it."""

import threading
from dataclasses import replace
from typing import Any

from sglang_telemetry.classify import Recorded
from sglang_telemetry.events import Identity, RequestRecord
from sglang_telemetry.instrument.context import TraceContext, active
from sglang_telemetry.instrument.sync import Recorder
from sglang_telemetry.trace_ids import outside_ids

RECORDS_PER_SECOND = 10
"""An engine that sends one request a sample must not fill the journal: more join the trace of the last recorded one."""


class Outside:
    """Makes a context for each request, and a record of it.

    Args:
        recorder: Who speaks, and to whom.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lock = threading.Lock()
        self._sent = 0
        self._second = self._in_second = 0
        self._last: TraceContext | None = None

    def request_started(self) -> "SendingOutside":
        """The engine sends something."""
        caller = active()
        identity = self._recorder.identity.current()
        with self._lock:
            self._sent += 1
            recorded = self._is_recorded() and (caller is None or caller.sampled)
            context = self._context(caller, identity, recorded=recorded)
            self._last = context if recorded else self._last
        return SendingOutside(self._recorder, identity, context, caller, recorded=recorded)

    def _is_recorded(self) -> bool:
        second = self._recorder.clock.monotonic_ns() // 10**9
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        return self._in_second <= RECORDS_PER_SECOND

    def _context(self, caller: TraceContext | None, identity: Identity, *, recorded: bool) -> TraceContext:
        """The server's spans get a parent that somebody records."""
        trace_id, span_id = outside_ids(identity, self._sent)
        if recorded:
            return TraceContext(trace_id=trace_id if caller is None else caller.trace_id, span_id=span_id)
        return caller or self._last or TraceContext(trace_id=trace_id, span_id=span_id)


class SendingOutside:
    """One such request that is under way.

    Args:
        recorder: Who speaks, and to whom.
        identity: Who sends it.
        context: What it carries.
        caller: The caller's active span.
        recorded: A record of it is written when it is over.
    """

    def __init__(
        self,
        recorder: Recorder,
        identity: Identity,
        context: TraceContext,
        caller: TraceContext | None,
        *,
        recorded: bool,
    ) -> None:
        self._recorder, self._identity, self._context = recorder, identity, context
        self._parent, self._recorded = caller, recorded
        self._sequence = recorder.sequence
        self._at, self._start_ns = recorder.clock.wall(), recorder.clock.monotonic_ns()
        self.traceparent = context.traceparent if recorder.propagate else None
        self.json: dict[str, Any] | None = None

    def ended(self, recorded: Recorded) -> None:
        """It was answered, or will not be."""
        if not self._recorded:
            return
        duration = self._recorder.clock.monotonic_ns() - self._start_ns
        self._recorder.emit(
            RequestRecord(
                identity=self._identity,
                at=self._at,
                sequence=self._sequence,
                trace_id=self._context.trace_id,
                span_id=self._context.span_id,
                parent_span_id=self._parent.span_id if self._parent is not None else None,
                exchange=replace(recorded.exchange, duration_ns=duration),
            )
        )
