"""The caller's active span and ours: joined, followed and put back, with the real SDK of OpenTelemetry."""

import asyncio
import contextvars
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

import pytest
import requests
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.instrumentation.requests import RequestsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import sglang_telemetry
from sglang_telemetry.events import RequestRecord, SyncRecord, TelemetryError
from sglang_telemetry.instrument import context as ours
from sglang_telemetry.names import Phase, Result
from sglang_telemetry.sinks.protocol import Sink
from sglang_telemetry.testing import RecordedTraces, RecordingSink
from sglang_telemetry.trace_ids import phase_span_id, root_span_id, trace_id
from tests.harness.answers import BUSY, SUCCESS, Answers


class Host:
    """The user's own OpenTelemetry, never a global one."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("host")

    @contextmanager
    def active(self, name: str = "step") -> Iterator[trace.SpanContext]:
        """A span that is the current one."""
        with self.tracer.start_as_current_span(name, record_exception=False) as span:
            yield span.get_span_context()

    def ended(self, name: str) -> Any:
        """The one span of that name."""
        [span] = [one for one in self.exporter.get_finished_spans() if one.name == name]
        return span


@pytest.fixture
def host() -> Iterator[Host]:
    """One that records everything."""
    made = Host()
    yield made
    made.provider.shutdown()


@pytest.fixture(autouse=True)
def context_is_put_back() -> Iterator[None]:
    """No test leaves a current span behind, whatever became of it."""
    token = otel_context.attach(otel_context.Context())
    yield
    otel_context.detach(token)


def ids(context: Any) -> tuple[str, str]:
    """Trace and span as hex."""
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def now() -> tuple[str, str]:
    """Trace and span that are current."""
    return ids(trace.get_current_span().get_span_context())


NOBODY = ("0" * 32, "0" * 16)


class Engine:
    """Calls what it is given in its update.

    Args:
        inside: Called with the engine.
    """

    def __init__(self, inside: Any = None, url: str = "http://10.0.0.7:30000") -> None:
        self.inside, self.base_url, self.http = inside, url, requests
        self.seen: list[tuple[str, str]] = []

    def update_policy(self, model: Any) -> Any:
        """Push."""
        with suppress(LookupError):  # a broken API of the tests below is no error of the engine
            self.seen.append(now())
        return self.inside(self) if self.inside is not None else True

    def post(self) -> int:
        """Send the weights."""
        return int(self.http.post(f"{self.base_url}/update_weights_from_disk", timeout=5).status_code)


def one_sync(engine: Any, *sinks: Sink) -> SyncRecord:
    """Instrument, make one sync, and return its record."""
    sink = RecordingSink()
    with sglang_telemetry.instrument(engine, run="unit", sinks=[sink, *sinks]):
        engine.update_policy(None)
    [record] = sink.records
    return record


def test_sync_joins_the_trace_of_the_active_span(host: Host) -> None:
    """Trace and parent are the caller's; inside, the current span is the open phase; afterwards it is the caller's."""
    engine, traces = Engine(), RecordedTraces()
    with host.active() as step:
        record = one_sync(engine, traces)
        assert now() == ids(step)
    assert now() == NOBODY
    assert (record.trace_id, record.parent_span_id) == ids(step)
    assert engine.seen == [(record.trace_id, phase_span_id(record.identity, 1, 0))]
    traces.sync().assert_complete()


def test_without_an_active_span(host: Host) -> None:
    """OpenTelemetry is there, and nothing is active: the trace is derived, and spans of the host nest under a phase."""
    engine = Engine(lambda engine: host.tracer.start_span("inside").end())
    record = one_sync(engine)
    assert (record.trace_id, record.parent_span_id) == (trace_id(record.identity, 1), None)
    inside = host.ended("inside")
    assert ids(inside.parent) == (record.trace_id, phase_span_id(record.identity, 1, 0))
    assert now() == NOBODY


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), GeneratorExit()])
def test_context_is_put_back_after_an_exception(host: Host, error: BaseException) -> None:
    """Of any kind."""

    def fail(engine: Engine) -> None:
        raise error

    with host.active() as step:
        with pytest.raises(type(error)):
            one_sync(Engine(fail))
        assert now() == ids(step)


def test_current_span_follows_the_phases(host: Host) -> None:
    """Each span of the host is a child of the phase in which it began."""
    sink = RecordingSink()
    telemetry = sglang_telemetry.Telemetry(run="unit", sinks=[sink])
    with telemetry, host.active(), telemetry.sync() as sync:
        for name in ("save", "request", "barrier"):
            with sync.phase(name):
                host.tracer.start_span(name).end()
    [record] = sink.records
    for name in ("save", "request", "barrier"):
        index = [span.phase for span in record.phases].index(Phase(name))
        assert ids(host.ended(name).parent) == (record.trace_id, phase_span_id(record.identity, 1, index))


def test_async(host: Host) -> None:
    """Two syncs of two engines in two tasks at once: each joins its own caller, and each context is put back."""
    sinks = (RecordingSink(), RecordingSink())

    class Waiting(Engine):
        async def update_policy(self, model: Any) -> tuple[str, str]:
            await asyncio.sleep(0)
            before = now()
            await asyncio.sleep(0)
            assert now() == before
            return before

    async def one(number: int) -> None:
        engine = Waiting()
        with host.active(f"step-{number}") as step:
            with sglang_telemetry.instrument(engine, run=f"unit-{number}", sinks=[sinks[number]]):
                inside = await engine.update_policy(None)
            [record] = sinks[number].records
            assert (record.trace_id, record.parent_span_id) == ids(step)
            assert inside == (record.trace_id, phase_span_id(record.identity, 1, 0))
            assert now() == ids(step)

    async def both() -> None:
        await asyncio.gather(one(0), one(1))

    asyncio.run(both())
    assert now() == NOBODY


def test_generator(host: Host) -> None:
    """A sync inside a generator that is run to its end."""
    sink = RecordingSink()
    telemetry = sglang_telemetry.Telemetry(run="unit", sinks=[sink])

    def steps() -> Iterator[int]:
        with telemetry.sync():
            yield 1
            yield 2

    with telemetry, host.active() as step:
        assert list(steps()) == [1, 2]
        assert now() == ids(step)
    assert sink.records[0].trace_id == ids(step)[0]


def test_generator_that_is_closed_in_another_context(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised and nothing is logged by OpenTelemetry; the other context is not touched."""
    sink = RecordingSink()
    telemetry = sglang_telemetry.Telemetry(run="unit", sinks=[sink])

    def steps() -> Iterator[int]:
        with telemetry.sync():
            yield 1

    with telemetry, host.active() as step:
        generator = steps()
        contextvars.copy_context().run(next, generator)
        generator.close()  # type: ignore[attr-defined]
        assert now() == ids(step)
    assert [record.result for record in sink.records] == [Result.CANCELLED]
    assert [one for one in caplog.records if one.name.startswith("opentelemetry")] == []


def test_blocks_that_end_in_the_wrong_order(host: Host) -> None:
    """Two generators, the first to begin ends first: then the caller's span is current, and syncs are their own."""
    sink, engine = RecordingSink(), Engine()
    with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]) as telemetry, host.active() as step:

        def steps() -> Iterator[int]:
            with telemetry.sync():
                yield 1

        first, second = steps(), steps()
        next(first)
        next(second)
        for one in (first, second):
            assert list(one) == []
        assert now() == ids(step)
        engine.update_policy(None)
    assert [record.sequence for record in sink.records] == [1, 2, 3]
    assert sink.records[2].parent_span_id == ids(step)[1]


def test_engine_that_leaves_a_context_attached(host: Host) -> None:
    """It set baggage and never took it off: its value stays, our span does not, and the next sync is not our child."""

    def leak(engine: Engine) -> None:
        otel_context.attach(otel_context.set_value("baggage", "mine"))

    sink, engine = RecordingSink(), Engine(leak)
    with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]), host.active() as step:
        engine.update_policy(None)
        assert otel_context.get_value("baggage") == "mine"
        assert now() == ids(step)
        engine.update_policy(None)
    assert [record.parent_span_id for record in sink.records] == [ids(step)[1]] * 2


def test_task_that_outlives_the_sync(host: Host) -> None:
    """What it does later is no part of the sync: no parent that was never sent, and its own syncs are recorded."""
    sink = RecordingSink()
    kept: list[contextvars.Context] = []
    engine = Engine(lambda engine: kept.append(contextvars.copy_context()))
    with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
        engine.update_policy(None)
        engine.inside = None
        [record] = sink.records
        phases = {phase_span_id(record.identity, 1, index) for index in range(len(record.phases))}
        later = kept[0].run(now)
        assert later == NOBODY or later[1] in phases
        kept[0].run(engine.update_policy, None)
    assert [one.sequence for one in sink.records] == [1, 2]


def test_requests_of_a_task_that_outlives_the_sync(host: Host) -> None:
    """A rollout in it is recorded as one outside of a sync."""
    sink = RecordingSink()
    kept: list[contextvars.Context] = []

    class Rolling(Engine):
        def rollout(self) -> None:
            self.http.post(f"{self.base_url}/generate", timeout=5)

    with Answers(SUCCESS) as server:
        engine = Rolling(lambda engine: kept.append(contextvars.copy_context()), server.url)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
            engine.update_policy(None)
            kept[0].run(engine.rollout)
    assert [event.exchange.status_code for event in sink.events if isinstance(event, RequestRecord)] == [200]


def test_engine_in_the_sync_of_another(host: Host) -> None:
    """The inner one's sync is in the outer one's trace, below the phase that was open."""
    sink = RecordingSink()
    inner = Engine()
    outer = Engine(lambda engine: inner.update_policy(None))
    with sglang_telemetry.instrument(inner, run="inner", sinks=[sink]):
        with sglang_telemetry.instrument(outer, run="outer", sinks=[sink]):
            outer.update_policy(None)
    below, above = sink.records
    assert (below.trace_id, below.parent_span_id) == (above.trace_id, phase_span_id(above.identity, 1, 0))
    assert now() == NOBODY


def test_other_threads_are_not_touched(host: Host) -> None:
    """A sync in one thread is not the current span of another."""
    inside, go, seen = Event(), Event(), []

    def wait(engine: Engine) -> None:
        inside.set()
        assert go.wait(10)

    thread = Thread(target=one_sync, args=(Engine(wait),))
    thread.start()
    assert inside.wait(10)
    seen.append(now())
    go.set()
    thread.join(10)
    assert seen == [NOBODY]


# Nothing of it may cost a sync.


class Mute:
    """Log events and metrics of a sync, without times and ids."""

    def __init__(self) -> None:
        self.sink = RecordingSink()

    def told(self) -> list[tuple[Any, ...]]:
        """What is the same in every run."""
        return [
            (type(one).__name__, getattr(one, "result", None), getattr(one, "phase", None), getattr(one, "cause", None))
            for one in self.sink.events
        ]


def whole_run(status: tuple[int, bytes]) -> tuple[list[tuple[Any, ...]], list[dict[str, str]], SyncRecord]:
    """One sync against a server: what is told of it, the headers, and the record."""
    mute = Mute()
    with Answers(status) as server:
        engine = Engine(Engine.post, server.url)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[mute.sink]):
            engine.update_policy(None)
        headers = [headers for _, headers, _ in server.requests]
    return mute.told(), headers, mute.sink.records[0]


@pytest.mark.parametrize("status", [SUCCESS, BUSY])
def test_caller_that_is_not_sampled(monkeypatch: pytest.MonkeyPatch, status: tuple[int, bytes]) -> None:
    """Events are those of a run without OpenTelemetry; the header carries the caller's trace with the flags 00."""
    with monkeypatch.context() as patch:
        patch.setattr(ours, "_api", lambda: None)
        bare, _, _ = whole_run(status)
    silent = Host(sampler=ALWAYS_OFF)
    with silent.active() as step:
        told, [headers], record = whole_run(status)
    assert told == bare
    assert headers["traceparent"].startswith(f"00-{step.trace_id:032x}-")
    assert headers["traceparent"].endswith("-00")
    assert (record.trace_id, record.parent_span_id) == (trace_id(record.identity, 1), None)
    assert record.span_id == root_span_id(record.identity, 1)
    assert silent.exporter.get_finished_spans() == ()
    silent.provider.shutdown()


def test_remote_caller_that_is_not_sampled() -> None:
    """An unsampled context that came with a request, which no SDK made."""
    context = trace.SpanContext(7, 8, is_remote=True, trace_flags=trace.TraceFlags(0))
    token = otel_context.attach(trace.set_span_in_context(trace.NonRecordingSpan(context)))
    try:
        _, [headers], record = whole_run(SUCCESS)
        assert now() == ids(context)
    finally:
        otel_context.detach(token)
    assert headers["traceparent"][:36] == f"00-{7:032x}-"
    assert headers["traceparent"][-2:] == "00"
    assert record.parent_span_id is None


class Broken:
    """Raises at every use."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError("broken")


@pytest.mark.parametrize("name", ["get_current_span", "set_span_in_context", "SpanContext", "NonRecordingSpan"])
def test_broken_api_costs_no_sync(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """OpenTelemetry's functions raise: the sync is recorded, its request carries a context, nothing is an error."""

    def broken(*args: Any, **named: Any) -> Any:
        raise LookupError("broken")

    bare, _, _ = whole_run(SUCCESS)
    with monkeypatch.context() as patch:
        patch.setattr(trace, name, broken)
        told, [headers], record = whole_run(SUCCESS)
    assert told == bare
    assert record.result is Result.SUCCESS
    assert headers["traceparent"].startswith(f"00-{trace_id(record.identity, 1)}-")
    assert now() == NOBODY


def test_span_of_the_host_that_is_broken() -> None:
    """Whatever lies in the context as the current span."""
    token = otel_context.attach(otel_context.set_value("current-span", Broken()))
    try:
        told, _, record = whole_run(SUCCESS)
    finally:
        otel_context.detach(token)
    assert TelemetryError.__name__ not in [kind for kind, *_ in told]
    assert record.result is Result.SUCCESS


# The user's own instrumentation of requests.


@pytest.fixture
def instrumented(host: Host) -> Iterator[Host]:
    """``opentelemetry-instrumentation-requests`` is active."""
    instrumentor = RequestsInstrumentor()
    instrumentor.instrument(tracer_provider=host.provider)
    yield host
    instrumentor.uninstrument()


@pytest.mark.parametrize("caller", [True, False])
def test_instrumented_requests_nest_under_the_request_phase(instrumented: Host, caller: bool) -> None:
    """The host's CLIENT span is a child of our phase, and what the server gets is the host's span."""
    if caller:
        with instrumented.active():
            _, [headers], record = whole_run(SUCCESS)
    else:
        _, [headers], record = whole_run(SUCCESS)
    client = instrumented.ended("POST")
    index = [span.phase for span in record.phases].index(Phase.REQUEST)
    assert ids(client.parent) == (record.trace_id, phase_span_id(record.identity, 1, index))
    trace_hex, span_hex = ids(client.context)
    assert headers["traceparent"] == f"00-{trace_hex}-{span_hex}-01"


def test_instrumented_requests_in_threads_of_the_engine(instrumented: Host) -> None:
    """A pool that copies the context: each request's span is below a phase of the sync."""

    def send(engine: Engine) -> None:
        with ThreadPoolExecutor(4) as pool:
            contexts = [contextvars.copy_context() for _ in range(4)]
            list(pool.map(lambda one: one.run(engine.post), contexts))

    sink = RecordingSink()
    with Answers(SUCCESS) as server:
        engine = Engine(send, server.url)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
            engine.update_policy(None)
    [record] = sink.records
    phases = {phase_span_id(record.identity, 1, index) for index in range(len(record.phases))}
    posts = [one for one in instrumented.exporter.get_finished_spans() if one.name == "POST"]
    assert len(posts) == 4
    assert {one.parent is not None and ids(one.parent)[1] in phases for one in posts} == {True}
