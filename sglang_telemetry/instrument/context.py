"""OpenTelemetry's current context, looked at and set only where the trainer has imported it: nothing is imported here.

During a sync the current span is one of ours that follows the phases, so that a span which the user's own
instrumentation makes of the engine's request nests under the phase it happened in.
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """Which span a request, or a span below it, belongs to.

    Args:
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        sampled: Whoever goes on with it should record it.
    """

    trace_id: str
    span_id: str
    sampled: bool = True

    @property
    def traceparent(self) -> str:
        """The W3C header."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def active() -> TraceContext | None:
    """The caller's active span, None when there is none or OpenTelemetry is not in use."""
    api = _api()
    if api is None:
        return None
    try:
        context = api.get_current_span().get_span_context()
        return _of(context) if context.is_valid else None
    except Exception:  # whatever the host put there: a sync is worth more than whose child it is
        return None


def attach(now: Callable[[], TraceContext | None]) -> Callable[[], None] | None:
    """Make a span of ours the current one.

    Args:
        now: Asked for the span each time somebody makes a child of it.

    Returns:
        What puts the context back; None where OpenTelemetry is not in use.
    """
    api, contexts = _api(), sys.modules.get("opentelemetry.context")
    if api is None or contexts is None:
        return None
    try:
        token = contexts.attach(api.set_span_in_context(_following(api, now)))
        mine = contexts.get_current()
    except Exception:
        return None

    def restore() -> None:
        with contextlib.suppress(Exception):
            # Detaching another than the current one is logged as an error: a generator may end in another context.
            if contexts.get_current() is mine:
                contexts.detach(token)

    return restore


def _of(context: Any) -> TraceContext:
    return TraceContext(
        trace_id=f"{context.trace_id:032x}", span_id=f"{context.span_id:016x}", sampled=context.trace_flags.sampled
    )


def _following(api: Any, now: Callable[[], TraceContext | None]) -> Any:
    class Following(api.NonRecordingSpan):  # type: ignore[misc]
        """The span of the phase that is open at the moment somebody asks."""

        def get_span_context(self) -> Any:
            context = now()
            if context is None:
                return api.INVALID_SPAN_CONTEXT
            flags = api.TraceFlags(api.TraceFlags.SAMPLED if context.sampled else api.TraceFlags.DEFAULT)
            return api.SpanContext(int(context.trace_id, 16), int(context.span_id, 16), False, flags)

    return Following(api.INVALID_SPAN_CONTEXT)


def _api() -> Any:
    """``opentelemetry.trace`` when it is imported, to its end."""
    api = sys.modules.get("opentelemetry.trace")
    return api if getattr(api, "NonRecordingSpan", None) is not None else None
