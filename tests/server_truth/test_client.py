"""A look at servers of all kinds: the stand-in for SGLang, older ones, broken ones, and those that never answer."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_telemetry.server_truth.client import MAX_BODY, Look, ModelInfo, Reach, look
from sglang_telemetry.testing import FakeSGLang
from tests.harness.answers import give
from tests.harness.processes import free_port

Routes = Mapping[str, tuple[int, bytes] | Callable[[BaseHTTPRequestHandler], None]]
INFO = {"model_path": "/w", "weight_version": "default", "tokenizer_path": "/start"}
SHORT = 0.4


class Site:
    """A server whose GETs are answered from a table; what is not in it is 404."""

    def __init__(self, routes: Routes) -> None:
        self.asked: list[tuple[str, str | None]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append((self.path, self.headers.get("User-Agent")))
                answer = routes.get(self.path.partition("?")[0], (404, b'{"detail":"Not Found"}'))
                if callable(answer):
                    answer(self)
                else:
                    give(self, answer)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [path for path, _ in self.asked]

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def site(routes: Routes) -> Iterator[Site]:
    """A server with these routes."""
    made = Site(routes)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def talker(*chunks: bytes, every: float = 0.0, forever: bytes = b"") -> Iterator[str]:
    """A server that sends what it is told to whoever connects, and then ``forever``, if that is not empty."""
    stop = threading.Event()

    def talk(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(4096)
                for chunk in chunks:
                    connection.sendall(chunk)
                while forever and not stop.wait(every):
                    connection.sendall(forever)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            if stop.is_set():
                connection.close()
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    port = listening.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        with socket.create_connection(("127.0.0.1", port)):
            pass
        thread.join()
        listening.close()


def body(**fields: object) -> tuple[int, bytes]:
    """200 with JSON."""
    return 200, json.dumps(fields).encode()


def test_sglang() -> None:
    """Ready, what it loaded, and its version, each asked by its name; it is told who asks."""
    with FakeSGLang("/models/start") as server:
        assert look(server.url, version=True) == Look(
            reach=Reach.ANSWERED,
            ready=True,
            info=ModelInfo(model_path="/models/start", weight_version="default", tokenizer_path="/models/start"),
            version="0.5.23",
        )
        asked = server.requests
    assert [one.path for one in asked] == ["/ready", "/model_info", "/v1/loads?include=core"]
    assert {one.headers["user-agent"].split("/")[0] for one in asked} == {"sglang-telemetry"}
    assert {one.method for one in asked} == {"GET"}


def test_nothing_is_asked_that_was_not_wanted() -> None:
    """During a sync only what costs nothing."""
    with FakeSGLang() as server:
        assert look(server.url, info=False) == Look(reach=Reach.ANSWERED, ready=True)
        assert [one.path for one in server.requests] == ["/ready"]


def test_refused() -> None:
    """Nobody listens."""
    assert look(f"http://127.0.0.1:{free_port()}") == Look(reach=Reach.REFUSED)


def test_refused_by_the_one_address_family_that_is_there() -> None:
    """``localhost`` is two addresses on most machines."""
    assert look(f"http://localhost:{free_port()}") == Look(reach=Reach.REFUSED)


@pytest.mark.parametrize(
    "url", ["http://no-such-host.invalid:1", "http://127.0.0.1:99999", "http://[::1", "http://", "x"]
)
def test_no_address(url: str) -> None:
    """It cannot even be tried; that says nothing of a restart."""
    assert look(url) == Look(reach=Reach.SILENT)


def short(url: str) -> Look:
    """A look of ``SHORT`` seconds; were it not bounded, the time-out of the test would end it."""
    return look(url, version=True, seconds=SHORT)


def test_black_hole() -> None:
    """The kernel takes the connection, and nobody ever reads."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        assert short(f"http://127.0.0.1:{hole.getsockname()[1]}") == Look(reach=Reach.SILENT)


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n"],
    ids=["status line", "one header", "between headers"],
)
def test_answer_that_drips_and_never_ends(head: bytes) -> None:
    """A byte now and then would reset the time-out of each read."""
    with talker(head, every=0.02, forever=b"x") as url:
        assert short(url) == Look(reach=Reach.SILENT)


def test_endless_100_continue() -> None:
    """An answer that is always still to come."""
    with talker(every=0.01, forever=b"HTTP/1.1 100 Continue\r\n\r\n") as url:
        assert short(url) == Look(reach=Reach.SILENT)


def test_body_that_drips() -> None:
    """The status is known, so that it is up; of the rest nothing is."""

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" ")
                handler.wfile.flush()
                time.sleep(0.02)
        except OSError:
            return

    with site({"/ready": drip, "/model_info": drip, "/v1/loads": drip}) as server:
        assert short(server.url) == Look(reach=Reach.ANSWERED, ready=True)


def test_huge_body() -> None:
    """Read up to the bound, and then not believed."""
    huge = body(**INFO, padding="x" * MAX_BODY)
    with site({"/ready": (200, b""), "/model_info": huge}) as server:
        assert look(server.url) == Look(reach=Reach.ANSWERED, ready=True)
    with talker(b"HTTP/1.1 200 OK\r\n\r\n", forever=b"x" * 65536) as url:
        assert short(url) == Look(reach=Reach.ANSWERED, ready=True)


def test_no_http_at_all() -> None:
    """Something listens that says what is no HTTP."""
    with talker(b"220 mail ready\r\n") as url:
        assert look(url) == Look(reach=Reach.SILENT)


def test_hangs_up() -> None:
    """The connection is closed without a word."""
    with talker() as url:
        assert look(url) == Look(reach=Reach.SILENT)


def test_no_https_where_it_was_expected() -> None:
    """The handshake fails: that is no answer, and no refusal."""
    with FakeSGLang() as server:
        assert look(server.url.replace("http:", "https:")) == Look(reach=Reach.SILENT)


@pytest.mark.parametrize(
    ("status", "ready"), [(200, True), (503, False), (404, None), (401, None), (500, None), (307, None)]
)
def test_ready(status: int, ready: bool | None) -> None:
    """200 and 503 are its two answers; any other is none, and it is up all the same."""
    with site({"/ready": (status, b"")}) as server:
        assert look(server.url, info=False) == Look(reach=Reach.ANSWERED, ready=ready)


def test_paused() -> None:
    """SGLang 0.5.23 says 503 while it is paused."""
    with FakeSGLang() as server:
        server._life.engine.pause("retract")
        found = look(server.url)
    assert (found.reach, found.ready, found.info is not None) == (Reach.ANSWERED, False, True)


def test_old_names() -> None:
    """Before ``/model_info`` there was ``/get_model_info``, and the version stood in ``/get_server_info`` alone."""
    old = {"/get_model_info": body(model_path="/w"), "/get_server_info": body(version="0.4.1", admin_api_key="k")}
    with site(old) as server:
        assert look(server.url, version=True) == Look(
            reach=Reach.ANSWERED, info=ModelInfo(model_path="/w"), version="0.4.1"
        )


def test_key_wanted() -> None:
    """401 is no answer to the question, and is not asked for twice."""
    refused = (401, b'{"error":"Unauthorized"}')
    routes = dict.fromkeys(("/model_info", "/get_model_info", "/v1/loads", "/server_info"), refused)
    with site({"/ready": (200, b""), **routes}) as server:
        assert look(server.url, version=True) == Look(reach=Reach.ANSWERED, ready=True)
        assert server.paths == ["/ready", "/model_info", "/v1/loads?include=core"]


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>Welcome to nginx!</html>"),
        (200, b""),
        (200, b"\xff\xfe"),
        (200, b"null"),
        (200, b"[" * 60_000),
        (200, b'["model_path"]'),
        (200, b'{"model_path": null}'),
        (200, b'{"model_path": 7}'),
        (200, b'{"model_path": {"a": 1}}'),
        (500, b'{"model_path": "/w"}'),
    ],
)
def test_what_is_not_sglangs(answer: tuple[int, bytes]) -> None:
    """Pages, other JSON, other types: unknown."""
    with site(dict.fromkeys(("/model_info", "/get_model_info", "/v1/loads", "/server_info"), answer)) as server:
        assert look(server.url, version=True) == Look(reach=Reach.ANSWERED)


def test_other_types_beside_a_path() -> None:
    """What can be read is."""
    with site({"/model_info": body(model_path="/w", weight_version=3, tokenizer_path=[])}) as server:
        assert look(server.url).info == ModelInfo(model_path="/w")


def test_text_is_cleaned() -> None:
    """Terminal control characters and secrets of a server do not get further than here."""
    with site({"/model_info": body(model_path="/w\x1b[2J token=abcdef123", weight_version="v\u202e1")}) as server:
        assert look(server.url).info == ModelInfo(model_path="/w token=[redacted]", weight_version="v1")


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("0.5.23", "0.5.23"),
        ("0.5.24.dev1+g12ab-x", "0.5.24.dev1+g12ab-x"),
        ("0.5\n<script>", "0.5"),
        ("9" * 99, "9" * 40),
        ("<b>", None),
        ("", None),
        (5, None),
    ],
)
def test_version_is_of_a_closed_form(said: object, version: str | None) -> None:
    """It becomes a label value."""
    with site({"/v1/loads": body(version=said)}) as server:
        assert look(server.url, version=True).version == version


def test_big_server_info() -> None:
    """37 KB were measured; ten times that is read, for one key of it."""
    with site({"/server_info": body(version="0.5.1", args="x" * 400_000)}) as server:
        assert look(server.url, version=True).version == "0.5.1"


def test_redirects_are_not_followed() -> None:
    """What a redirect leads to is another server."""
    with site({"/ready": (200, b""), "/model_info": body(model_path="/other")}) as other:

        def elsewhere(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(307)
            handler.send_header("Location", f"{other.url}{handler.path}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        with site(dict.fromkeys(("/ready", "/model_info", "/v1/loads"), elsewhere)) as server:
            assert look(server.url, version=True) == Look(reach=Reach.ANSWERED)
        assert other.asked == []


def test_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's proxy variables apply to the trainer, not to this."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FakeSGLang() as server:
        assert look(server.url).reach is Reach.ANSWERED


def test_base_path_and_hostile_path() -> None:
    """Routes stand below the path that the trainer used; nothing in it becomes a header of ours."""
    with site({"/pool/a/ready": (200, b"")}) as server:
        assert look(f"{server.url}/pool/a/", info=False).ready is True
        look(f"{server.url}/a\r\nX-Evil: 1\r\n b", info=False)
        assert server.paths[1].endswith("b/ready")
        assert "X-Evil:%201" in server.paths[1]
