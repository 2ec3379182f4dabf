"""One span as a plain value, and the attributes that many have."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_telemetry.events import Identity, Target
from sglang_telemetry.names import Attribute
from sglang_telemetry.spans.urls import port_of, split_url

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


def identity_attributes(identity: Identity, sequence: int) -> dict[str, Value]:
    """Of every span of a sync."""
    return {
        Attribute.RUN: identity.run,
        Attribute.RUN_ID: identity.run_id,
        Attribute.SEQUENCE: sequence,
        Attribute.RANK: identity.rank,
        Attribute.WORLD_SIZE: identity.world_size,
    }


def server_attributes(target: Target) -> dict[str, Value | None]:
    """Where a sync goes; None where it is not known."""
    parts = split_url(f"//{target.server or ''}")
    return {
        Attribute.TRANSPORT: target.transport.value,
        Attribute.SERVER_ADDRESS: parts.hostname,
        Attribute.SERVER_PORT: port_of(parts),
    }


def known(values: Mapping[str, Value | None]) -> dict[str, Value]:
    """The attributes without those that are not known."""
    return {name: value for name, value in values.items() if value is not None}


def unix_ns(seconds: float) -> int:
    """Unix seconds in nanoseconds."""
    return round(seconds * 1e9)
