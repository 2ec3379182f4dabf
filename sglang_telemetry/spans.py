"""The spans that an event stands for, as plain values; no OpenTelemetry is needed here.

``weight_sync`` (the coordinator's) > ``weight_sync.rank`` (one a rank) > ``weight_sync.<phase>`` > the request. A rank
whose caller had an active span has these in the caller's trace; in the trace that all ranks derive alike, spans without
phases stand in their place and link to them, so that every sync can be read there as a whole. What the exporter finds
out later, against the sync's own word, is a span ``weight_sync.resolved`` below ``weight_sync``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, urlsplit

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    Event,
    Exchange,
    Identity,
    PhaseSpan,
    ProcessLost,
    RequestRecord,
    SyncRecord,
    SyncResolved,
    SyncStarted,
    Target,
)
from sglang_telemetry.names import RESPONSE_EVENT, UPDATE_ROUTE, Applied, Attribute, Phase, Result, SpanName, phase_span
from sglang_telemetry.trace_ids import (
    phase_span_id,
    rank_span_id,
    request_span_id,
    resolved_span_id,
    root_span_id,
    trace_id,
)

Value = str | int | float | bool
Attributes = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """Something that happened at one moment of a span, in Unix nanoseconds."""

    name: str
    at_ns: int
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span.

    Args:
        identity: The process it is of: its resource.
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        parent_span_id: None for a root.
        start_ns: Unix nanoseconds.
        end_ns: Unix nanoseconds.
        error: Description of the status ERROR, None when the status is not an error.
        client: Of kind CLIENT; all others are INTERNAL.
        links: Trace and span ids.
    """

    identity: Identity
    name: str
    trace_id: str
    span_id: str
    parent_span_id: str | None
    start_ns: int
    end_ns: int
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
    client: bool = False
    events: tuple[SpanEvent, ...] = ()
    links: tuple[tuple[str, str], ...] = ()

    @property
    def duration_ns(self) -> int:
        """Nanoseconds from start to end."""
        return self.end_ns - self.start_ns


def spans_of(event: Event) -> tuple[Span, ...]:
    """The spans that are complete with this event, parents first; most events complete none."""
    match event:
        case SyncRecord():
            return tuple(_sync(_of_record(event)))
        case ProcessLost() if event.sync is not None:
            return tuple(_sync(_of_loss(event, event.sync)))
        case RequestRecord():
            return (_outside(event),)
        case SyncResolved() if event.applied is not event.claimed:
            return tuple(_resolved(event))
        case _:
            return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """What a record and a loss have in common."""

    identity: Identity
    sequence: int
    coordinator: bool
    trace_id: str
    parent_span_id: str | None
    start_ns: int
    phases: tuple[PhaseSpan, ...]
    attributes: Attributes
    error: str | None
    error_attributes: Attributes
    failed_phase: int | None
    unfinished: bool = False
    exchanges: Mapping[int, Exchange] = field(default_factory=dict)
    decisive: int | None = None


def _of_record(record: SyncRecord) -> _Ended:
    failed = record.result is Result.FAILURE
    error = (record.cause or FailureCause.UNKNOWN).value if failed else None
    entered = [index for index, span in enumerate(record.phases) if span.phase is record.failed_phase]
    if record.exchange is not None and record.failed_phase is Phase.REQUEST:
        entered.append(_phase_of(record.phases, record.exchange))
    payload = record.checkpoint.bytes if record.checkpoint is not None else None
    return _Ended(
        identity=record.identity,
        sequence=record.sequence,
        coordinator=record.coordinator,
        trace_id=record.trace_id,
        parent_span_id=record.parent_span_id,
        start_ns=_unix_ns(record.started_at),
        phases=record.phases,
        attributes=_known(
            {
                **_target(record),
                Attribute.RESULT: record.result.value,
                Attribute.WEIGHTS_APPLIED: record.weights_applied.value,
                Attribute.ATTEMPTS: record.attempts,
                Attribute.PAYLOAD_BYTES: payload,
            }
        ),
        error=error,
        error_attributes=_known(
            {
                Attribute.CAUSE: error,
                Attribute.ERROR_TYPE: record.error_type,
                Attribute.ERROR_MESSAGE: record.error_text,
            }
        ),
        failed_phase=entered[-1] if failed and entered else None,
        exchanges=dict(enumerate(record.exchanges)),
        decisive=record.decisive,
    )


def _of_loss(loss: ProcessLost, sync: SyncStarted) -> _Ended:
    failed = loss.result is Result.FAILURE
    cause = FailureCause.TRAINER_LOST.value
    return _Ended(
        identity=sync.identity,
        sequence=sync.sequence,
        coordinator=sync.coordinator,
        trace_id=sync.trace_id,
        parent_span_id=sync.parent_span_id,
        start_ns=_unix_ns(sync.at),
        phases=loss.phases,
        attributes=_known(
            {
                **_target(sync),
                Attribute.UNFINISHED: True,
                Attribute.RESULT: (loss.result or Result.CANCELLED).value,
                Attribute.WEIGHTS_APPLIED: Applied.UNKNOWN.value,
            }
        ),
        error=cause if failed else None,
        error_attributes={Attribute.CAUSE: cause, Attribute.ERROR_TYPE: cause} if failed else {},
        failed_phase=len(loss.phases) - 1 if failed and loss.phases else None,
        unfinished=True,
        exchanges={} if loss.exchange is None else {loss.exchange_index: loss.exchange},
        decisive=None if loss.exchange is None else loss.exchange_index,
    )


def _sync(sync: _Ended) -> Iterator[Span]:
    identity, sequence = sync.identity, sync.sequence
    derived, root = trace_id(identity, sequence), root_span_id(identity, sequence)
    rank = rank_span_id(identity, sequence)
    who = _who(identity, sequence)
    end_ns = sync.start_ns + sum(span.duration_ns for span in sync.phases)
    joined = sync.parent_span_id is not None
    attributes = {**who, **sync.attributes, **sync.error_attributes}
    of_root = Span(
        identity=identity,
        name=SpanName.SYNC,
        trace_id=sync.trace_id,
        span_id=root,
        parent_span_id=sync.parent_span_id,
        start_ns=sync.start_ns,
        end_ns=end_ns,
        attributes=attributes,
        error=sync.error,
        links=((derived, root),) if joined else (),
    )
    of_rank = replace(
        of_root,
        name=SpanName.RANK,
        span_id=rank,
        parent_span_id=root if sync.coordinator or not joined else sync.parent_span_id,
        links=((derived, root),) if joined and not sync.coordinator else (),
    )
    mine = (of_root, of_rank) if sync.coordinator else (of_rank,)
    yield from mine
    if joined:
        for span in mine:
            parent = None if span is of_root else root
            yield replace(span, trace_id=derived, parent_span_id=parent, links=((sync.trace_id, span.span_id),))
    yield from _phases(sync, rank, who)
    for index, exchange in sync.exchanges.items():
        yield _request(sync, index, exchange, who)


def _phases(sync: _Ended, parent: str, who: Attributes) -> Iterator[Span]:
    for index, phase in enumerate(sync.phases):
        failed = index == sync.failed_phase
        unfinished = sync.unfinished and index == len(sync.phases) - 1
        start_ns = sync.start_ns + phase.offset_ns
        yield Span(
            identity=sync.identity,
            name=phase_span(phase.phase),
            trace_id=sync.trace_id,
            span_id=phase_span_id(sync.identity, sync.sequence, index),
            parent_span_id=parent,
            start_ns=start_ns,
            end_ns=start_ns + phase.duration_ns,
            attributes={
                **who,
                **(sync.error_attributes if failed else {}),
                **({Attribute.UNFINISHED: True} if unfinished else {}),
            },
            error=sync.error if failed else None,
        )


def _request(sync: _Ended, index: int, exchange: Exchange, who: Attributes) -> Span:
    start_ns = sync.start_ns + exchange.offset_ns
    decided = sync.error if index == sync.decisive and sync.failed_phase is not None else None
    in_request = decided is not None and sync.phases[sync.failed_phase or 0].phase is Phase.REQUEST
    span = _client(
        exchange,
        identity=sync.identity,
        trace_id=sync.trace_id,
        span_id=request_span_id(sync.identity, sync.sequence, index),
        parent_span_id=phase_span_id(sync.identity, sync.sequence, _phase_of(sync.phases, exchange)),
        start_ns=start_ns,
        attributes=who,
    )
    before = (one for number, one in sync.exchanges.items() if number < index)
    again = sum((one.method, one.url) == (exchange.method, exchange.url) for one in before)
    if again:
        span = replace(span, attributes={**span.attributes, Attribute.HTTP_RESEND_COUNT: again})
    if not in_request:
        return span
    # The error.type of a request is its own: a 200 that SGLang says is no success has none.
    of_sync = {**sync.attributes, **sync.error_attributes}
    names = (Attribute.CAUSE, Attribute.WEIGHTS_APPLIED, *([Attribute.UNFINISHED] if sync.unfinished else []))
    told: Attributes = {name: of_sync[name] for name in names}
    return replace(span, attributes={**span.attributes, **told}, error=sync.error)


def _outside(record: RequestRecord) -> Span:
    identity, sequence = record.identity, record.sequence
    return _client(
        record.exchange,
        identity=identity,
        trace_id=record.trace_id,
        span_id=record.span_id,
        parent_span_id=record.parent_span_id,
        start_ns=_unix_ns(record.at),
        attributes=_who(identity, sequence),
        links=((trace_id(identity, sequence), root_span_id(identity, sequence)),) if sequence else (),
    )


def _resolved(event: SyncResolved) -> Iterator[Span]:
    """What a sync had claimed turned out otherwise: from its end to the look that told."""
    identity, sequence = event.identity, event.sequence
    derived, root = trace_id(identity, sequence), root_span_id(identity, sequence)
    refuted = event.applied is Applied.NO
    span = Span(
        identity=identity,
        name=SpanName.RESOLVED,
        trace_id=event.trace_id,
        span_id=resolved_span_id(identity, sequence, event.target.server or "", event.applied),
        parent_span_id=root,
        start_ns=_unix_ns(event.ended_at),
        end_ns=max(_unix_ns(event.ended_at), _unix_ns(event.at)),
        attributes={
            **_who(identity, sequence),
            **_known(_server(event.target)),
            Attribute.CLAIMED: event.claimed.value,
            Attribute.WEIGHTS_APPLIED: event.applied.value,
            Attribute.EVIDENCE: event.evidence.value,
            Attribute.DELAY: event.delay_seconds,
            **({Attribute.CAUSE: FailureCause.NOT_APPLIED.value} if refuted and event.claimed is Applied.YES else {}),
        },
        error=FailureCause.NOT_APPLIED.value if refuted and event.claimed is Applied.YES else None,
    )
    yield span
    if event.trace_id != derived:
        yield replace(span, trace_id=derived, links=((event.trace_id, span.span_id),))


def _client(
    exchange: Exchange,
    *,
    identity: Identity,
    trace_id: str,
    span_id: str,
    parent_span_id: str | None,
    start_ns: int,
    attributes: Attributes,
    links: tuple[tuple[str, str], ...] = (),
) -> Span:
    """The request as OpenTelemetry's stable HTTP conventions have it."""
    parts = _split(exchange.url)
    refused = exchange.status_code is not None and exchange.status_code >= 400
    error_type = exchange.error_type or (str(exchange.status_code) if refused else None)
    end_ns = start_ns + exchange.duration_ns
    size = exchange.response_bytes
    said = _known({Attribute.RESPONSE_TEXT: exchange.response_text, Attribute.HTTP_RESPONSE_SIZE: size})
    return Span(
        identity=identity,
        name=f"{exchange.method} {parts.path}".strip(),
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=parent_span_id,
        start_ns=start_ns,
        end_ns=end_ns,
        client=True,
        attributes={
            **attributes,
            **_known(
                {
                    Attribute.HTTP_METHOD: exchange.method,
                    Attribute.URL: exchange.url,
                    Attribute.SERVER_ADDRESS: parts.hostname,
                    Attribute.SERVER_PORT: _port(parts),
                    Attribute.HTTP_STATUS: exchange.status_code,
                    Attribute.HTTP_RESPONSE_SIZE: size,
                    Attribute.ERROR_TYPE: error_type,
                    Attribute.ERROR_MESSAGE: exchange.error_text,
                }
            ),
        },
        error=error_type,
        events=(SpanEvent(name=RESPONSE_EVENT, at_ns=end_ns, attributes=said),) if exchange.response_text else (),
        links=links,
    )


def _phase_of(phases: Iterable[PhaseSpan], exchange: Exchange) -> int:
    """Index of the phase a request was sent in; of several that begin at that moment, an update's is the request."""
    begun = [(index, phase) for index, phase in enumerate(phases) if phase.offset_ns <= exchange.offset_ns]
    if UPDATE_ROUTE in exchange.url:
        for index, phase in begun:
            if phase.phase is Phase.REQUEST and phase.offset_ns == exchange.offset_ns:
                return index
    return begun[-1][0] if begun else 0


def _who(identity: Identity, sequence: int) -> dict[str, Value]:
    return {
        Attribute.RUN: identity.run,
        Attribute.RUN_ID: identity.run_id,
        Attribute.SEQUENCE: sequence,
        Attribute.RANK: identity.rank,
        Attribute.WORLD_SIZE: identity.world_size,
    }


def _target(sync: SyncRecord | SyncStarted) -> dict[str, Value | None]:
    return {Attribute.VERSION: sync.version, **_server(sync.target)}


def _server(target: Target) -> dict[str, Value | None]:
    parts = _split(f"//{target.server or ''}")
    return {
        Attribute.TRANSPORT: target.transport.value,
        Attribute.SERVER_ADDRESS: parts.hostname,
        Attribute.SERVER_PORT: _port(parts),
    }


def _split(url: str) -> SplitResult:
    """The parts of a URL; of one that is none, no parts."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None


def _known(values: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if value is not None}


def _unix_ns(seconds: float) -> int:
    return round(seconds * 1e9)
