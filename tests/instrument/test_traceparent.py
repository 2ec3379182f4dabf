"""The header ``traceparent``: on all that an engine sends, and never at the cost of what it sends."""

import asyncio
import contextlib
import functools
import inspect
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import requests
from requests.structures import CaseInsensitiveDict

import sglang_telemetry
from sglang_telemetry.events import RequestRecord, SyncRecord, TelemetryError
from sglang_telemetry.names import Attribute
from sglang_telemetry.testing import ManualClock, RecordedTraces, RecordingSink
from sglang_telemetry.trace_ids import outside_ids, request_span_id, trace_id
from tests.harness.answers import SUCCESS, Answers

HEADER = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01")
MINE = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
UPDATE = "update_weights_from_disk"


class Engine:
    """Sends all that engines send, through a client of any kind.

    Args:
        url: The server.
        http: The client.
        options: Keyword arguments of each request.
    """

    def __init__(self, url: str, http: Any = requests, **options: Any) -> None:
        self.base_url, self.http, self.options = url, http, options

    def send(self, route: str) -> Any:
        """Post."""
        return self.http.post(f"{self.base_url}/{route}", **self.options)

    def update_policy(self, model: Any) -> Any:
        """Push."""
        return self.send(UPDATE)

    def flush_cache(self) -> Any:
        """Flush."""
        return self.send("flush_cache")

    def rollout(self, prompts: Any) -> Any:
        """Generate many."""
        return self.send("generate")

    def generate(self, prompt: Any) -> Any:
        """Generate one."""
        return self.send("generate")


def header(request: tuple[str, dict[str, str], bytes]) -> str | None:
    """The one traceparent of a request; None without one."""
    found = [value for name, value in request[1].items() if name.lower() == "traceparent"]
    assert len(found) <= 1
    return found[0] if found else None


def sent_by(http: Any, **options: Any) -> tuple[list[str | None], RecordingSink]:
    """The headers of an update, a flush, a rollout and a generate through this client, and the events."""
    sink = RecordingSink()
    with Answers(SUCCESS) as server:
        engine = Engine(server.url, http, **options)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
            for call in (engine.update_policy, engine.rollout, engine.generate):
                call(None)
                assert engine.http is http
            engine.flush_cache()
            assert engine.http is http
        return [header(request) for request in server.requests], sink


def no_errors(sink: RecordingSink) -> bool:
    """Nothing of ours went wrong."""
    return not any(isinstance(event, TelemetryError) for event in sink.events)


class Plain(requests.Session):
    """A session of the user's with a method of its own."""

    def post(self, url: Any, data: Any = None, json: Any = None, **named: Any) -> requests.Response:
        """As ever."""
        return super().post(url, data, json, **named)


@pytest.mark.parametrize("make", [lambda: requests, requests.Session, Plain])
def test_everything_that_is_sent_carries_it(make: Any) -> None:
    """The update with the ids of its span; each request outside with ids of its own, recorded."""
    headers, sink = sent_by(make(), timeout=5)
    [record] = sink.records
    update, *outside = headers
    assert update == f"00-{trace_id(record.identity, 1)}-{request_span_id(record.identity, 1, 0)}-01"
    records = [event for event in sink.events if isinstance(event, RequestRecord)]
    assert outside == [f"00-{one.trace_id}-{one.span_id}-01" for one in records]
    assert [(one.trace_id, one.span_id) for one in records] == [outside_ids(record.identity, n) for n in (1, 2, 3)]
    assert [(one.sequence, one.exchange.status_code) for one in records] == [(1, 200)] * 3
    assert no_errors(sink)


def test_span_of_the_header_is_the_span_that_is_sent() -> None:
    """What the server names as its parent exists, in the trace and outside of it."""
    traces = RecordedTraces()
    with Answers(SUCCESS) as server:
        engine = Engine(server.url, timeout=5)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[traces]):
            engine.update_policy(None)
            engine.rollout(None)
        update, rollout = [(header(request) or "").split("-")[1:3] for request in server.requests]
    [sent] = traces.sync().requests()
    assert [sent.trace_id, sent.span_id] == update
    assert [traces.rollouts[0].trace_id, traces.rollouts[0].span_id] == rollout


def test_propagate_false() -> None:
    """No header anywhere; the records are the same."""
    sink = RecordingSink()
    with Answers(SUCCESS) as server:
        engine = Engine(server.url, timeout=5)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[sink], propagate=False):
            engine.update_policy(None)
            engine.rollout(None)
        assert [header(request) for request in server.requests] == [None, None]
    assert len(sink.records[0].exchanges) == 1
    assert len([event for event in sink.events if isinstance(event, RequestRecord)]) == 1


def test_session_that_has_it_already() -> None:
    """The user's own header stays, in any case of letters."""
    for name in ("traceparent", "TraceParent"):
        session = requests.Session()
        session.headers[name] = MINE
        headers, sink = sent_by(session, timeout=5)
        assert headers == [MINE] * 4
        assert dict(session.headers)[name] == MINE
        assert no_errors(sink)


@pytest.mark.parametrize(
    "given",
    [
        {"traceparent": MINE},
        {"Traceparent": MINE, "X-Other": "1"},
        CaseInsensitiveDict({"TRACEPARENT": MINE}),
        {b"Traceparent": MINE},
        MappingProxyType({"traceparent": MINE}),
    ],
)
def test_request_that_has_it_already(given: Any) -> None:
    """The user's own header stays, in any case of letters and any kind of mapping."""
    before = dict(given)
    headers, sink = sent_by(requests, headers=given, timeout=5)
    assert headers == [MINE] * 4
    assert dict(given) == before
    assert no_errors(sink)


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"X-Other": "1"},
        CaseInsensitiveDict({"X-Other": "1"}),
        MappingProxyType({"X-Other": "1"}),
    ],
)
def test_headers_of_the_caller_are_not_touched(given: Any) -> None:
    """They are sent with ours beside them; the object is what it was."""
    before = None if given is None else dict(given)
    sink = RecordingSink()
    with Answers(SUCCESS) as server:
        engine = Engine(server.url, headers=given, timeout=5)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
            engine.update_policy(None)
            engine.rollout(None)
        assert [bool(HEADER.fullmatch(header(one) or "")) for one in server.requests] == [True, True]
        assert {one[1].get("X-Other") for one in server.requests} == {"1" if before else None}
    assert engine.options["headers"] is given
    assert (None if given is None else dict(given)) == before
    assert no_errors(sink)


def test_header_that_is_taken_off_on_purpose() -> None:
    """``None`` is how ``requests`` is told to send no such header."""
    headers, sink = sent_by(requests, headers={"traceparent": None}, timeout=5)
    assert headers == [None] * 4
    assert no_errors(sink)


class Double:
    """A client of a test, whose ``post`` takes what is given in its signature."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def answer(self, **named: Any) -> Any:
        """Keep the call."""
        self.calls.append(named)
        return SimpleNamespace(status_code=200, content=SUCCESS[1])


def strict() -> tuple[Double, Any]:
    """Takes no headers at all."""
    double = Double()

    def post(url: str, json: Any = None, timeout: Any = None) -> Any:
        return double.answer(url=url, json=json, timeout=timeout)

    return double, SimpleNamespace(post=post)


def loose() -> tuple[Double, Any]:
    """Takes anything, and nobody knows what it does with it."""
    double = Double()
    return double, SimpleNamespace(post=lambda url, **named: double.answer(url=url, **named))


def with_default() -> tuple[Double, Any]:
    """Has headers of its own unless it is given others."""
    double = Double()

    def post(url: str, headers: Any = MappingProxyType({"Authorization": "mine"})) -> Any:
        return double.answer(url=url, headers=dict(headers))

    return double, SimpleNamespace(post=post)


def with_fallback() -> tuple[Double, Any]:
    """The same, as most write it."""
    double = Double()

    def post(url: str, headers: Any = None) -> Any:
        return double.answer(url=url, headers=dict(headers or {"Authorization": "mine"}))

    return double, SimpleNamespace(post=post)


def bound() -> tuple[Double, Any]:
    """A session's ``request`` with everything bound already."""
    double = Double()

    class Kept(requests.Session):
        def request(self, method: Any, url: Any, headers: Any = None, **named: Any) -> Any:  # type: ignore[override]
            return double.answer(url=url, headers=dict(headers))

    return double, SimpleNamespace(post=functools.partial(Kept().request, "POST", headers={"Authorization": "mine"}))


@pytest.mark.parametrize("make", [strict, loose])
def test_client_that_may_not_take_headers(make: Any) -> None:
    """It gets exactly what the engine gave it."""
    double, http = make()
    engine, sink = Engine("http://h:1", http), RecordingSink()
    with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
        engine.update_policy(None)
        engine.rollout(None)
    assert [one.get("headers") for one in double.calls] == [None, None]
    assert len(sink.records[0].exchanges) == 1
    assert no_errors(sink)


@pytest.mark.parametrize("make", [with_default, with_fallback, bound])
def test_headers_that_a_client_has_of_its_own(make: Any) -> None:
    """An engine that gives no headers leaves them to its client: the key must reach the server."""
    double, http = make()
    engine, sink = Engine("http://h:1", http), RecordingSink()
    with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
        engine.update_policy(None)
        engine.rollout(None)
    assert [one["headers"].get("Authorization") for one in double.calls] == ["mine", "mine"]
    assert no_errors(sink)


def test_headers_by_position() -> None:
    """``Session.request`` takes them as its sixth argument: the engine's call must not become a TypeError."""

    class Positional(Engine):
        def send(self, route: str) -> Any:
            url = f"{self.base_url}/{route}"
            return self.http.request("POST", url, None, b"{}", {"X-Other": "1"}, timeout=5)

    sink = RecordingSink()
    with Answers(SUCCESS) as server, requests.Session() as session:
        engine = Positional(server.url, session)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
            assert engine.update_policy(None).status_code == 200
            assert engine.rollout(None).status_code == 200
        assert [one[1].get("X-Other") for one in server.requests] == ["1", "1"]
    assert no_errors(sink)


def test_mapping_that_cannot_be_copied() -> None:
    """A frozen mapping whose copy is itself is sent as it is, or with ours beside it, but never changed."""

    class Frozen(dict[str, str]):
        def copy(self) -> "Frozen":
            return self

        def __setitem__(self, name: str, value: str) -> None:
            raise TypeError("frozen")

    given = Frozen({"X-Other": "1"})
    headers, sink = sent_by(requests, headers=given, timeout=5)
    assert dict(given) == {"X-Other": "1"}
    assert len(headers) == 4
    assert len(sink.records) == 1
    assert no_errors(sink)


def test_list_of_pairs() -> None:
    """As httpx takes it: not touched."""
    double = Double()

    def post(url: str, headers: Any = None) -> Any:
        return double.answer(url=url, headers=headers)

    given = [("X-Other", "1")]
    engine, sink = Engine("http://h:1", SimpleNamespace(post=post), headers=given), RecordingSink()
    with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
        engine.update_policy(None)
    assert double.calls[0]["headers"] is given
    assert given == [("X-Other", "1")]
    assert no_errors(sink)


# Async engines.


class AsyncClient:
    """Answers in its own time; takes headers."""

    def __init__(self) -> None:
        self.headers_seen: list[Any] = []

    async def post(self, url: str, *, headers: Any = None) -> Any:
        """Answer."""
        self.headers_seen.append(headers)
        await asyncio.sleep(0)
        return SimpleNamespace(status_code=200, content=SUCCESS[1])


class AsyncEngine:
    """The same methods, awaited."""

    def __init__(self) -> None:
        self.base_url, self.http = "http://h:1", AsyncClient()

    async def update_policy(self, model: Any) -> bool:
        """Push."""
        await self.http.post(f"{self.base_url}/{UPDATE}", headers={})
        return await self.flush_cache()

    async def flush_cache(self) -> bool:
        """Flush."""
        await self.http.post(f"{self.base_url}/flush_cache", headers={})
        return True

    async def generate(self, prompt: Any) -> Any:
        """Generate."""
        return await self.http.post(f"{self.base_url}/generate", headers={})

    async def rollout(self, prompts: int) -> list[Any]:
        """Many at once."""
        return list(await asyncio.gather(*(self.generate(None) for _ in range(prompts))))


def test_async_engine() -> None:
    """Each awaited request has a header of its own; the client is the engine's again when all is over."""
    engine, sink = AsyncEngine(), RecordingSink()
    client = engine.http

    async def main() -> None:
        assert await engine.update_policy(None) is True
        await asyncio.gather(engine.rollout(5), engine.generate(None))
        assert engine.http is client

    with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
        asyncio.run(main())
    values = [headers["traceparent"] for headers in client.headers_seen]
    assert len(set(values)) == len(values) == 8
    assert all(HEADER.fullmatch(value) for value in values)
    [record] = sink.records
    assert [exchange.url.rpartition("/")[2] for exchange in record.exchanges] == [UPDATE, "flush_cache"]
    assert len([event for event in sink.events if isinstance(event, RequestRecord)]) == 6
    assert no_errors(sink)


def test_async_methods_stay_coroutine_functions() -> None:
    """Frameworks ask whether a method is to be awaited."""
    engine = AsyncEngine()
    names = ("update_policy", "flush_cache", "generate", "rollout")
    with sglang_telemetry.instrument(engine, run="unit", sinks=[RecordingSink()]):
        assert [inspect.iscoroutinefunction(getattr(engine, name)) for name in names] == [True] * 4


def test_rollout_that_streams() -> None:
    """A generator sends when it is iterated, after the call has returned."""

    class Streaming(Engine):
        def rollout(self, prompts: int) -> Any:
            for _ in range(prompts):
                yield self.send("generate").status_code

    sink = RecordingSink()
    with Answers(SUCCESS) as server:
        engine = Streaming(server.url, timeout=5)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
            assert list(engine.rollout(2)) == [200, 200]
            assert engine.http is requests
        assert [bool(HEADER.fullmatch(header(one) or "")) for one in server.requests] == [True, True]


# Many at once.


def test_rollouts_in_many_threads_during_a_sync() -> None:
    """Each has a header of its own, none is part of the sync, and the client is the engine's own in the end."""
    inside, go = threading.Event(), threading.Event()

    def wait(handler: BaseHTTPRequestHandler) -> None:
        if UPDATE in handler.path:
            inside.set()
            assert go.wait(20)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(SUCCESS[1])))
        handler.end_headers()
        handler.wfile.write(SUCCESS[1])

    sink = RecordingSink()
    with Answers(wait) as server:
        engine = Engine(server.url, timeout=20)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
            thread = threading.Thread(target=engine.update_policy, args=(None,))
            thread.start()
            assert inside.wait(20)
            with ThreadPoolExecutor(8) as pool:
                statuses = [one.status_code for one in pool.map(engine.rollout, range(40))]
            go.set()
            thread.join(20)
            assert engine.http is requests
        values = [header(request) for request in server.requests]
    assert statuses == [200] * 40
    recorded = {f"00-{e.trace_id}-{e.span_id}-01" for e in sink.events if isinstance(e, RequestRecord)}
    assert None not in values
    [mine] = {value for value in values if value} - recorded  # the sync's; all others name a span that is recorded
    [record] = sink.records
    assert mine.split("-")[1] == record.trace_id
    assert len(record.exchanges) == 1
    assert no_errors(sink)


def test_client_is_given_back_in_any_order() -> None:
    """Threads that begin and end as they like, and one that raises: the engine has its own client afterwards."""

    class Failing(Engine):
        def rollout(self, prompts: Any) -> Any:
            if prompts % 3 == 0:
                raise LookupError("no prompt")
            return super().rollout(prompts)

    def call(engine: Engine, number: int) -> None:
        try:
            engine.rollout(number) if number % 2 else engine.update_policy(None)
        except LookupError:
            return

    with Answers(SUCCESS) as server:
        engine = Failing(server.url, timeout=5)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[RecordingSink()]):
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(functools.partial(call, engine), range(60)))
            assert engine.http is requests
            assert vars(engine)["http"] is requests
        assert set(vars(engine)) == {"base_url", "http", "options"}


def servers_at_once(first_ends_first: bool) -> tuple[SyncRecord, RecordedTraces]:
    """An engine that updates two servers from a pool; one answers when the other one's answer is all worked up."""
    both, one_through = threading.Barrier(2), threading.Event()
    sink, traces = RecordingSink(), RecordedTraces()

    class Two(Engine):
        def update_policy(self, model: Any) -> None:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(self.push, ("one", "two")))

        def push(self, host: str) -> None:
            self.http.post(f"http://{host}:1/{UPDATE}")
            one_through.set()

    class Http:
        def post(self, url: str) -> Any:
            both.wait(20)
            if ("one" in url) is not first_ends_first:
                assert one_through.wait(20)
            return SimpleNamespace(status_code=200, content=SUCCESS[1])

    engine = Two("http://one:1", Http())
    with sglang_telemetry.instrument(engine, run="unit", sinks=[sink, traces]):
        engine.update_policy(None)
    return sink.records[0], traces


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_two_servers_at_once(first_ends_first: bool) -> None:
    """The request phase lasts until the last answer is there: no request leaves its phase's time."""
    record, traces = servers_at_once(first_ends_first)
    assert len(record.exchanges) == 2
    traces.sync().assert_complete()
    assert len(traces.sync().requests()) == 2


def test_requests_at_one_moment_have_an_index_each() -> None:
    """Two threads that begin a request at the same time: two exchanges, two spans, two headers."""
    meeting = threading.Barrier(2)

    class Meeting:
        """A clock in which two threads of the pool meet while each makes its exchange."""

        def wall(self) -> float:
            return 1_700_000_000.0

        def monotonic_ns(self) -> int:
            if threading.current_thread().name.startswith("pool"):
                with contextlib.suppress(threading.BrokenBarrierError):  # the other one may not come, and that is well
                    meeting.wait(0.5)
            return 0

    double = Double()

    class Two(Engine):
        def update_policy(self, model: Any) -> None:
            with ThreadPoolExecutor(2, thread_name_prefix="pool") as pool:
                list(pool.map(self.push, ("one", "two")))

        def push(self, host: str) -> None:
            self.http.post(f"http://{host}:1/{UPDATE}", headers={})

    def post(url: str, headers: Any = None) -> Any:
        return double.answer(url=url, headers=headers)

    engine, sink = Two("http://one:1", SimpleNamespace(post=post)), RecordingSink()
    with sglang_telemetry.instrument(engine, run="unit", sinks=[sink], clock=Meeting()):
        engine.update_policy(None)
    [record] = sink.records
    assert sorted(((one.url, one.status_code) for one in record.exchanges), key=str) == [
        (f"http://{host}:1/{UPDATE}", 200) for host in ("one", "two")
    ]
    assert len({one["headers"]["traceparent"] for one in double.calls}) == 2


def test_more_servers_than_a_record_holds() -> None:
    """Twenty servers, the eighteenth refuses: the exchange that decides is that one's, in record and trace."""
    double = Double()

    class Many(Engine):
        def update_policy(self, model: Any) -> None:
            for number in range(20):
                self.http.post(f"http://h{number}:1/{UPDATE}")

    def post(url: str, headers: Any = None) -> Any:
        double.answer(url=url)
        refused = "//h17:" in url
        return SimpleNamespace(status_code=400 if refused else 200, content=b"no" if refused else SUCCESS[1])

    sink, traces = RecordingSink(), RecordedTraces()
    with sglang_telemetry.instrument(
        (engine := Many("http://h0:1", SimpleNamespace(post=post))), run="unit", sinks=[sink, traces]
    ):
        engine.update_policy(None)
    [record] = sink.records
    assert record.target.server == "h17:1"
    assert record.exchange is not None
    assert (record.exchange.url, record.exchange.status_code) == (f"http://h17:1/{UPDATE}", 400)
    [wrong] = [span for span in traces.spans if span.client and span.error is not None]
    assert wrong.attributes[Attribute.URL] == f"http://h17:1/{UPDATE}"


def test_many_requests_outside_are_recorded_in_part() -> None:
    """A request a sample: ten a second are recorded, and what is more names the last of these as its parent."""
    double = Double()

    def post(url: str, headers: Any = None) -> Any:
        return double.answer(url=url, headers=headers)

    clock, sink = ManualClock(), RecordingSink()
    engine = Engine("http://h:1", SimpleNamespace(post=post), headers={})
    with sglang_telemetry.instrument(engine, run="unit", sinks=[sink], clock=clock):
        for _ in range(3):
            for _ in range(50):
                engine.rollout(None)
            clock.advance(1.0)
    recorded = [f"00-{e.trace_id}-{e.span_id}-01" for e in sink.events if isinstance(e, RequestRecord)]
    sent = [one["headers"]["traceparent"] for one in double.calls]
    assert len(set(recorded)) == 30
    assert sent == [mine for n in range(3) for mine in (*recorded[10 * n : 10 * n + 10], *[recorded[10 * n + 9]] * 40)]


def test_uninstrumented_engine_is_bare() -> None:
    """Afterwards nothing carries anything, and the methods are the class's own."""
    with Answers(SUCCESS) as server:
        engine = Engine(server.url, timeout=5)
        sglang_telemetry.instrument(engine, run="unit", sinks=[RecordingSink()]).uninstrument()
        engine.update_policy(None)
        engine.rollout(None)
        assert [header(one) for one in server.requests] == [None, None]
    assert set(vars(engine)) == {"base_url", "http", "options"}
