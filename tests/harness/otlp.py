"""A real OTLP receiver, the spans it got as plain values, and one sync's spans as the tree that they make."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.test._otlp_test_server import OtlpProtoTestServer, RecordedSpan

from tests.harness.processes import wait_until

Attributes = Mapping[str, Any]
_SYNC = "weight_sync"
_RANK = "weight_sync.rank"


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """A span event."""

    name: str
    at_ns: int
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as it came over the wire; ids are lower-case hex, ``parent`` is None for a root."""

    trace_id: str
    span_id: str
    parent: str | None
    name: str
    kind: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    status: Literal["UNSET", "OK", "ERROR"]
    status_text: str
    events: tuple[ReceivedEvent, ...]
    links: tuple[tuple[str, str], ...]
    resource: Attributes

    @property
    def duration_ns(self) -> int:
        """Nanoseconds from start to end."""
        return self.end_ns - self.start_ns

    @property
    def rank(self) -> int:
        """The rank that it is of."""
        return int(self.attributes["weight_sync.rank"])


class OtlpReceiver:
    """Takes spans by OTLP over HTTP on a free port, and keeps them in the order in which they came.

    Args:
        host: Address to bind.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._server = OtlpProtoTestServer(host=host).start()
        self._spans: list[ReceivedSpan] = []
        self.endpoint = f"http://{host}:{self._server.port}"
        self.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint}
        """What tells an exporter to send its spans here."""

    def spans(self) -> list[ReceivedSpan]:
        """All spans that have come."""
        self._spans += map(_received, self._server.drain_spans())
        return list(self._spans)

    def traces(self) -> dict[str, list[ReceivedSpan]]:
        """All spans that have come, by trace id."""
        found: dict[str, list[ReceivedSpan]] = {}
        for span in self.spans():
            found.setdefault(span.trace_id, []).append(span)
        return found

    def wait_for(
        self, wanted: int | Callable[[list[ReceivedSpan]], object], what: str = "", timeout: float = 30.0
    ) -> list[ReceivedSpan]:
        """Wait for so many spans, or for a condition on all that have come; what has come then."""

        def there() -> object:
            spans = self.spans()
            return len(spans) >= wanted if isinstance(wanted, int) else wanted(spans)

        try:
            wait_until(there, what or f"{wanted} spans at the receiver", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}; there are {Counter(span.name for span in self.spans())}") from None
        return self.spans()

    def close(self) -> None:
        """Stop."""
        self._server.stop()

    def __enter__(self) -> "OtlpReceiver":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class SyncTrace:
    """The spans of one sync over all of its ranks; making it fails where they are not one whole tree.

    Args:
        root: ``weight_sync``.
        ranks: ``weight_sync.rank`` by rank.
        phases: The phases of each rank in their order.
        requests: The CLIENT spans of each rank in their order.
    """

    root: ReceivedSpan
    ranks: Mapping[int, ReceivedSpan]
    phases: Mapping[int, list[ReceivedSpan]]
    requests: Mapping[int, list[ReceivedSpan]]

    @classmethod
    def of(cls, spans: Iterable[ReceivedSpan], *, ranks: int) -> "SyncTrace":
        """The tree of these spans, which have to be one trace: a root, so many ranks, phases, requests, no others."""
        spans = list(spans)
        assert len({span.trace_id for span in spans}) == 1
        assert len({span.span_id for span in spans}) == len(spans), "no span comes twice"
        by_id = {span.span_id: span for span in spans}
        roots = [span for span in spans if span.parent is None]
        assert [span.name for span in roots] == [_SYNC], "one root"
        [root] = roots
        of_ranks = [span for span in spans if span.name == _RANK]
        assert sorted(span.rank for span in of_ranks) == list(range(ranks))
        requests = [span for span in spans if span.kind == "CLIENT"]
        phases = [span for span in spans if span not in (root, *of_ranks, *requests)]
        assert all(span.name.startswith(f"{_SYNC}.") and span.kind == "INTERNAL" for span in phases)
        for span in of_ranks:
            assert span.parent == root.span_id
        for span in phases:
            parent = by_id[span.parent or ""]
            assert (parent.name, parent.rank) == (_RANK, span.rank)
        for span in requests:
            parent = by_id[span.parent or ""]
            assert parent in phases
            assert parent.rank == span.rank
            assert parent.start_ns <= span.start_ns
            assert span.end_ns <= parent.end_ns
        trace = cls(
            root=root,
            ranks={span.rank: span for span in of_ranks},
            phases={rank: _in_order(phases, rank) for rank in range(ranks)},
            requests={rank: _in_order(requests, rank) for rank in range(ranks)},
        )
        for rank, span in trace.ranks.items():
            of_rank = trace.phases[rank]
            assert sum(phase.duration_ns for phase in of_rank) == span.duration_ns
            assert [span.start_ns, *(phase.end_ns for phase in of_rank)] == [
                *(phase.start_ns for phase in of_rank),
                span.end_ns,
            ], "each phase begins where the one before ends"
        assert (root.start_ns, root.end_ns, root.rank) == (trace.ranks[0].start_ns, trace.ranks[0].end_ns, 0)
        return trace

    def phase(self, rank: int, name: str) -> ReceivedSpan:
        """The one span of a phase, such as ``request``, of a rank."""
        [found] = [span for span in self.phases[rank] if span.name == f"{_SYNC}.{name}"]
        return found

    def all(self) -> list[ReceivedSpan]:
        """All of its spans."""
        below = [span for by_rank in (self.phases, self.requests) for spans in by_rank.values() for span in spans]
        return [self.root, *self.ranks.values(), *below]


def _in_order(spans: list[ReceivedSpan], rank: int) -> list[ReceivedSpan]:
    return sorted((span for span in spans if span.rank == rank), key=lambda span: (span.start_ns, span.end_ns))


def _received(recorded: RecordedSpan) -> ReceivedSpan:
    span = recorded.span
    return ReceivedSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent=span.parent_span_id.hex() or None,
        name=span.name,
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        status=_status(span.status),
        status_text=span.status.message,
        events=tuple(ReceivedEvent(one.name, one.time_unix_nano, _attributes(one.attributes)) for one in span.events),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        resource=_attributes(recorded.resource.attributes),
    )


def _status(status: Status) -> Literal["UNSET", "OK", "ERROR"]:
    return {Status.STATUS_CODE_OK: "OK", Status.STATUS_CODE_ERROR: "ERROR"}.get(status.code, "UNSET")  # type: ignore[return-value]


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)
