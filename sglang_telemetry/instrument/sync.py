"""One sync on one rank: phases and evidence while it runs, a record when it ends."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.checkpoint import folder as checkpoint
from sglang_telemetry.classify import Recorded
from sglang_telemetry.events import (
    MAX_EXCHANGES,
    Checkpoint,
    EnginePrint,
    Event,
    Exchange,
    PhaseStarted,
    Remedied,
    Remedy,
    SyncRecord,
    SyncStarted,
    Target,
)
from sglang_telemetry.identity import IdentitySource
from sglang_telemetry.instrument.context import TraceContext, active
from sglang_telemetry.instrument.http import is_update, path_in, server_in, transport_of
from sglang_telemetry.instrument.inspection import Inspection
from sglang_telemetry.instrument.rollouts import Rollouts
from sglang_telemetry.instrument.troubles import Troubles
from sglang_telemetry.instrument.updates import Refusal, Updates
from sglang_telemetry.instrument.weight_version import tagged, version_in
from sglang_telemetry.names import Action, Applied, Outcome, Phase, Result, Transport
from sglang_telemetry.remedies.retry import Failed
from sglang_telemetry.remedies.timeout import timeout_of
from sglang_telemetry.tags import tag_of
from sglang_telemetry.text import clean, clean_url
from sglang_telemetry.timeline import Clock, Timeline
from sglang_telemetry.trace_ids import phase_span_id, rank_span_id, request_span_id, root_span_id, trace_id

Emit = Callable[[Event], bool]
"""Takes an event; True when a person can read it in a log."""

_BEFORE_SAVE = frozenset({Phase.SETUP, Phase.OTHER})


class Recorder:
    """What lasts from sync to sync in one process.

    Args:
        identity: Who speaks.
        emit: Takes the events; never raises.
        clock: Where time comes from.
        propagate: The engine's requests carry ``traceparent``.
        tag_weights: Updates that name no weight version are sent with one that names the sync.
    """

    def __init__(
        self,
        identity: IdentitySource,
        emit: Emit,
        clock: Clock,
        *,
        propagate: bool = True,
        tag_weights: bool = False,
    ) -> None:
        self.identity = identity
        self.emit = emit
        self.clock = clock
        self.propagate = propagate
        self.tag_weights = tag_weights
        self.rollouts = Rollouts(identity, emit, clock)
        self.reached = False
        self.last_payload_bytes: int | None = None
        self.sequence = 0
        """Number of the sync that began last, 0 before the first."""
        self._lock = threading.Lock()

    def begin(self, target: Target, *, version: str | None = None, folder: str | None = None) -> "Sync":
        """Start a sync."""
        self.rollouts.flush(self.sequence)
        with self._lock:
            self.sequence += 1
            sequence = self.sequence
        return Sync(self, sequence, target, version, folder)


class Sync:
    """A sync that runs.

    Args:
        recorder: What lasts longer than this.
        sequence: Number of this sync in its process, from 1.
        target: Where it goes, as far as it is known now.
        version: The caller's name for the weights.
        folder: The checkpoint folder, as far as it is known now.
    """

    def __init__(
        self, recorder: Recorder, sequence: int, target: Target, version: str | None, folder: str | None
    ) -> None:
        self.recorder, self._sequence, self._target = recorder, sequence, target
        self._version, self._folder = version, folder
        self.inside = 0
        """How many save or state_dict calls are open; what they call is part of them."""
        self._timeline = Timeline(recorder.clock)
        self._identity = recorder.identity.current()
        self._coordinator = recorder.identity.is_coordinator()
        self._caller = active()
        # A caller's span that is not recorded anywhere is no place to put ours under.
        joined = self._caller if self._caller is not None and self._caller.sampled else None
        self._trace_id = trace_id(self._identity, sequence) if joined is None else joined.trace_id
        self._parent_span_id = joined.span_id if joined is not None else None
        self._exchanges: list[Exchange] = []
        self._updates = Updates()
        self._troubles = Troubles(self._updates)
        self._lock = threading.Lock()
        self._under_way = 0
        self.over = False
        """It has ended; a task that was begun in it may live on."""
        self._attempts = 0
        self._remedies: list[Remedy] = []
        self.passed = 0
        """Collectives of the engine that have come to their end."""
        self._tag = (version or tag_of(self._identity, sequence)) if recorder.tag_weights else None
        self._sent: str | None = None
        self.inspection: Inspection | None = None
        """Looks at what is sent, beside the sync."""
        recorder.emit(
            SyncStarted(
                identity=self._identity,
                sequence=sequence,
                at=self._timeline.started_at,
                coordinator=self._coordinator,
                trace_id=self._trace_id,
                target=target,
                version=version or (self._tag if self._coordinator else None),
                parent_span_id=self._parent_span_id,
            )
        )

    @property
    def coordinator(self) -> bool:
        """This rank sends the update, and counts the sync."""
        return self._coordinator

    @property
    def sent(self) -> tuple[str | None, str | None]:
        """Path and weight version that the last update has named."""
        return self._folder, self._sent

    @property
    def context(self) -> TraceContext | None:
        """The span of the phase that is open: what a span that begins now belongs to; the caller's when it is over."""
        if self.over:
            return self._caller
        return self._in_trace(phase_span_id(self._identity, self._sequence, self._timeline.index))

    @property
    def phase(self) -> Phase:
        """The phase that is open."""
        return self._timeline.phase

    def mark(self, phase: Phase) -> None:
        """Go into a phase."""
        offset = self._timeline.mark(phase)
        if offset is not None:
            self._entered(phase, offset)

    def _entered(self, phase: Phase, offset: int, exchange: Exchange | None = None, index: int = 0) -> None:
        self.recorder.emit(
            PhaseStarted(
                identity=self._identity,
                sequence=self._sequence,
                phase=phase,
                offset_ns=offset,
                exchange=exchange,
                exchange_index=index,
            )
        )

    def waits(self) -> None:
        """What comes now is neither saving nor sending."""
        self.mark(Phase.OTHER)

    def offset_ns(self) -> int:
        """Nanoseconds since the start."""
        return self._timeline.offset_ns()

    def remedied(
        self, action: Action, outcome: Outcome, began_ns: int, detail: str = "", *, server: str | None = None
    ) -> None:
        """A remedy did something, about that server of several."""
        remedy = Remedy(
            action=action,
            outcome=outcome,
            offset_ns=began_ns,
            duration_ns=self.offset_ns() - began_ns,
            detail=clean(detail, limit=1024),
        )
        self._remedies.append(remedy)
        self.recorder.emit(
            Remedied(
                identity=self._identity,
                sequence=self._sequence,
                at=self.recorder.clock.wall(),
                trace_id=self._trace_id,
                target=self._target if server is None else replace(self._target, server=server),
                remedy=remedy,
            )
        )

    def refused(self, url: str, cause: FailureCause, text: str) -> None:
        """A remedy does not let the update to that URL be sent."""
        refusal = Refusal(server=server_in(url), cause=cause, phase=self.phase, text=clean(text))
        self._updates.refuse(url, refusal)

    def failure(self, url: str) -> Failed | None:
        """How the last update to that URL failed, as far as it is known now; None when the server took it."""
        return self._updates.failure(url, lambda: self._look(deep=True))

    def mark_state_dict(self) -> None:
        """The weights are being gathered, unless that is part of a save."""
        if self.phase in _BEFORE_SAVE and self._recorded is None:
            self.mark(Phase.STATE_DICT)

    def mark_save(self) -> None:
        """The checkpoint is being written."""
        if self.inspection is not None:
            self.inspection.saving()
        if self.phase is not Phase.REQUEST:
            self.mark(Phase.SAVE)

    def saw_error(self, error: BaseException, phase: Phase | None = None) -> None:
        """An exception passed a seam."""
        self._troubles.saw(error, phase or self.phase)

    def saw_print(self, text: str, handled: BaseException | None) -> bool:
        """The engine printed; True when a log line says it, so that the print itself can be left out.

        Args:
            text: What it printed.
            handled: The exception that the engine was handling while it printed.
        """
        if handled is not None and (self._recorded is None or self._recorded.error is not handled):
            self.saw_error(handled)
        self._troubles.printed.append(text)
        shown = EnginePrint(
            identity=self._identity,
            sequence=self._sequence,
            text=clean(text),
            recognised=self._troubles.recognises(text, handled),
        )
        return self.recorder.emit(shown)

    def request_started(self, method: str, url: str, arguments: dict[str, Any]) -> "Sending | None":
        """The engine sends something; None when that is one request too many to be recorded."""
        update = is_update(url)
        body = None
        if update:
            self._attempts += 1
            self._folder = path_in(arguments) or self._folder
            body = self._versioned(arguments)
            timeout = timeout_of(arguments.get("timeout"))
            self._target = Target(
                server=server_in(url) or self._target.server,
                transport=transport_of(url),
                timeout_seconds=self._target.timeout_seconds if timeout is None else timeout,
            )
            self._inspect()
        with self._lock:  # an engine may send to several servers at once
            if len(self._exchanges) == MAX_EXCHANGES:
                if not update:
                    return None
                self._exchanges.pop()
            index = len(self._exchanges)
            entered = self._timeline.mark(Phase.REQUEST) if update else None
            started = Exchange(method=method, url=clean_url(url), offset_ns=self._timeline.offset_ns())
            self._exchanges.append(started)
            self._under_way += update
        if entered is not None:
            self._entered(Phase.REQUEST, entered, started, index)
        context = self._in_trace(request_span_id(self._identity, self._sequence, index))
        traceparent = context.traceparent if self.recorder.propagate else None
        return Sending(self, index, traceparent, update=update, json=body)

    def _versioned(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """The body with our tag, where that is wanted and the engine names no version itself."""
        body = None if self._tag is None else tagged(arguments, self._tag)
        self._sent = version_in(arguments) if body is None else self._tag
        if self._sent is not None:
            self.recorder.rollouts.sent(self._sent, self._sequence)
        return body

    def _inspect(self) -> None:
        wanted = self._coordinator and self._target.transport is Transport.DISK
        if self.inspection is not None and wanted and self._folder is not None:
            self.inspection.sending(self._folder)

    def request_ended(self, index: int, recorded: Recorded, *, update: bool) -> None:
        """A request has been answered, or will not be."""
        offset = self._exchanges[index].offset_ns
        duration = self._timeline.offset_ns() - offset
        exchange = replace(recorded.exchange, offset_ns=offset, duration_ns=duration)
        self._exchanges[index] = exchange
        if not update:
            return
        with self._lock:
            self._under_way -= 1
            last = not self._under_way
        if last:
            self.mark(Phase.OTHER)
        self._updates.add(index, replace(recorded, exchange=exchange), self._target.server)

    def fail(self, text: str) -> None:
        """The caller knows that this sync failed."""
        self._troubles.reported = text

    def end(self, *, returned: object = None, raised: BaseException | None = None) -> SyncRecord:
        """Close the sync and tell the sinks."""
        phase = self.phase
        decisive, recorded = self._updates.decisive()
        refusal = self._updates.refusal
        of = refusal.server if refusal is not None else server_in(recorded.exchange.url) if recorded else None
        self._target = replace(self._target, server=of or self._target.server)
        reached_before = self.recorder.reached
        result = self._troubles.result(returned, raised)
        self.over = True
        phases = self._timeline.finish()
        if decisive is not None and recorded is not None:  # of many servers, its place may be a later one's by now
            self._exchanges[decisive] = recorded.exchange
        if len(self._updates) > 1:
            for index, applied in self._updates.taken():
                self._exchanges[index] = replace(self._exchanges[index], weights_applied=applied)
        there = self._look(deep=result is Result.FAILURE)
        if refusal is not None and refusal.cause is FailureCause.CHECKPOINT_INVALID:
            there = None  # what was refused may not be what lies in the folder now
        record = SyncRecord(
            identity=self._identity,
            sequence=self._sequence,
            started_at=self._timeline.started_at,
            duration_ns=sum(span.duration_ns for span in phases),
            phases=phases,
            result=result,
            coordinator=self._coordinator,
            trace_id=self._trace_id,
            span_id=(root_span_id if self._coordinator else rank_span_id)(self._identity, self._sequence),
            target=self._target,
            parent_span_id=self._parent_span_id,
            weights_applied=self._applied(result),
            exchanges=tuple(self._exchanges),
            decisive=decisive,
            attempts=max(1, self._attempts),
            checkpoint=there,
            reached_before=reached_before,
            version=self._version or (clean(self._sent, limit=256) if self._sent is not None else None),
            remedies=tuple(self._remedies),
        )
        if result is Result.FAILURE:
            record = self._troubles.explained(record, raised, phase, self.recorder.last_payload_bytes)
        if recorded is not None and recorded.exchange.status_code is not None:
            self.recorder.reached = True
        if there is not None and there.bytes and there.fault is None:
            self.recorder.last_payload_bytes = there.bytes
        # Exceptions hold their frames, and those the half-precision copy of the model: let go before anything else.
        self._troubles.clear()
        self.recorder.emit(record)
        if self.inspection is not None:
            self.inspection.ended(record)
        self._note_taken(record)
        return record

    def _note_taken(self, record: SyncRecord) -> None:
        """So that rollouts can be told apart; a rank that sends nothing itself knows what the coordinator's tag is."""
        by_coordinator = not self._coordinator and not self._attempts
        if by_coordinator and record.result is Result.SUCCESS:
            self.recorder.rollouts.taken(self._tag or self._version, self._sequence)
        elif record.weights_applied is Applied.YES:
            self.recorder.rollouts.taken(self._sent if self._attempts else self._version, self._sequence)

    @property
    def _recorded(self) -> Recorded | None:
        return self._updates.decisive()[1]

    def _in_trace(self, span_id: str) -> TraceContext:
        caller = self._caller
        if caller is not None and not caller.sampled:
            return TraceContext(trace_id=caller.trace_id, span_id=span_id, sampled=False)
        return TraceContext(trace_id=self._trace_id, span_id=span_id)

    def _applied(self, result: Result) -> Applied:
        if self._updates.refusal is not None:
            return self._updates.refused
        if self._recorded is not None and not self._recorded.failed:
            return Applied.YES
        if self._under_way:  # a thread of the engine's still sends
            return Applied.UNKNOWN
        return Applied.YES if result is Result.SUCCESS and self._coordinator else Applied.UNKNOWN

    def _look(self, *, deep: bool) -> Checkpoint | None:
        if not self._coordinator or self._folder is None:
            return None
        try:
            if not deep or self.inspection is None:
                return checkpoint.look(self._folder, deep=deep)
            expected = self.inspection.expected(self._folder)
            return checkpoint.look(self._folder, deep=True, expected=expected.tensors, ties=expected.ties)
        except Exception:  # what cannot be looked at is unknown; the record has to be written all the same
            return None


class Sending:
    """One request of a sync that is under way.

    Args:
        sync: Told when it is over.
        index: Its number among the requests of the sync.
        traceparent: The header it should carry.
        update: It sends weights.
        json: The body to send in the place of the engine's.
    """

    def __init__(
        self, sync: Sync, index: int, traceparent: str | None, *, update: bool, json: dict[str, Any] | None
    ) -> None:
        self._sync, self._index, self._update = sync, index, update
        self.traceparent, self.json = traceparent, json

    def ended(self, recorded: Recorded) -> None:
        """It was answered, or will not be."""
        self._sync.request_ended(self._index, recorded, update=self._update)
