"""What an engine sends outside of a sync, such as a rollout: a trace of its own, linked to the sync before it."""

import threading
from dataclasses import replace

from sglang_telemetry.classify import Recorded
from sglang_telemetry.events import RequestRecord
from sglang_telemetry.instrument.context import TraceContext, active
from sglang_telemetry.instrument.sync import Recorder
from sglang_telemetry.trace_ids import outside_ids

RECORDS_PER_SECOND = 10
"""An engine that sends one request a sample must not fill the journal: what is more carries a context, unrecorded."""


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

    def request_started(self) -> "SendingOutside":
        """The engine sends something."""
        now = self._recorder.clock.monotonic_ns()
        with self._lock:
            self._sent += 1
            index = self._sent
            if now // 10**9 != self._second:
                self._second, self._in_second = now // 10**9, 0
            self._in_second += 1
            recorded = self._in_second <= RECORDS_PER_SECOND
        return SendingOutside(self._recorder, index, now, recorded=recorded)


class SendingOutside:
    """One such request that is under way.

    Args:
        recorder: Who speaks, and to whom.
        index: Its number in this process.
        start_ns: Monotonic nanoseconds.
        recorded: A record of it is written when it is over.
    """

    def __init__(self, recorder: Recorder, index: int, start_ns: int, *, recorded: bool) -> None:
        self._recorder, self._start_ns = recorder, start_ns
        self._identity = recorder.identity.current()
        self._at = recorder.clock.wall()
        self._sequence = recorder.sequence
        self._parent = active()
        own_trace, span_id = outside_ids(self._identity, index)
        self._context = TraceContext(
            trace_id=own_trace if self._parent is None else self._parent.trace_id,
            span_id=span_id if recorded or self._parent is None else self._parent.span_id,
            sampled=self._parent is None or self._parent.sampled,
        )
        self._recorded = recorded and self._context.sampled
        self.traceparent = self._context.traceparent if recorder.propagate else None

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
