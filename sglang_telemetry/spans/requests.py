"""Requests of the engine, in a sync and outside of one, as OpenTelemetry's stable HTTP conventions have them."""

from dataclasses import replace

from sglang_telemetry.events import Exchange, Identity, RequestRecord
from sglang_telemetry.names import RESPONSE_EVENT, Attribute, Phase
from sglang_telemetry.spans.ended import Ended
from sglang_telemetry.spans.placing import phase_of
from sglang_telemetry.spans.span import Attributes, Span, SpanEvent, identity_attributes, known, unix_ns
from sglang_telemetry.spans.urls import port_of, split_url
from sglang_telemetry.trace_ids import phase_span_id, request_span_id, root_span_id, trace_id


def request_span(sync: Ended, index: int, exchange: Exchange, who: Attributes) -> Span:
    """A request in a sync, below the phase it was sent in; the one that decided has the sync's error.

    Args:
        sync: All of it.
        index: The request's number in it.
        exchange: The request.
        who: Attributes of every span of the sync.
    """
    start_ns = sync.start_ns + exchange.offset_ns
    decided = sync.error if index == sync.decisive and sync.failed_phase is not None else None
    in_request = decided is not None and sync.phases[sync.failed_phase or 0].phase is Phase.REQUEST
    span = _client(
        exchange,
        identity=sync.identity,
        trace_id=sync.trace_id,
        span_id=request_span_id(sync.identity, sync.sequence, index),
        parent_span_id=phase_span_id(sync.identity, sync.sequence, phase_of(sync.phases, exchange)),
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


def outside_span(record: RequestRecord) -> Span:
    """A request outside of a sync, linked to the sync before it."""
    identity, sequence = record.identity, record.sequence
    return _client(
        record.exchange,
        identity=identity,
        trace_id=record.trace_id,
        span_id=record.span_id,
        parent_span_id=record.parent_span_id,
        start_ns=unix_ns(record.at),
        attributes=identity_attributes(identity, sequence),
        links=((trace_id(identity, sequence), root_span_id(identity, sequence)),) if sequence else (),
    )


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
    parts = split_url(exchange.url)
    refused = exchange.status_code is not None and exchange.status_code >= 400
    error_type = exchange.error_type or (str(exchange.status_code) if refused else None)
    end_ns = start_ns + exchange.duration_ns
    size = exchange.response_bytes
    said = known({Attribute.RESPONSE_TEXT: exchange.response_text, Attribute.HTTP_RESPONSE_SIZE: size})
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
            **known(
                {
                    Attribute.HTTP_METHOD: exchange.method,
                    Attribute.URL: exchange.url,
                    Attribute.SERVER_ADDRESS: parts.hostname,
                    Attribute.SERVER_PORT: port_of(parts),
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
