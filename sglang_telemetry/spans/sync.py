"""The spans of one sync on one rank, from the root down."""

from collections.abc import Iterator
from dataclasses import replace

from sglang_telemetry.names import Attribute, SpanName, phase_span
from sglang_telemetry.spans.ended import Ended
from sglang_telemetry.spans.remedies import remedy_spans
from sglang_telemetry.spans.requests import request_span
from sglang_telemetry.spans.span import Attributes, Span, identity_attributes
from sglang_telemetry.trace_ids import phase_span_id, rank_span_id, root_span_id, trace_id


def sync_spans(sync: Ended) -> Iterator[Span]:
    """All of this rank, parents first."""
    identity, sequence = sync.identity, sync.sequence
    derived, root = trace_id(identity, sequence), root_span_id(identity, sequence)
    rank = rank_span_id(identity, sequence)
    who = identity_attributes(identity, sequence)
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
    yield from remedy_spans(sync, who)
    for index, exchange in sync.exchanges.items():
        yield request_span(sync, index, exchange, who)


def _phases(sync: Ended, parent: str, who: Attributes) -> Iterator[Span]:
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
