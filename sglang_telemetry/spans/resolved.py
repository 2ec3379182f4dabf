"""What the exporter finds out of a sync that is over, where it is not what the sync said."""

from collections.abc import Iterator
from dataclasses import replace

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import SyncResolved
from sglang_telemetry.names import Applied, Attribute, SpanName
from sglang_telemetry.spans.span import Span, identity_attributes, known, server_attributes, unix_ns
from sglang_telemetry.trace_ids import resolved_span_id, root_span_id, trace_id


def resolved_spans(event: SyncResolved) -> Iterator[Span]:
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
        start_ns=unix_ns(event.ended_at),
        end_ns=max(unix_ns(event.ended_at), unix_ns(event.at)),
        attributes={
            **identity_attributes(identity, sequence),
            **known(server_attributes(event.target)),
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
