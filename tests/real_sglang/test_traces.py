"""A real SGLang with ``--enable-trace`` and our spans at one OTLP receiver: what it generates is in our traces."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import sglang_telemetry
from sglang_telemetry import JournalSink, RequestRecord
from sglang_telemetry.names import Applied, Result
from sglang_telemetry.sinks.traces import TraceSink
from sglang_telemetry.testing import RecordingSink
from tests.demo.train import FromCheckpoint
from tests.harness.exporter import ExporterProcess
from tests.harness.minimind import SharedFolderEngine
from tests.harness.otlp import OtlpReceiver, ReceivedSpan, SyncTrace
from tests.real_sglang.conftest import RealSGLangFactory
from tests.real_sglang.server import RealSGLang

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]

SGLANG = "sglang"  # the service.name that it gives itself
FLUSH, GENERATE, UPDATE = "/flush_cache", "/generate", "/update_weights_from_disk"


class Engine(SharedFolderEngine):
    """Generates as well; its client keeps what went over the wire.

    Args:
        server: The real one.
        folder: Of the checkpoint.
    """

    def __init__(self, server: RealSGLang, folder: Path) -> None:
        super().__init__(server.url, str(folder), timeout=60)
        self.answers: list[requests.Response] = []
        self.http = requests.Session()
        self.http.trust_env = False
        self.http.hooks["response"].append(self._keep)

    def _keep(self, answer: requests.Response, **named: object) -> None:
        self.answers.append(answer)

    def rollout(self, prompt: str) -> str:
        """Let the server generate a few tokens."""
        body = {"text": prompt, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        answer = self.http.post(f"{self.base_url}{GENERATE}", json=body, timeout=self.timeout)
        answer.raise_for_status()
        return str(answer.json()["text"])

    def sent(self) -> list[tuple[str, int, str]]:
        """Path, status, and ``traceparent`` as it was sent, of each request."""
        return [
            (answer.request.path_url, answer.status_code, answer.request.headers["traceparent"])
            for answer in self.answers
        ]


class CheckingEngine(Engine):
    """Looks after each update whether the server still generates."""

    def update_policy(self, model: Any) -> bool:
        """Update, then generate."""
        return super().update_policy(model) and bool(self.rollout("x"))


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    """One for both sides."""
    with OtlpReceiver() as one:
        yield one


@pytest.fixture(scope="module")
def server(real_sglang: RealSGLangFactory, receiver: OtlpReceiver) -> Iterator[RealSGLang]:
    """A server that sends its spans to the receiver; it is ended before that goes away."""
    one = real_sglang(
        flags=["--enable-trace", "--otlp-traces-endpoint", f"{receiver.endpoint}/v1/traces"],
        environment={
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            "SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS": "100",
        },
    )
    yield one
    one.close()


@pytest.fixture
def model(tiny_models: Path) -> FromCheckpoint:
    """Weights that the server takes."""
    return FromCheckpoint(tiny_models / "v2_bin")


def of_sglang(spans: Sequence[ReceivedSpan]) -> list[ReceivedSpan]:
    """Those that SGLang made."""
    return [span for span in spans if span.resource["service.name"] == SGLANG]


def generated(spans: Sequence[ReceivedSpan]) -> bool:
    """Have both of SGLang's processes sent the span that they end last: the request, and the scheduler's part of it?"""
    names = [span.name for span in of_sglang(spans)]
    return all(any(name.startswith(last) for name in names) for last in (" Req ", "Scheduler "))


def wait_for_trace(receiver: OtlpReceiver, trace_id: str) -> tuple[list[ReceivedSpan], list[ReceivedSpan]]:
    """Wait for a trace with a ``/generate`` in it; our spans and SGLang's."""

    def of_trace(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
        return [span for span in spans if span.trace_id == trace_id]

    def whole(spans: list[ReceivedSpan]) -> bool:
        found = of_trace(spans)
        return generated(found) and any(span.kind == "CLIENT" for span in found)

    found = of_trace(receiver.wait_for(whole, f"our spans and SGLang's in the trace {trace_id}"))
    theirs = of_sglang(found)
    return [span for span in found if span not in theirs], theirs


def above(span: ReceivedSpan, spans: Sequence[ReceivedSpan]) -> list[str]:
    """Names of the spans above one, up to the root."""
    by_id, names = {one.span_id: one for one in spans}, []
    while span.parent is not None:
        span = by_id[span.parent]
        names.append(span.name)
    return names


def header(request: ReceivedSpan) -> str:
    """The ``traceparent`` that makes this span the parent."""
    return f"00-{request.trace_id}-{request.span_id}-01"


def assert_below(request: ReceivedSpan, theirs: Sequence[ReceivedSpan]) -> None:
    """All of SGLang's spans are below one, whose parent is our request."""
    [top] = [span for span in theirs if span.name.startswith(" Req ")]
    assert (request.name, request.kind) == (f"POST {GENERATE}", "CLIENT")
    assert top.parent == request.span_id
    assert top.duration_ns < request.duration_ns
    ids = {span.span_id for span in theirs}
    assert all(span.parent in ids for span in theirs if span is not top)
    assert {"tokenize", "prefill_forward", "decode_forward"} <= {span.name for span in theirs}


def test_a_rollout_is_one_trace_that_links_to_the_sync_before(
    server: RealSGLang, receiver: OtlpReceiver, model: FromCheckpoint, tmp_path: Path
) -> None:
    """Journal and exporter: SGLang's spans are below our request, and that links to the root of the last sync."""
    engine, sink = Engine(server, tmp_path / "c"), RecordingSink()
    with ExporterProcess(tmp_path / "j", environment=receiver.environment):
        with sglang_telemetry.instrument(engine, run="rollouts", sinks=[JournalSink(tmp_path / "j"), sink]):
            for _ in range(2):
                assert engine.update_policy(model)
                assert engine.rollout("the quick brown fox")
        records = [event for event in sink.events if isinstance(event, RequestRecord)]
        found = [wait_for_trace(receiver, record.trace_id) for record in records]
        traces = receiver.traces()
    assert [(path, status) for path, status, _ in engine.sent()] == [(UPDATE, 200), (GENERATE, 200)] * 2
    assert len({sync.trace_id for sync in sink.records} | {record.trace_id for record in records}) == 4
    for sync, record, (ours, theirs) in zip(sink.records, records, found, strict=True):
        [request] = ours
        assert (request.span_id, request.parent) == (record.span_id, None)
        assert request.resource["service.name"] == "rollouts"
        assert_below(request, theirs)
        trace = SyncTrace.of(traces[sync.trace_id], ranks=1)  # no span of SGLang's is in there
        assert request.links == ((trace.root.trace_id, trace.root.span_id),)


def test_a_generate_within_update_policy_is_in_the_trace_of_the_sync(
    server: RealSGLang, receiver: OtlpReceiver, model: FromCheckpoint, tmp_path: Path
) -> None:
    """Spans sent by the trainer itself: the engine's look at the server is below the sync, SGLang's spans below it."""
    engine, sink = CheckingEngine(server, tmp_path / "c"), RecordingSink()
    spans = TraceSink(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{receiver.endpoint}/v1/traces")))
    with sglang_telemetry.instrument(engine, run="checks", sinks=[spans, sink]):
        assert engine.update_policy(model)
    [record] = sink.records
    ours, theirs = wait_for_trace(receiver, record.trace_id)
    trace = SyncTrace.of(ours, ranks=1)
    update, request = trace.requests[0]
    assert update.parent == trace.phase(0, "request").span_id
    assert above(request, ours) == ["weight_sync.other", "weight_sync.rank", "weight_sync"]
    assert request.start_ns >= update.end_ns
    assert_below(request, theirs)
    sent = [(UPDATE, 200, header(update)), (GENERATE, 200, header(request))]
    assert engine.sent() == sent
    assert not [event for event in sink.events if isinstance(event, RequestRecord)]


def test_update_and_flush_carry_the_header_and_have_no_span_of_the_server(
    server: RealSGLang, receiver: OtlpReceiver, model: FromCheckpoint, tmp_path: Path
) -> None:
    """The server takes both as ever; of what it was asked it traces ``/generate`` alone."""
    engine, sink = Engine(server, tmp_path / "c"), RecordingSink()
    with ExporterProcess(tmp_path / "j", environment=receiver.environment):
        with sglang_telemetry.instrument(engine, run="flushes", sinks=[JournalSink(tmp_path / "j"), sink]):
            assert engine.update_policy(model)
            assert engine.flush_cache()
            assert engine.rollout("x")
        [sync] = sink.records
        assert (sync.result, sync.weights_applied) == (Result.SUCCESS, Applied.YES)
        flush, rollout = [event for event in sink.events if isinstance(event, RequestRecord)]
        # Each of SGLang's processes sends its spans in their order: what came before the rollout has come with it.
        wait_for_trace(receiver, rollout.trace_id)
        traces = receiver.traces()
    trace = SyncTrace.of(traces[sync.trace_id], ranks=1)
    [of_update], [of_flush] = trace.requests[0], traces[flush.trace_id]
    assert (of_update.name, of_flush.name) == (f"POST {UPDATE}", f"POST {FLUSH}")
    assert of_flush.links == ((trace.root.trace_id, trace.root.span_id),)
    of_rollout = next(span for span in traces[rollout.trace_id] if span.kind == "CLIENT")
    sent = [(UPDATE, 200, header(of_update)), (FLUSH, 200, header(of_flush)), (GENERATE, 200, header(of_rollout))]
    assert engine.sent() == sent
