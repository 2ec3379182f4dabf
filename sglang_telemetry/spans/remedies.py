"""What remedies did in a sync, each below the phase that it began in."""

from collections.abc import Iterator

from sglang_telemetry.names import Attribute, Outcome, remedy_span
from sglang_telemetry.spans.ended import Ended
from sglang_telemetry.spans.placing import phase_at
from sglang_telemetry.spans.span import Attributes, Span
from sglang_telemetry.trace_ids import phase_span_id, remedy_span_id


def remedy_spans(sync: Ended, who: Attributes) -> Iterator[Span]:
    """An error where it failed, or held something back.

    Args:
        sync: All of it.
        who: Attributes of every span of the sync.
    """
    for index, remedy in enumerate(sync.remedies):
        start_ns = sync.start_ns + remedy.offset_ns
        detail: Attributes = {Attribute.REMEDY_DETAIL: remedy.detail} if remedy.detail else {}
        yield Span(
            identity=sync.identity,
            name=remedy_span(remedy.action),
            trace_id=sync.trace_id,
            span_id=remedy_span_id(sync.identity, sync.sequence, index),
            parent_span_id=phase_span_id(sync.identity, sync.sequence, phase_at(sync.phases, remedy.offset_ns)),
            start_ns=start_ns,
            end_ns=start_ns + remedy.duration_ns,
            attributes={**who, Attribute.REMEDY_OUTCOME: remedy.outcome.value, **detail},
            error=remedy.outcome.value if remedy.outcome in {Outcome.FAILED, Outcome.REFUSED} else None,
        )
