"""Events as spans of OpenTelemetry's SDK: ids, times, kinds, status, events, links and resources."""

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import Event, Exchange
from sglang_telemetry.names import Component, Phase, Result
from sglang_telemetry.sinks.guard import Fanout
from sglang_telemetry.sinks.traces import TraceSink
from sglang_telemetry.spans import spans_of
from sglang_telemetry.trace_ids import root_span_id, trace_id
from tests.sinks import SERVER, begun, ended, entered, failed, record, started, who

RESOURCE = {"service.name": "grpo", "service.instance.id": "one.0", "host.name": "node-1", "process.pid": 100}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests says nothing."""
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)


def made(*events: Event, environ: Mapping[str, str] | None = None) -> tuple[ReadableSpan, ...]:
    """What an exporter of the SDK gets of these events."""
    exporter = InMemorySpanExporter()
    options: dict[str, Any] = {} if environ is None else {"environ": environ}
    sink = TraceSink(SimpleSpanProcessor(exporter), **options)
    for event in events:
        sink.emit(event)
    return exporter.get_finished_spans()


def resources(*events: Event, environ: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The different resources of these events, in their order."""
    found: list[dict[str, Any]] = []
    for span in made(*events, environ=environ):
        if dict(span.resource.attributes) not in found:
            found.append(dict(span.resource.attributes))
    return found


def refused() -> Event:
    """A sync that failed in its request."""
    sent = Exchange(
        method="POST",
        url=f"http://{SERVER}/update_weights_from_disk",
        status_code=400,
        response_text="no",
        response_bytes=2,
        offset_ns=10**9,
        duration_ns=10**9,
    )
    return failed(
        who(),
        exchanges=(sent,),
        failed_phase=Phase.REQUEST,
        cause=FailureCause.SERVER_BUSY,
        trace_id="ab" * 16,
        parent_span_id="cd" * 8,
    )


def test_each_value_is_where_the_sdk_has_it() -> None:
    """Every field of every span, against the plain spans that were tested on their own."""
    event = refused()
    plain, sdk = spans_of(event), made(event)
    assert len(sdk) == len(plain) == 8
    for one, other in zip(plain, sdk, strict=True):
        assert other.context is not None
        assert (other.name, f"{other.context.trace_id:032x}", f"{other.context.span_id:016x}") == (
            one.name,
            one.trace_id,
            one.span_id,
        )
        assert other.context.trace_flags == TraceFlags.SAMPLED
        parent = None if other.parent is None else (f"{other.parent.trace_id:032x}", f"{other.parent.span_id:016x}")
        assert parent == (None if one.parent_span_id is None else (one.trace_id, one.parent_span_id))
        assert (other.start_time, other.end_time) == (one.start_ns, one.end_ns)
        assert dict(other.attributes or {}) == dict(one.attributes)
        assert [type(name) for name in other.attributes or {}] == [str] * len(one.attributes)
        assert [(e.name, e.timestamp, dict(e.attributes or {})) for e in other.events] == [
            (e.name, e.at_ns, dict(e.attributes)) for e in one.events
        ]
        assert [(f"{a.context.trace_id:032x}", f"{a.context.span_id:016x}") for a in other.links] == list(one.links)
        assert other.kind is (SpanKind.CLIENT if one.client else SpanKind.INTERNAL)
        assert other.instrumentation_scope is not None
        assert other.instrumentation_scope.name == "sglang_telemetry"
        assert other.to_json()


def test_status() -> None:
    """ERROR with the cause for what failed; UNSET, not OK, for what did not."""
    assert [(span.name, span.status.status_code, span.status.description) for span in made(refused())] == [
        ("weight_sync", StatusCode.ERROR, "server_busy"),
        ("weight_sync.rank", StatusCode.ERROR, "server_busy"),
        ("weight_sync", StatusCode.ERROR, "server_busy"),
        ("weight_sync.rank", StatusCode.ERROR, "server_busy"),
        ("weight_sync.setup", StatusCode.UNSET, None),
        ("weight_sync.request", StatusCode.ERROR, "server_busy"),
        ("weight_sync.barrier", StatusCode.UNSET, None),
        ("POST /update_weights_from_disk", StatusCode.ERROR, "server_busy"),
    ]


def test_only_what_ends_a_sync_makes_spans() -> None:
    """A whole life of a process: the one sync in it."""
    one = trace_id(who(), 1)
    spans = made(
        started(who()),
        begun(who(), trace_id=one),
        entered(who(), Phase.SAVE),
        record(who(), trace_id=one, span_id=root_span_id(who(), 1)),
        ended(who()),
    )
    assert [span.name.removeprefix("weight_sync") for span in spans] == ["", ".rank", ".setup", ".request", ".barrier"]


def test_cancelled_is_unset() -> None:
    """A stop that was asked for is no error."""
    spans = made(record(who(), trace_id=trace_id(who(), 1), result=Result.CANCELLED))
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}


def test_resource_of_each_rank() -> None:
    """The trainer's process, not the one that sends: the run as the service, the rank as its instance."""
    assert resources(record(who(0)), record(who(1)), record(who(0), 2)) == [
        RESOURCE,
        RESOURCE | {"service.instance.id": "one.1", "process.pid": 101},
    ]


def test_service_name_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """``OTEL_SERVICE_NAME`` instead of the run, which stays an attribute of every span; an empty one is none."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "trainers")
    assert resources(record(who())) == [RESOURCE | {"service.name": "trainers"}]
    assert {(span.attributes or {})["weight_sync.run"] for span in made(record(who()))} == {"grpo"}
    monkeypatch.setenv("OTEL_SERVICE_NAME", "")
    assert resources(record(who())) == [RESOURCE]


def test_resource_attributes_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """``OTEL_RESOURCE_ATTRIBUTES`` adds; instance, host and pid are those of the trainer all the same."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab,team=a%20b,service.instance.id=x,bad")
    assert resources(record(who())) == [RESOURCE | {"deployment.environment": "lab", "team": "a b"}]


def test_service_name_among_the_resource_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the service's name as OpenTelemetry has it; ``OTEL_SERVICE_NAME`` is stronger."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=trainers")
    assert resources(record(who())) == [RESOURCE | {"service.name": "trainers"}]
    monkeypatch.setenv("OTEL_SERVICE_NAME", "others")
    assert resources(record(who())) == [RESOURCE | {"service.name": "others"}]


def test_given_environment_is_the_one_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both variables from ``environ``, neither from the process."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "of=process")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "process")
    given = {"OTEL_RESOURCE_ATTRIBUTES": "of=caller", "OTEL_SERVICE_NAME": "caller"}
    assert resources(record(who()), environ=given) == [RESOURCE | {"service.name": "caller", "of": "caller"}]
    assert resources(record(who()), environ={}) == [RESOURCE]


def test_many_processes_do_not_pile_up() -> None:
    """An exporter that runs for months sees thousands of trainers, and keeps a bounded number of resources."""
    sink = TraceSink(SimpleSpanProcessor(InMemorySpanExporter()))
    for pid in range(1, 3000):
        sink.emit(record(who(pid=pid)))
    assert len(sink._resources) <= 1024


class Processor(SimpleSpanProcessor):
    """Remembers that it was shut down."""

    over = False

    def shutdown(self) -> None:
        """Remember."""
        self.over = True


def test_any_processor_will_do() -> None:
    """One that cannot tell of dropped spans is not asked to, and is shut down at the end."""
    processor = Processor(InMemorySpanExporter())
    sink = TraceSink(processor)
    fan = Fanout((sink,))
    fan.emit(record(who()))
    fan.close()
    assert processor.over
    assert sink.component is Component.TRACES
