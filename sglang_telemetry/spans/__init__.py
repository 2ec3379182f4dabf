"""The spans that an event stands for, as plain values; no OpenTelemetry is needed here.

``weight_sync`` (the coordinator's) > ``weight_sync.rank`` (one a rank) > ``weight_sync.<phase>`` > the request, or
``weight_sync.remedy.<action>``. A rank whose caller had an active span has these in the caller's trace; in the trace
that all ranks derive alike, spans without phases stand in their place and link to them, so that every sync can be read
there as a whole. What the exporter finds out later, against the sync's own word, is a span ``weight_sync.resolved``
below ``weight_sync``.
"""

from sglang_telemetry.spans.events import spans_of
from sglang_telemetry.spans.span import Attributes, Span, SpanEvent, Value

__all__ = ["Attributes", "Span", "SpanEvent", "Value", "spans_of"]
