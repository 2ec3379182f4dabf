"""In which phase of a sync something lies: its span is below the phase's."""

from collections.abc import Sequence

from sglang_telemetry.events import Exchange, PhaseSpan
from sglang_telemetry.names import UPDATE_ROUTE, Phase


def phase_at(phases: Sequence[PhaseSpan], offset_ns: int) -> int:
    """Index of the phase that is open at that moment, of several that begin then the last."""
    return max((index for index, phase in enumerate(phases) if phase.offset_ns <= offset_ns), default=0)


def phase_of(phases: Sequence[PhaseSpan], exchange: Exchange) -> int:
    """Index of the phase a request was sent in; of several that begin at that moment, an update's is the request."""
    if UPDATE_ROUTE in exchange.url:
        for index, phase in enumerate(phases):
            if phase.phase is Phase.REQUEST and phase.offset_ns == exchange.offset_ns:
                return index
    return phase_at(phases, exchange.offset_ns)
