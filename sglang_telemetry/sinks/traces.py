"""Events into OpenTelemetry's spans, which a span processor takes: one trace a sync, over all of its ranks.

The spans are made when they are over, from what the events say, and never by a tracer: their ids are derived and their
times were taken elsewhere. No global tracer provider is read or set.
"""

import os
from collections.abc import Mapping
from urllib.parse import unquote

from opentelemetry.sdk.environment_variables import OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from sglang_telemetry.events import Event, Identity
from sglang_telemetry.names import LOGGER, Attribute, Component
from sglang_telemetry.sinks.guard import Report
from sglang_telemetry.spans import Attributes, Span, spans_of

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope(LOGGER)
_RESOURCES_KEPT = 1024


class TraceSink:
    """Sends the spans of each sync to a span processor, as soon as its rank is done with it.

    Args:
        processor: Such as the SDK's ``BatchSpanProcessor(OTLPSpanExporter())``; default a
            :class:`~sglang_telemetry.sinks.otlp.SpanQueue` that ``OTEL_EXPORTER_OTLP_*`` configures.
        environ: ``OTEL_SERVICE_NAME`` (default: the run) and ``OTEL_RESOURCE_ATTRIBUTES`` are read from it.

    Raises:
        ValueError: No processor is given, and the environment says nothing that can be used.
    """

    component = Component.TRACES

    def __init__(self, processor: SpanProcessor | None = None, *, environ: Mapping[str, str] = os.environ) -> None:
        if processor is None:
            from sglang_telemetry.sinks.otlp import queue_from

            processor = queue_from(environ)
        self.processor = processor
        self._given = _attributes(environ.get(OTEL_RESOURCE_ATTRIBUTES, ""))
        self._service = environ.get(OTEL_SERVICE_NAME) or self._given.get(Attribute.SERVICE_NAME)
        self._resources: dict[Identity, Resource] = {}

    def emit(self, event: Event) -> None:
        """Hand over the spans that are complete with this event."""
        for span in spans_of(event):
            self.processor.on_end(_sdk_span(span, self._resource(span.identity)))
        tell = getattr(self.processor, "tell", None)
        if tell is not None:
            tell()

    def report_to(self, report: Report) -> None:
        """Let the processor tell of spans that were dropped, if it can."""
        tell = getattr(self.processor, "report_to", None)
        if tell is not None:
            tell(report)

    def close(self) -> None:
        """Shut the processor down."""
        self.processor.shutdown()

    def _resource(self, identity: Identity) -> Resource:
        known = self._resources.get(identity)
        if known is None:
            if len(self._resources) >= _RESOURCES_KEPT:
                self._resources.clear()
            known = self._resources[identity] = Resource(
                {
                    **self._given,
                    Attribute.SERVICE_NAME.value: self._service or identity.run,
                    Attribute.SERVICE_INSTANCE.value: f"{identity.run_id}.{identity.rank}",
                    Attribute.HOST.value: identity.host,
                    Attribute.PID.value: identity.pid,
                }
            )
        return known


def _attributes(text: str) -> dict[str, str]:
    """``key=value,...`` with percent-encoded values; what is no pair is left out."""
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs}


def _sdk_span(span: Span, resource: Resource) -> ReadableSpan:
    parent = _context(span.trace_id, span.parent_span_id) if span.parent_span_id is not None else None
    return ReadableSpan(
        name=str(span.name),
        context=_context(span.trace_id, span.span_id),
        parent=parent,
        resource=resource,
        attributes=_plain(span.attributes),
        events=[SdkEvent(one.name, _plain(one.attributes), timestamp=one.at_ns) for one in span.events],
        links=[Link(_context(*link)) for link in span.links],
        kind=SpanKind.CLIENT if span.client else SpanKind.INTERNAL,
        status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)


def _plain(attributes: Attributes) -> dict[str, str | int | float | bool]:
    return {str(name): value for name, value in attributes.items()}
