"""The traces of syncs for assertions: from a sink in the process, or from the journals of all ranks."""

from collections.abc import Iterable
from pathlib import Path

from sglang_telemetry.events import Event, RequestRecord
from sglang_telemetry.journal.reader import SegmentReader
from sglang_telemetry.journal.retention import segments
from sglang_telemetry.names import Attribute, Component, Phase, SpanName, phase_span
from sglang_telemetry.spans import Span, spans_of


class SyncTrace:
    """All spans of one sync.

    Args:
        spans: Of one sync, in any order.
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = tuple(spans)

    @property
    def root(self) -> Span:
        """The coordinator's ``weight_sync`` in the trace that all ranks derive alike."""
        roots = [span for span in self.spans if span.name == SpanName.SYNC and span.parent_span_id is None]
        assert len(roots) == 1, f"{len(roots)} roots: {[span.name for span in self.spans]}"
        return roots[0]

    def rank(self, rank: int = 0) -> Span:
        """The ``weight_sync.rank`` of a rank, in the caller's trace when the caller had an active span.

        Raises:
            AssertionError: There is none.
        """
        of_rank = [one for one in self.spans if one.name == SpanName.RANK and one.attributes[Attribute.RANK] == rank]
        assert of_rank, f"no span of rank {rank}: {[span.name for span in self.spans]}"
        return max(of_rank, key=lambda span: len(self._below(span)))  # one that stands in for it has no phases

    def phases(self, rank: int = 0) -> tuple[Span, ...]:
        """The phases of a rank in their order."""
        return self._below(self.rank(rank))

    def phase(self, phase: Phase | str, rank: int = 0) -> Span:
        """The longest span of one phase of a rank.

        Raises:
            AssertionError: The rank was never in that phase.
        """
        of_phase = [span for span in self.phases(rank) if span.name == phase_span(Phase(phase))]
        assert of_phase, f"rank {rank} was never in {phase}: {[span.name for span in self.phases(rank)]}"
        return max(of_phase, key=lambda span: span.duration_ns)

    def requests(self, rank: int = 0) -> tuple[Span, ...]:
        """The CLIENT spans of a rank in their order."""
        return tuple(one for phase in self.phases(rank) for one in self._below(phase) if one.client)

    def remedies(self, rank: int = 0) -> tuple[Span, ...]:
        """The spans of what remedies did on a rank, in their order."""
        return tuple(one for phase in self.phases(rank) for one in self._below(phase) if not one.client)

    def assert_complete(self, *, ranks: int = 1) -> None:
        """Check what holds for the trace of every sync.

        Args:
            ranks: How many ranks it has.

        Raises:
            AssertionError: A rank or a parent is missing, a span leaves its parent's time, or the phases of a rank do
                not add up to its span.
        """
        ids = {(span.trace_id, span.span_id): span for span in self.spans}
        root = self.root
        found = sorted({int(one.attributes[Attribute.RANK]) for one in self.spans if one.name == SpanName.RANK})
        assert found == list(range(ranks)), f"spans of ranks {found}, expected {ranks} ranks"
        for rank in found:
            span, phases = self.rank(rank), self.phases(rank)
            spent = sum(phase.duration_ns for phase in phases)
            assert spent == span.duration_ns, f"rank {rank}: phases take {spent} ns, the rank {span.duration_ns} ns"
            for below in (*phases, *self.requests(rank)):
                above = ids[below.trace_id, below.parent_span_id or ""]
                inside = above.start_ns <= below.start_ns and below.end_ns <= above.end_ns
                assert inside, f"rank {rank}: {below.name} is not inside {above.name}"
            if span.trace_id == root.trace_id:
                assert span.parent_span_id == root.span_id, f"rank {rank} is not below {root.name}"

    def _below(self, parent: Span) -> tuple[Span, ...]:
        below = [one for one in self.spans if (one.trace_id, one.parent_span_id) == (parent.trace_id, parent.span_id)]
        return tuple(sorted(below, key=lambda span: (span.start_ns, span.end_ns)))


class RecordedTraces:
    """A sink that keeps the spans of every sync: ``instrument(engine, sinks=[traces])``."""

    component = Component.TRACES

    def __init__(self) -> None:
        self.spans: list[Span] = []
        """The spans of the syncs."""
        self.rollouts: list[Span] = []
        """The CLIENT spans of what the engine sent outside of its syncs."""

    def emit(self, event: Event) -> None:
        """Keep the spans that are complete with this event."""
        (self.rollouts if isinstance(event, RequestRecord) else self.spans).extend(spans_of(event))

    def close(self) -> None:
        """The spans stay readable."""

    @property
    def sequences(self) -> list[int]:
        """The syncs that have ended, in their order."""
        return sorted({int(one.attributes[Attribute.SEQUENCE]) for one in self.spans if one.name == SpanName.RANK})

    def sync(self, sequence: int | None = None) -> SyncTrace:
        """One sync; default the last.

        Raises:
            AssertionError: There was no such sync.
        """
        known = self.sequences
        wanted = sequence if sequence is not None else max(known, default=0)
        assert wanted in known, f"sync {wanted} has not ended; those that have: {known}"
        return SyncTrace(span for span in self.spans if span.attributes[Attribute.SEQUENCE] == wanted)


def traces_of(folder: Path) -> RecordedTraces:
    """The traces that the journals of a folder tell of, for tests with several ranks.

    A rank that was killed in a sync has not ended it; what is known of that is the exporter's to say.
    """
    traces = RecordedTraces()
    for path in segments(folder):
        reader = SegmentReader(path)
        try:
            for event in reader.events():
                traces.emit(event)
        finally:
            reader.close()
    return traces
