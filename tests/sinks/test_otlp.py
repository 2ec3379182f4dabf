"""Spans to a collector over HTTP and gRPC: whole, once, or counted as dropped, whatever the collector does."""

import gzip
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.test._otlp_test_server import OtlpProtoTestServer
from opentelemetry.trace import SpanContext, TraceFlags
from prometheus_client import CollectorRegistry

from sglang_telemetry.events import Event, Exchange
from sglang_telemetry.names import Component, Phase
from sglang_telemetry.sinks import otlp
from sglang_telemetry.sinks.guard import Fanout
from sglang_telemetry.sinks.metrics import MetricsSink
from sglang_telemetry.sinks.otlp import SpanQueue, queue_from
from sglang_telemetry.sinks.traces import TraceSink
from sglang_telemetry.spans import Span, spans_of
from tests.harness.processes import free_port, wait_until
from tests.sinks import SERVER, entered, failed, who

DEAD_PROXY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests says nothing of collectors and proxies."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def queues() -> Iterator[Callable[[SpanQueue], SpanQueue]]:
    """Takes queues that are shut down at the end of the test."""
    taken: list[SpanQueue] = []

    def take(queue: SpanQueue) -> SpanQueue:
        taken.append(queue)
        return queue

    yield take
    for queue in taken:
        queue.shutdown()


Take = Callable[[SpanQueue], SpanQueue]


def span(number: int) -> ReadableSpan:
    """A span with a name of its own."""
    context = SpanContext(number + 1, number + 1, is_remote=False, trace_flags=TraceFlags(1))
    return ReadableSpan(name=f"span-{number}", context=context, resource=Resource({}), start_time=1, end_time=2)


def give(queue: SpanQueue, count: int, start: int = 0) -> list[str]:
    """Hand so many spans over; their names."""
    for number in range(start, start + count):
        queue.on_end(span(number))
    return [f"span-{number}" for number in range(start, start + count)]


def event() -> Event:
    """A sync that failed, in a caller's trace: every field of a span is used."""
    sent = Exchange(
        method="POST",
        url=f"http://{SERVER}/update_weights_from_disk",
        status_code=400,
        response_text="nein: 模型 🙂",
        response_bytes=2,
        offset_ns=10**9,
        duration_ns=10**9 + 1,
    )
    return failed(who(), exchanges=(sent,), failed_phase=Phase.REQUEST, trace_id="ab" * 16, parent_span_id="cd" * 8)


class Collector:
    """A collector over HTTP/1.1 that answers as it is told, and keeps what it took.

    Args:
        statuses: Answers in order; the last one is repeated.
        port: Default a free one.
    """

    def __init__(self, *statuses: int, port: int = 0) -> None:
        self.names: list[str] = []
        self.asked: list[int] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.clients: list[Any] = []
        self._connections: list[socket.socket] = []
        queue = list(statuses) or [200]
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer._connections.append(self.request)
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.paths.append(self.path)
                outer.headers.append(dict(self.headers))
                outer.clients.append(self.client_address)
                status = queue.pop(0) if len(queue) > 1 else queue[0]
                outer.asked.append(status)
                if status == 200:
                    outer.names.extend(names_in(ExportTraceServiceRequest.FromString(body)))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                return

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __enter__(self) -> "Collector":
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for one in self._connections:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def names_in(request: ExportTraceServiceRequest) -> list[str]:
    """Names of the spans of a request."""
    return [one.name for r in request.resource_spans for scope in r.scope_spans for one in scope.spans]


class GrpcCollector(TraceServiceServicer):
    """A collector over gRPC.

    Args:
        port: Default a free one.
    """

    def __init__(self, port: int = 0) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.metadata: list[dict[str, str]] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()
        self.url = f"http://127.0.0.1:{self.port}"

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        """Keep it."""
        self.metadata.append(dict(context.invocation_metadata()))
        self.requests.append(request)
        return ExportTraceServiceResponse()

    @property
    def names(self) -> list[str]:
        """Names of the spans it took."""
        return [name for request in self.requests for name in names_in(request)]

    def __enter__(self) -> "GrpcCollector":
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.stop(None).wait()


class BlackHole:
    """Listens and never answers.

    Args:
        accepts: Take connections; else they stay in the backlog.
    """

    def __init__(self, *, accepts: bool = True) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.taken: list[socket.socket] = []
        if accepts:
            threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self.taken.append(self._socket.accept()[0])

    def __enter__(self) -> "BlackHole":
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for one in self.taken:
            one.close()


class Stuck(SpanExporter):
    """Does not come back from ``export`` until it is let go.

    It repeats what the SDK's OTLP exporters do while a collector takes the connection and says nothing: they come back
    after ``OTEL_EXPORTER_OTLP_TIMEOUT``, 10 s by default.
    """

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()
        self.names: list[str] = []
        self.result = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Wait."""
        self.inside.set()
        assert self.go.wait(60)
        if self.result is SpanExportResult.SUCCESS:
            self.names.extend(one.name for one in spans)
        return self.result

    def shutdown(self) -> None:
        """Nothing is open."""


class Answering(SpanExporter):
    """Answers from a list, the last one again and again; an exception in it is raised.

    It repeats the SDK's exporters: SUCCESS for 2xx, FAILURE for everything else, an exception for what they do not
    expect.
    """

    def __init__(self, *results: SpanExportResult | Exception) -> None:
        self.results = list(results)
        self.calls: list[list[str]] = []
        self.names: list[str] = []
        self.over = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Answer."""
        self.calls.append([one.name for one in spans])
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        if result is SpanExportResult.SUCCESS:
            self.names.extend(one.name for one in spans)
        return result

    def shutdown(self) -> None:
        """Count."""
        self.over += 1


OK, NO = SpanExportResult.SUCCESS, SpanExportResult.FAILURE


class Told:
    """The metrics of a fan-out that a trace sink with this queue is part of."""

    def __init__(self, queue: SpanQueue) -> None:
        self.registry = CollectorRegistry()
        self.queue = queue
        self.fanout = Fanout((MetricsSink(self.registry), TraceSink(queue, environ={})))

    @property
    def errors(self) -> float:
        """``weight_sync_telemetry_errors_total{component="traces"}``."""
        name = "weight_sync_telemetry_errors_total"
        return self.registry.get_sample_value(name, {"component": Component.TRACES.value}) or 0.0


def all_accounted(queue: SpanQueue, given: int) -> bool:
    """Every span was sent, was dropped, or waits."""
    return queue.sent + queue.dropped + queue.waiting == given


def impatient(monkeypatch: pytest.MonkeyPatch, *waits: float) -> None:
    """The queue tries a batch again after these waits, and then drops it."""
    monkeypatch.setattr(otlp, "_BACKOFF_SECONDS", waits)


# Over the wire.


def check_whole(plain: Span, wire: Any, resource: Any) -> None:
    """A span of ours against what a collector got."""
    assert (wire.name, wire.trace_id.hex(), wire.span_id.hex(), wire.parent_span_id.hex()) == (
        plain.name,
        plain.trace_id,
        plain.span_id,
        plain.parent_span_id or "",
    )
    assert (wire.start_time_unix_nano, wire.end_time_unix_nano) == (plain.start_ns, plain.end_ns)
    assert plain_values(wire.attributes) == dict(plain.attributes)
    assert [(one.name, one.time_unix_nano, plain_values(one.attributes)) for one in wire.events] == [
        (one.name, one.at_ns, dict(one.attributes)) for one in plain.events
    ]
    assert [(one.trace_id.hex(), one.span_id.hex()) for one in wire.links] == list(plain.links)
    assert wire.kind == (3 if plain.client else 1)
    assert (wire.status.code, wire.status.message) == ((2, plain.error) if plain.error else (0, ""))
    assert (wire.dropped_attributes_count, wire.dropped_events_count, wire.dropped_links_count) == (0, 0, 0)
    assert plain_values(resource.attributes) == {
        "service.name": "grpo",
        "service.instance.id": "one.0",
        "host.name": "node-1",
        "process.pid": 100,
    }


def plain_values(attributes: Any) -> dict[str, Any]:
    """Attributes of the wire as a dictionary."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def test_whole_spans_over_http(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """Every field, at the SDK's own receiver, by the general endpoint."""
    with OtlpProtoTestServer() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.port}")
        queue = queues(queue_from(os.environ))
        TraceSink(queue).emit(event())
        plain = spans_of(event())
        got = server.get_spans(len(plain))
        wait_until(lambda: queue.sent == len(plain), "all are counted as sent")
        assert server.drain_spans() == []
    for one, other in zip(plain, got, strict=True):
        check_whole(one, other.span, other.resource)
        assert other.scope.name == "sglang_telemetry"
    assert (queue.waiting, queue.dropped, queue.shown) == (
        0,
        0,
        f"http/protobuf to http://127.0.0.1:{server.port}",
    )


def test_whole_spans_over_grpc(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """Every field, at a real gRPC server."""
    with GrpcCollector() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        queue = queues(queue_from(os.environ))
        TraceSink(queue).emit(event())
        plain = spans_of(event())
        assert queue.force_flush()
        wires = [(w, r) for q in server.requests for r in q.resource_spans for s in r.scope_spans for w in s.spans]
    for one, (wire, holder) in zip(plain, wires, strict=True):
        check_whole(one, wire, holder.resource)
    assert (queue.sent, queue.shown) == (len(plain), f"grpc to {server.url}")


def test_general_endpoint_with_a_base_path(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """The signal's path is put behind it, with one slash."""
    for base in ("/otlp", "/otlp/"):
        with OtlpProtoTestServer(base_path="/otlp") as server:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.port}{base}")
            give(queues(queue_from(os.environ)), 1)
            assert server.get_span().span.name == "span-0"


@pytest.mark.parametrize("general", ["", "http://127.0.0.1:9", "no://sense"])
def test_endpoint_of_traces_is_stronger(monkeypatch: pytest.MonkeyPatch, queues: Take, general: str) -> None:
    """And is taken as it is: no path is added."""
    with Collector() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", general)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{server.url}/mine")
        give(queues(queue_from(os.environ)), 1)
        wait_until(lambda: server.names == ["span-0"], "the span is there")
    assert server.paths == ["/mine"]


def test_empty_variables_are_none(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """As OpenTelemetry has it."""
    with Collector() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        give(queues(queue_from(os.environ)), 1)
        wait_until(lambda: server.names == ["span-0"], "the span is there")


def test_headers_and_compression(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """A collector behind a key, and a body that is packed; nothing of the key is shown."""
    with Collector() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url.replace("//", "//me:s3cr3t@"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=one,authorization=Bearer%20t0k3n")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        queue = queues(queue_from(os.environ))
        give(queue, 1)
        wait_until(lambda: server.names == ["span-0"], "the span is there")
    [headers] = server.headers
    assert (headers["x-tenant"], headers["Content-Encoding"]) == ("one", "gzip")
    assert queue.shown == f"http/protobuf to {server.url}"


def test_headers_and_compression_over_grpc(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """The same as metadata."""
    with GrpcCollector() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", server.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-tenant=one")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        queue = queues(queue_from(os.environ))
        give(queue, 1)
        assert queue.force_flush()
    assert [one["x-tenant"] for one in server.metadata] == ["one"]
    assert server.names == ["span-0"]


def test_grpc_endpoint_without_a_scheme(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """``HOST:PORT``, as gRPC writes it, with ``OTEL_EXPORTER_OTLP_INSECURE``."""
    with GrpcCollector() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_INSECURE", "true")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"127.0.0.1:{server.port}")
        queue = queues(queue_from(os.environ))
        give(queue, 1)
        assert queue.force_flush()
    assert server.names == ["span-0"]


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "https_proxy"])
def test_proxy_does_not_stand_before_the_loopback(monkeypatch: pytest.MonkeyPatch, queues: Take, variable: str) -> None:
    """A dead proxy for everything else: the collector on this host gets its spans over HTTP."""
    with Collector() as server:
        monkeypatch.setenv(variable, DEAD_PROXY)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        give(queues(queue_from(os.environ)), 1)
        wait_until(lambda: server.names == ["span-0"], "the span is there")


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "grpc_proxy", "https_proxy"])
def test_proxy_does_not_stand_before_the_loopback_over_grpc(
    monkeypatch: pytest.MonkeyPatch, queues: Take, capfd: pytest.CaptureFixture[str], variable: str
) -> None:
    """The same over gRPC, whose library reads the lower-case ones itself, and without a word from it."""
    with GrpcCollector() as server:
        monkeypatch.setenv(variable, DEAD_PROXY)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        queue = queues(queue_from(os.environ))
        give(queue, 1)
        assert queue.force_flush(5000)
        assert server.names == ["span-0"]
    assert "ignored" not in capfd.readouterr().err


# What makes no sense is told at once.


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_unknown_protocol(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With what was said, and what is possible."""
    monkeypatch.setenv(name, "http/json")
    with pytest.raises(ValueError, match=r"http/json: http/protobuf and grpc are spoken here"):
        queue_from(os.environ)
    with pytest.raises(ValueError, match="http/json"):
        TraceSink()


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:4318", "localhost:4318", "collector", "ftp://h", "http://", "http://[::1", "http://h:port"]
)
@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_endpoint_that_is_no_url(monkeypatch: pytest.MonkeyPatch, endpoint: str, variable: str) -> None:
    """One error that names the variable and shows the right form, not silence and dropped spans."""
    monkeypatch.setenv(variable, endpoint)
    with pytest.raises(ValueError, match=rf"{variable}=.*http://HOST:4318"):
        queue_from(os.environ)


@pytest.mark.parametrize("module", ["grpc", "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"])
def test_missing_grpc_package(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """The error says what to install."""
    for name in list(sys.modules):
        if name.startswith("opentelemetry.exporter.otlp.proto.grpc"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ValueError, match=r"needs a package: pip install 'sglang-telemetry\[grpc\]'"):
        queue_from(os.environ)


def test_given_environment_is_the_one_that_is_read(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """The endpoint that is shown is the one that is used, although the process's environment has another."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with Collector() as server:
        queue = queues(queue_from({"OTEL_EXPORTER_OTLP_ENDPOINT": server.url}))
        assert queue.shown == f"http/protobuf to {server.url}"
        give(queue, 1)
        wait_until(lambda: server.names == ["span-0"], "the span is there", 5.0)
    assert server.paths == ["/v1/traces"]


# A collector that is sick.


def quick(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """An endpoint whose answer is not waited for for long."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("how", ["refuses", "does not accept", "does not answer"])
def test_collector_that_is_not_there(monkeypatch: pytest.MonkeyPatch, queues: Take, protocol: str, how: str) -> None:
    """Tried again, then dropped, counted and told; what came later is not held up for good."""
    impatient(monkeypatch, 0.01, 0.01)
    hole = BlackHole(accepts=how == "does not answer")
    quick(monkeypatch, f"http://127.0.0.1:{free_port()}" if how == "refuses" else hole.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    queue = queues(queue_from(os.environ))
    told = Told(queue)
    with hole:
        give(queue, 7)
        wait_until(lambda: queue.dropped == 7, "all were dropped", 30.0)
        give(queue, 5, 7)
        wait_until(lambda: queue.dropped == 12, "those that came later too", 30.0)
        queue.shutdown()
    assert (queue.sent, queue.waiting, told.errors) == (0, 0, 12.0)


def test_collector_that_refuses_what_it_gets(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """400 for one batch: that one is given up after its attempts, the next goes through."""
    impatient(monkeypatch, 0.01, 0.01)
    with Collector(400, 400, 400, 200) as server:
        quick(monkeypatch, server.url)
        queue = queues(queue_from(os.environ))
        told = Told(queue)
        give(queue, 3)
        wait_until(lambda: queue.dropped == 3, "the bad batch was dropped")
        wait_until(lambda: told.errors == 3, "it was told")
        good = give(queue, 4, 3)
        wait_until(lambda: queue.sent == 4, "the next was taken")
    assert (server.names, queue.waiting, server.asked) == (good, 0, [400, 400, 400, 200])


def test_collector_that_is_busy_for_a_while(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """503, and then well again: nothing is lost, nothing is sent twice."""
    impatient(monkeypatch, *[0.01] * 50)
    with Collector(503, 503, 503, 200) as server:
        quick(monkeypatch, server.url)
        queue = queues(queue_from(os.environ))
        told = Told(queue)
        names = give(queue, 9)
        wait_until(lambda: queue.sent == 9, "all were taken")
        assert (server.names, queue.dropped, told.errors) == (names, 0, 0.0)
        assert server.asked[:4] == [503, 503, 503, 200]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_collector_that_is_started_again(monkeypatch: pytest.MonkeyPatch, queues: Take, protocol: str) -> None:
    """Killed with spans coming, and started again on its port: each span arrives once."""
    impatient(monkeypatch, *[0.05] * 500)
    kind: Any = GrpcCollector if protocol == "grpc" else Collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with kind() as first:
        quick(monkeypatch, first.url)
        queue = queues(queue_from(os.environ))
        before = give(queue, 3)
        wait_until(lambda: queue.sent == 3, "the first were taken")
    while_gone = give(queue, 6, 3)
    assert queue.sent == 3
    with kind(port=first.port) as second:
        wait_until(lambda: queue.sent == 9, "the others were taken")
        assert (first.names, second.names) == (before, while_gone)
    assert (queue.dropped, queue.waiting) == (0, 0)


def test_answer_that_the_exporter_cannot_read(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """An exception of the exporter is one more failed attempt."""
    impatient(monkeypatch, 0.01, 0.01)
    exporter = Answering(ValueError("odd"), NO, OK)
    queue = queues(SpanQueue(exporter))
    names = give(queue, 2)
    wait_until(lambda: queue.sent == 2, "taken at the third attempt")
    assert exporter.calls == [names] * 3


# The queue itself.


def test_on_end_never_waits_for_the_exporter(queues: Take) -> None:
    """Thousands of spans are taken while the exporter is inside one request."""
    exporter = Stuck()
    queue = queues(SpanQueue(exporter, max_spans=100, batch_spans=10))
    give(queue, 10)
    assert exporter.inside.wait(10)
    thread = threading.Thread(target=give, args=(queue, 5000, 10), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert queue.waiting <= 100 + 10  # and the batch that is under way
    exporter.go.set()


def test_bound_holds_and_every_span_is_accounted_for(queues: Take) -> None:
    """The queue runs over while a batch is under way, which then succeeds: sent, dropped and waiting add up."""
    exporter = Stuck()
    queue = queues(SpanQueue(exporter, max_spans=20, batch_spans=10))
    told = Told(queue)
    give(queue, 10)
    assert exporter.inside.wait(10)
    for number in range(10, 65):
        queue.on_end(span(number))
        assert queue.waiting <= 20 + 10  # and the batch that is under way
        assert all_accounted(queue, number + 1)
    exporter.go.set()
    assert queue.force_flush()
    queue.shutdown()
    assert all_accounted(queue, 65)
    assert queue.sent == len(exporter.names)
    assert told.errors == queue.dropped


def test_overflow_while_a_batch_fails(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """The batch that is under way is lost after all: none of its spans counts twice."""
    impatient(monkeypatch)
    exporter = Stuck()
    exporter.result = NO
    queue = queues(SpanQueue(exporter, max_spans=20, batch_spans=10))
    give(queue, 10)
    assert exporter.inside.wait(10)
    give(queue, 55, 10)
    exporter.go.set()
    wait_until(lambda: queue.waiting == 0, "all were tried")
    queue.shutdown()
    assert (queue.sent, queue.dropped) == (0, 65)


def test_dropped_spans_are_told_without_another_span(queues: Take) -> None:
    """A burst runs over while the exporter is stuck, and no sync ends after it: the metric soon says all of it."""
    exporter = Stuck()
    queue = queues(SpanQueue(exporter, max_spans=20, batch_spans=10))
    told = Told(queue)
    give(queue, 65)
    assert queue.dropped >= 35

    def complete() -> bool:
        told.fanout.emit(entered(who(), Phase.SAVE))
        return told.errors == queue.dropped

    wait_until(complete, "the metric has all that were dropped", 5.0)
    exporter.go.set()


def test_shutdown_while_a_batch_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it gave up is counted once, whatever becomes of the request that was under way."""
    monkeypatch.setattr(otlp, "CLOSE_SECONDS", 0.05)
    exporter = Stuck()
    queue = SpanQueue(exporter, batch_spans=10)
    told = Told(queue)
    give(queue, 15)
    assert exporter.inside.wait(10)
    sender = queue._thread
    queue.shutdown()
    assert (queue.dropped, told.errors) == (15, 15.0)
    exporter.go.set()
    assert sender is not None
    sender.join(10)
    assert all_accounted(queue, 15)


def test_shutdown_sends_what_is_left(queues: Take) -> None:
    """All batches, not the first alone, without waiting for their time."""
    exporter = Answering(OK)
    queue = queues(SpanQueue(exporter, batch_spans=10, delay_seconds=60.0))
    names = give(queue, 35)
    queue.shutdown()
    assert (exporter.names, queue.sent, queue.dropped) == (names, 35, 0)
    wait_until(lambda: exporter.over == 1, "the exporter was shut down")


def test_shutdown_in_a_wait_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector is well again, but its next turn is in half a minute: what is left is sent at the end."""
    impatient(monkeypatch, 30.0)
    exporter = Answering(NO, OK)
    queue = SpanQueue(exporter)
    names = give(queue, 3)
    wait_until(lambda: len(exporter.calls) == 1, "the first attempt failed")
    queue.shutdown()
    assert (exporter.names, queue.sent, queue.dropped) == (names, 3, 0)


def test_shutdown_of_an_unused_queue() -> None:
    """No thread was started, nothing is told."""
    exporter = Answering(OK)
    queue = SpanQueue(exporter)
    told = Told(queue)
    queue.shutdown()
    assert (exporter.calls, told.errors) == ([], 0.0)


def test_span_after_the_end() -> None:
    """It is dropped and counted, not kept for ever."""
    queue = SpanQueue(Answering(OK))
    told = Told(queue)
    queue.shutdown()
    give(queue, 2)
    queue.shutdown()
    assert (queue.waiting, queue.dropped, told.errors) == (0, 2, 2.0)


def test_no_thread_can_be_started_at_the_end(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """From Python 3.12 on, ``atexit`` comes when no thread can be started: what is left is counted all the same."""
    exporter = Stuck()
    monkeypatch.setattr(otlp, "CLOSE_SECONDS", 0.05)
    queue = SpanQueue(exporter)
    told = Told(queue)
    give(queue, 4)
    assert exporter.inside.wait(10)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        queue.shutdown()
    exporter.go.set()
    assert (queue.dropped, told.errors) == (4, 4.0)


def test_flush_says_whether_all_is_sent(queues: Take) -> None:
    """True when it is, False when the collector takes too long; nothing is lost by asking."""
    exporter = Stuck()
    queue = queues(SpanQueue(exporter, delay_seconds=60.0))
    assert queue.force_flush()
    names = give(queue, 3)
    assert queue.force_flush(50) is False
    exporter.go.set()
    assert queue.force_flush()
    assert exporter.names == names


def test_batches_are_bounded_and_in_order(queues: Take) -> None:
    """A late start brings many at once: 512 a request, each once."""
    exporter = Answering(OK)
    queue = queues(SpanQueue(exporter))
    names = give(queue, 2000)
    assert queue.force_flush()
    assert max(map(len, exporter.calls)) <= 512
    assert exporter.names == names


def test_many_threads_start_one_sender(queues: Take) -> None:
    """A processor may be called from any thread: there is one sender, and each span arrives once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            exporter = Answering(OK)
            queue = queues(SpanQueue(exporter, batch_spans=4))
            barrier = threading.Barrier(8)

            def work(start: int, queue: SpanQueue = queue, barrier: threading.Barrier = barrier) -> None:
                barrier.wait(10)
                give(queue, 10, start)

            threads = [threading.Thread(target=work, args=(10 * n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert queue.force_flush()
            assert sorted(exporter.names) == sorted(f"span-{n}" for n in range(80))
            assert queue.sent == 80
            queue.shutdown()
    finally:
        sys.setswitchinterval(before)


def test_own_requests_are_no_spans_of_the_host(monkeypatch: pytest.MonkeyPatch, queues: Take) -> None:
    """Where the host's ``requests`` are instrumented, our posts to the collector are left out."""
    from opentelemetry.instrumentation.requests import RequestsInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    hosts = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(hosts))
    instrumentor = RequestsInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        with Collector() as server:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
            give(queues(queue_from(os.environ)), 1)
            wait_until(lambda: server.names == ["span-0"], "the span is there")
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    assert hosts.get_finished_spans() == ()
    assert "traceparent" not in server.headers[0]


# In a process of its own.

PRELUDE = """
import os, sys, threading
sys.path.insert(0, os.getcwd())
from sglang_telemetry.sinks.otlp import SpanQueue, queue_from
from tests.sinks.test_otlp import Answering, OK, Stuck, give
from tests.harness.processes import wait_until
"""


def child(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script behind :data:`PRELUDE`."""
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_process_ends_although_the_collector_hangs(protocol: str) -> None:
    """The collector took the request and says nothing: a shutdown and an exit come long before the SDK's 30 s."""
    script = """
    queue = queue_from(os.environ)
    give(queue, 3)
    queue._more.set()
    print("ready", flush=True)
    sys.stdin.readline()
    queue.shutdown()
    print(queue.dropped, queue.sent, queue.waiting, flush=True)
    """
    with BlackHole() as hole:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
            env=os.environ
            | {
                "OTEL_EXPORTER_OTLP_ENDPOINT": hole.url,
                "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            wait_until(lambda: hole.taken, "the request is under way")
            out, _ = process.communicate("\n", timeout=10)
        finally:
            process.kill()
            process.wait(10)
    assert (out, process.returncode) == ("3 0 0\n", 0)


FORK = """
queue = queue_from(os.environ)
give(queue, 1)
assert queue.force_flush(10000)
give(queue, 1, 1)
pid = os.fork()
if pid == 0:
    give(queue, 1, 2)
    done = queue.force_flush(5000)
    print("child", done, queue.dropped, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print("parent", queue.force_flush(5000), queue.sent, queue.dropped, flush=True)
queue.shutdown()
"""


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_fork(protocol: str) -> None:
    """A child made after the first span sends its own; what waits in the parent is sent by the parent, once."""
    kind: Any = GrpcCollector if protocol == "grpc" else Collector
    with kind() as server:
        done = child(FORK, OTEL_EXPORTER_OTLP_ENDPOINT=server.url, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        assert sorted(server.names) == ["span-0", "span-1", "span-2"], done
    assert done.stdout.splitlines() == ["child True 0", "parent True 2 0"], done.stderr


def test_forked_child_has_connections_of_its_own() -> None:
    """Two processes that write requests into one connection read each other's answers."""
    with Collector() as server:
        done = child(FORK, OTEL_EXPORTER_OTLP_ENDPOINT=server.url)
        assert done.returncode == 0, done.stderr
    by_name = dict(zip(server.names, server.clients, strict=True))
    assert by_name["span-2"] not in (by_name["span-0"], by_name["span-1"])


def test_forked_child_counts_nothing_of_the_parents() -> None:
    """A child that only ends drops, tells and sends nothing: what waits is the parent's."""
    done = child("""
    exporter = Answering(OK)
    queue = SpanQueue(exporter, delay_seconds=60.0)
    queue.report_to(lambda count, text: print("told", count, text, flush=True))
    give(queue, 3)
    pid = os.fork()
    if pid == 0:
        print("child", queue.waiting, queue.force_flush(50), flush=True)
        queue.shutdown()
        print("child", queue.dropped, exporter.names, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    queue.shutdown()
    print("parent", queue.sent, queue.dropped, flush=True)
    """)
    assert done.stdout.splitlines() == ["child 0 True", "child 0 []", "parent 3 0"], done.stderr


def test_fork_while_the_queue_is_in_use() -> None:
    """The sender's thread holds the lock at the moment of the fork: the child's end does not wait for it."""
    done = child("""
    queue = SpanQueue(Answering(OK), delay_seconds=60.0)
    give(queue, 1)
    with queue._lock:
        pid = os.fork()
        if pid == 0:
            thread = threading.Thread(target=queue.shutdown, daemon=True)
            thread.start()
            thread.join(5)
            print("child", "hangs" if thread.is_alive() else "ended", flush=True)
            os._exit(0)
    os.waitpid(pid, 0)
    """)
    assert done.stdout == "child ended\n", done.stderr
