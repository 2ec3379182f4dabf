"""Which spans are complete with an event."""

from sglang_telemetry.events import Event, ProcessLost, RequestRecord, SyncRecord, SyncResolved
from sglang_telemetry.spans.ended import of_loss, of_record
from sglang_telemetry.spans.requests import outside_span
from sglang_telemetry.spans.resolved import resolved_spans
from sglang_telemetry.spans.span import Span
from sglang_telemetry.spans.sync import sync_spans


def spans_of(event: Event) -> tuple[Span, ...]:
    """The spans that are complete with this event, parents first; most events complete none."""
    match event:
        case SyncRecord():
            return tuple(sync_spans(of_record(event)))
        case ProcessLost() if event.sync is not None:
            return tuple(sync_spans(of_loss(event, event.sync)))
        case RequestRecord():
            return (outside_span(event),)
        case SyncResolved() if event.applied is not event.claimed:
            return tuple(resolved_spans(event))
        case _:
            return ()
