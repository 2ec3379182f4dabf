"""Each cause from the real thing: ports that really refuse, sockets that really close, disks that really are full."""

import contextlib
import errno
import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import torch
import urllib3.exceptions

import sglang_telemetry
from sglang_telemetry import FailureCause, SyncRecord
from sglang_telemetry.classify import (
    SERVER_TEXTS,
    Evidence,
    Recorded,
    another_is_at_work,
    classify,
    first_errno,
    walk,
)
from sglang_telemetry.events import Checkpoint, Exchange
from sglang_telemetry.names import Applied, Phase
from sglang_telemetry.testing.doubles import RecordingSink
from tests.harness.answers import SUCCESS, Answers, close_without_answer
from tests.harness.minimind import SavableModel, SharedFolderEngine
from tests.harness.mounts import fill, tmpfs
from tests.server_truth.sites import Certificate, make_certificate


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def sync(url: str, folder: Path, *, timeout: float = 5, model: Any = None) -> SyncRecord:
    """One sync of the MiniMind-shaped engine against a server; its record."""
    sink = RecordingSink()
    engine = SharedFolderEngine(url, str(folder), timeout=timeout)
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        try:
            engine.update_policy(model or SavableModel())
        except RuntimeError as error:
            assert str(error) == "SGLang update_policy failed"  # noqa: PT017
    [record] = sink.records
    return record


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_refused_port_is_unreachable(tmp_path: Path) -> None:
    """Nobody listens: errno 111, no weights taken, and the record says it was never reached."""
    record = sync(f"http://127.0.0.1:{free_port()}", tmp_path / "c")
    assert (record.cause, record.weights_applied, record.reached_before) == (
        FailureCause.UNREACHABLE,
        Applied.NO,
        False,
    )
    assert record.exchange is not None
    assert record.exchange.error_errno == 111


@pytest.mark.parametrize("url", ["http://no-such-host.invalid:30000", "https://127.0.0.1:{tcp}", "http://[::1]:{free}"])
def test_other_failures_of_the_connect_phase(tmp_path: Path, url: str) -> None:
    """A name that does not resolve, TLS to a server that speaks none, and an address without a listener."""
    with Answers(SUCCESS) as server:
        record = sync(url.format(tcp=server.url.rpartition(":")[2], free=free_port()), tmp_path / "c")
    assert record.cause is FailureCause.UNREACHABLE


def _cause_of(error: BaseException) -> tuple[FailureCause, Applied]:
    recorded = Recorded(exchange=Exchange(method="POST", url="http://h/update_weights_from_disk"), error=error)
    return classify(Evidence(coordinator=True, recorded=recorded))


def _raised_by(send: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as raised:
        send()
    return raised.value


SENDERS = {"requests": requests.post, "httpx": httpx.post, "urllib3": urllib3.PoolManager(retries=False).urlopen}


def _post(client: str, url: str, **named: Any) -> BaseException:
    """What a client raises for an update."""
    first = ("POST",) if client == "urllib3" else ()
    return _raised_by(lambda: SENDERS[client](*first, url, timeout=5, **named))


@pytest.mark.parametrize("client", SENDERS)
@pytest.mark.parametrize("url", ["http://127.0.0.1:{free}", "http://no-such-host.invalid:1", "https://127.0.0.1:{tcp}"])
def test_nothing_was_sent_where_no_connection_came_about(client: str, url: str) -> None:
    """A closed port, a name that does not resolve, and TLS to a server that speaks none."""
    with Answers(SUCCESS) as server:
        error = _post(client, url.format(tcp=server.url.rpartition(":")[2], free=free_port()))
    assert _cause_of(error) == (FailureCause.UNREACHABLE, Applied.NO)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """One that nobody has signed."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def _garbled(listener: socket.socket, certificate: Certificate) -> None:
    """Take one request over TLS, and answer with a record that cannot be deciphered."""
    connection, _ = listener.accept()
    # A client that does not trust the certificate goes.
    with connection, connection.dup() as below, contextlib.suppress(ssl.SSLError):
        with certificate.context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(65536)
            below.sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32)


@pytest.mark.parametrize("client", ["requests", "httpx"])
@pytest.mark.parametrize("trusted", [True, False])
def test_tls_that_broke_after_the_update_was_sent(client: str, trusted: bool, certificate: Certificate) -> None:
    """A bad record comes behind the update, which may be at work; a certificate is looked at before."""
    trust: Any = {"verify": str(certificate.file)} if client == "requests" else {}
    if client == "httpx":
        trust = {"verify": ssl.create_default_context(cafile=str(certificate.file))}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_garbled, args=(listener, certificate))
        thread.start()
        error = _post(client, f"https://127.0.0.1:{listener.getsockname()[1]}", **(trust if trusted else {}))
        thread.join()
    assert _cause_of(error) == (FailureCause.UNREACHABLE, Applied.UNKNOWN if trusted else Applied.NO)


def _caused(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize("number", [errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN])
def test_a_route_that_went_away(number: int) -> None:
    """While it connects nothing was sent; on a connection that stood the update may have been."""
    error = OSError(number, os.strerror(number))
    connecting = urllib3.exceptions.NewConnectionError(None, "Failed to establish")  # type: ignore[arg-type]
    sent = urllib3.exceptions.ProtocolError("Connection aborted.", error)
    assert _cause_of(requests.ConnectionError(_caused(connecting, error))) == (FailureCause.UNREACHABLE, Applied.NO)
    assert _cause_of(_caused(httpx.ConnectError("x"), error)) == (FailureCause.UNREACHABLE, Applied.NO)
    assert _cause_of(requests.ConnectionError(sent)) == (FailureCause.UNREACHABLE, Applied.UNKNOWN)
    assert _cause_of(_caused(httpx.ReadError("x"), error)) == (FailureCause.UNREACHABLE, Applied.UNKNOWN)
    assert _cause_of(error) == (FailureCause.UNREACHABLE, Applied.UNKNOWN)


class ClientConnectorError(OSError):
    """As aiohttp's."""


@pytest.mark.parametrize(
    ("error", "applied"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Applied.NO),
        (OSError(errno.EADDRNOTAVAIL, "no address"), Applied.NO),
        (socket.gaierror(-2, "unknown"), Applied.NO),
        (ClientConnectorError(errno.EHOSTUNREACH, "no route"), Applied.NO),
        (ssl.SSLCertVerificationError(1, "self-signed"), Applied.NO),
        (ssl.SSLError(1, "[SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] sslv3 alert handshake failure"), Applied.NO),
        (ssl.SSLError(1, "[SSL: UNSUPPORTED_PROTOCOL] unsupported protocol"), Applied.NO),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), Applied.UNKNOWN),
        # The host's name is no text of OpenSSL's.
        (requests.exceptions.SSLError("host='handshake.example'", ssl.SSLEOFError(8, "EOF")), Applied.UNKNOWN),
    ],
)
def test_was_it_sent(error: BaseException, applied: Applied) -> None:
    """It was not, only where that is sure."""
    assert _cause_of(error) == (FailureCause.UNREACHABLE, applied)


@pytest.mark.parametrize("client", ["requests", "httpx"])
def test_a_header_that_cannot_be_sent_is_protocol(client: str) -> None:
    """httpx tells of it with the class that stands above that of a server which breaks off, too."""
    with Answers(SUCCESS) as server:
        error = _post(client, server.url, headers={"X-Key": "of a file\n"})
    assert _cause_of(error) == (FailureCause.PROTOCOL, Applied.NO)


def test_an_engine_that_sends_again_in_its_handler() -> None:
    """The exception of the second request carries that of the first, to which nobody was there."""
    refused = requests.ConnectionError(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            raise refused
        except requests.ConnectionError:
            error = _raised_by(
                lambda: requests.post(f"http://127.0.0.1:{listener.getsockname()[1]}", json={}, timeout=0.1)
            )
    assert refused in list(walk(error))
    assert _cause_of(error) == (FailureCause.TIMEOUT, Applied.UNKNOWN)


def test_connect_timeout_is_unreachable(tmp_path: Path) -> None:
    """A listener whose queue is full never completes the handshake: the connect phase times out, not the answer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
            waiting.append(one)
        record = sync(f"http://127.0.0.1:{listener.getsockname()[1]}", tmp_path / "c", timeout=0.3)
        for one in waiting:
            one.close()
    assert (record.cause, record.error_type) == (FailureCause.UNREACHABLE, "ConnectTimeout")
    assert record.weights_applied is Applied.NO


def test_no_answer_in_time_is_a_timeout(tmp_path: Path) -> None:
    """The request was read, the answer did not come: nobody knows whether the weights were taken."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        record = sync(f"http://127.0.0.1:{listener.getsockname()[1]}", tmp_path / "c", timeout=0.3)
    assert (record.cause, record.weights_applied) == (FailureCause.TIMEOUT, Applied.UNKNOWN)


def _evidence_of_closed(accepting: bool | None, checkpoint: Checkpoint | None = None) -> Evidence:
    error = requests.ConnectionError(http.client.RemoteDisconnected("Remote end closed connection without response"))
    recorded = Recorded(exchange=Exchange(method="POST", url="http://h/update_weights_from_disk"), error=error)
    return Evidence(coordinator=True, recorded=recorded, accepting=accepting, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("accepting", "expected"),
    [
        (False, (FailureCause.SERVER_DIED, Applied.NO)),
        (None, (FailureCause.SERVER_DIED, Applied.NO)),
        (True, (FailureCause.UNREACHABLE, Applied.UNKNOWN)),
    ],
)
def test_closed_without_an_answer(accepting: bool | None, expected: tuple[FailureCause, Applied]) -> None:
    """A closed connection means a dead server, unless that accepts connections right afterwards."""
    assert classify(_evidence_of_closed(accepting)) == expected


def test_closed_by_a_really_dying_listener(tmp_path: Path) -> None:
    """The listener goes before the connection does: what SGLang's process does when a checkpoint kills it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def die() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        listener.close()
        connection.close()

    thread = threading.Thread(target=die)
    thread.start()
    record = sync(f"http://127.0.0.1:{listener.getsockname()[1]}", tmp_path / "c")
    thread.join()
    assert (record.cause, record.weights_applied) == (FailureCause.SERVER_DIED, Applied.NO)


def test_a_torn_checkpoint_that_killed_the_server_is_found(tmp_path: Path) -> None:
    """The local check sees the cut file, so the cause is the checkpoint and names the file and its sizes."""

    class Torn(SavableModel):
        def save_pretrained(self, path: str, **named: Any) -> None:
            super().save_pretrained(path, **named)
            file = Path(path) / "pytorch_model.bin"
            os.truncate(file, file.stat().st_size // 2)

    with Answers(close_without_answer) as server:
        record = sync(server.url, tmp_path / "c", model=Torn())
    assert record.checkpoint is not None
    assert record.checkpoint.fault is not None
    assert record.checkpoint.fault.startswith("pytorch_model.bin: ")
    there = record.checkpoint
    assert classify(_evidence_of_closed(False, there)) == (FailureCause.CHECKPOINT_INVALID, Applied.NO)


@pytest.mark.parametrize("leave", [0, 2048])
def test_full_disk(tmp_path: Path, leave: int) -> None:
    """torch's writer on a tmpfs without space: its error has no errno, but the file system has no room."""
    with tmpfs(tmp_path / "full") as full:
        (full / "c").mkdir()
        fill(full, leave=leave)
        record = sync("http://127.0.0.1:1", full / "c")
    assert (record.cause, record.exchange) == (FailureCause.DISK_FULL, None)
    assert record.checkpoint is not None
    assert record.checkpoint.free_bytes is not None
    assert record.checkpoint.free_bytes <= 4096


def test_read_only_folder(tmp_path: Path) -> None:
    """EROFS from the real kernel: the folder and the errno are in the record, no request was made."""
    with tmpfs(tmp_path / "ro", read_only=True) as folder:
        record = sync("http://127.0.0.1:1", folder / "c")
    assert (record.cause, record.weights_applied, record.exchange) == (
        FailureCause.CHECKPOINT_WRITE,
        Applied.NO,
        None,
    )
    assert record.error_text is not None
    assert "Read-only file system" in record.error_text


class Failing(SavableModel):
    """Raises while it is saved."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def save_pretrained(self, path: str, **named: Any) -> None:
        """Fail."""
        raise self.error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(28, "No space left on device"), FailureCause.DISK_FULL),
        (OSError(122, "Disk quota exceeded"), FailureCause.DISK_FULL),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), FailureCause.OUT_OF_MEMORY),
        (MemoryError(), FailureCause.OUT_OF_MEMORY),
        (OSError(12, "Cannot allocate memory"), FailureCause.OUT_OF_MEMORY),
        (OSError(5, "Input/output error"), FailureCause.CHECKPOINT_WRITE),
        (OSError(116, "Stale file handle"), FailureCause.CHECKPOINT_WRITE),
        (PermissionError(13, "Permission denied"), FailureCause.CHECKPOINT_WRITE),
        (TypeError("cannot pickle 'module' object"), FailureCause.CHECKPOINT_WRITE),
        (ExceptionGroup("shards", [ValueError("x"), OSError(28, "No space left")]), FailureCause.DISK_FULL),
    ],
)
def test_errors_of_the_save(tmp_path: Path, error: BaseException, cause: FailureCause) -> None:
    """Swallowed and printed by the engine, yet seen at the seam as the objects they are."""
    record = sync("http://127.0.0.1:1", tmp_path / "c", model=Failing(error))
    assert (record.cause, record.error_type) == (cause, type(error).__name__)


def test_error_between_two_seams_is_seen_in_the_handler(tmp_path: Path) -> None:
    """Out of memory in the half-precision copy passes no seam: it is found while the engine prints it."""

    class Unhalved(SavableModel):
        def state_dict(self, *args: Any, **named: Any) -> Any:
            return {"weight": object()}

    record = sync("http://127.0.0.1:1", tmp_path / "c", model=Unhalved())
    assert (record.cause, record.error_type) == (FailureCause.CHECKPOINT_WRITE, "AttributeError")


HTML = b"<html><head><title>503 Service Unavailable</title></head><body>nginx</body></html>"


@pytest.mark.parametrize(
    ("status", "body", "cause", "applied"),
    [
        (401, b'{"error":"Unauthorized"}', FailureCause.UNAUTHORIZED, Applied.NO),
        (403, b'{"error":"Forbidden"}', FailureCause.UNAUTHORIZED, Applied.NO),
        (407, HTML, FailureCause.PROXY_INTERCEPTED, Applied.NO),
        (409, b'{"detail":"conflict"}', FailureCause.SERVER_BUSY, Applied.NO),
        (423, b"locked", FailureCause.SERVER_BUSY, Applied.NO),
        (429, b"slow down", FailureCause.SERVER_BUSY, Applied.NO),
        (404, b'{"detail":"Not Found"}', FailureCause.PROTOCOL, Applied.NO),
        (405, b'{"detail":"Method Not Allowed"}', FailureCause.PROTOCOL, Applied.NO),
        (415, b"", FailureCause.PROTOCOL, Applied.NO),
        (422, b'{"detail":[]}', FailureCause.PROTOCOL, Applied.NO),
        (501, b"", FailureCause.PROTOCOL, Applied.NO),
        (304, b"", FailureCause.PROTOCOL, Applied.NO),
        (200, HTML, FailureCause.PROTOCOL, Applied.UNKNOWN),
        (200, b'{"choices":[]}', FailureCause.PROTOCOL, Applied.UNKNOWN),
        (200, b'{"success":false,"message":"odd"}', FailureCause.SERVER_ERROR, Applied.UNKNOWN),
        (500, b"Internal Server Error", FailureCause.SERVER_ERROR, Applied.UNKNOWN),
        (503, HTML, FailureCause.SERVER_ERROR, Applied.UNKNOWN),
        (400, b'{"success":false,"message":"something new"}', FailureCause.SERVER_ERROR, Applied.UNKNOWN),
        (500, b'{"error":{"message":"CUDA out of memory"}}', FailureCause.OUT_OF_MEMORY, Applied.UNKNOWN),
        (
            400,
            b'{"object":"error","message":"1 validation error","type":"Bad Request","param":null,"code":400}',
            FailureCause.PROTOCOL,
            Applied.NO,
        ),
    ],
)
def test_answers(tmp_path: Path, status: int, body: bytes, cause: FailureCause, applied: Applied) -> None:
    """Status codes and bodies that no text rule knows."""
    with Answers((status, body)) as server:
        record = sync(server.url, tmp_path / "c")
    assert (record.cause, record.weights_applied) == (cause, applied)
    assert record.exchange is not None
    assert record.exchange.response_text == body.decode()


@pytest.mark.parametrize("known", SERVER_TEXTS, ids=lambda known: known.fragment[:30])
def test_every_known_text_is_understood(tmp_path: Path, known: Any) -> None:
    """A 400 with that text, while the files are complete here."""
    body = json.dumps({"success": False, "message": f"Failed: {known.fragment.upper()}.", "num_paused_requests": 0})
    with Answers((400, body.encode())) as server:
        record = sync(server.url, tmp_path / "c")
    assert (record.cause, record.weights_applied) == (known.cause, known.applied)


@pytest.mark.parametrize(
    ("text", "at_work"),
    [
        ('{"message":"Another flush_cache is ALREADY in progress."}', True),
        ("A weight-update session is already open", True),
        ("Weight update already in progress", True),
        ("12 pending requests", False),
        ("slow down", False),
        ("", False),
        (None, False),
    ],
)
def test_texts_of_another_update(text: str | None, at_work: bool) -> None:
    """A flush counts too: it stands between two updates."""
    assert another_is_at_work(text) is at_work


def test_no_weights_here_either_is_the_checkpoints_fault(tmp_path: Path) -> None:
    """The server finds no weights, and there are none: the mount is not to blame."""

    class Empty(SavableModel):
        def save_pretrained(self, path: str, **named: Any) -> None:
            os.makedirs(path, exist_ok=True)

    body = b'{"success":false,"message":"Failed to get weights iterator: Cannot find any model weights with `/c`."}'
    with Answers((400, body)) as server:
        record = sync(server.url, tmp_path / "c", model=Empty())
    assert record.cause is FailureCause.CHECKPOINT_INVALID
    assert record.checkpoint is not None
    assert record.checkpoint.fault == "no weight files"


def test_proxy_answers_for_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 503 page of a proxy that the environment names for this URL."""
    with Answers((503, HTML)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        record = sync("http://10.255.0.1:30000", tmp_path / "c")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        direct = sync(proxy.url, tmp_path / "c")
    assert (record.cause, direct.cause) == (FailureCause.PROXY_INTERCEPTED, FailureCause.SERVER_ERROR)


@pytest.mark.parametrize(
    ("proxy", "cause"),
    [("http://127.0.0.1:1", FailureCause.PROXY_INTERCEPTED), ("://nonsense", FailureCause.PROXY_INTERCEPTED)],
)
def test_proxy_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str, cause: FailureCause
) -> None:
    """A refused or malformed proxy is not the server's fault."""
    monkeypatch.setenv("HTTP_PROXY", proxy)
    assert sync("http://10.255.0.1:30000", tmp_path / "c").cause is cause


@pytest.mark.parametrize("url", ["10.0.0.7:30000", "localhost:30000/x", "http://", "htp://10.0.0.7"])
def test_malformed_url_is_protocol(tmp_path: Path, url: str) -> None:
    """What requests refuses to send at all."""
    assert sync(url, tmp_path / "c").cause is FailureCause.PROTOCOL


def test_peer_made_no_request() -> None:
    """A rank that only hears of it; and a coordinator whose collective broke after a good request."""
    assert classify(Evidence(coordinator=False, raised=RuntimeError("SGLang update_policy failed")))[0] is (
        FailureCause.PEER
    )
    good = Recorded(exchange=Exchange(method="POST", url="u", status_code=200), is_sglang=True, success=True)
    broken = RuntimeError("[gloo] Connection closed by peer")
    evidence = Evidence(coordinator=True, recorded=good, errors=((Phase.BROADCAST, broken),), raised=broken)
    assert classify(evidence) == (FailureCause.PEER, Applied.YES)


def test_nothing_known_is_unknown() -> None:
    """An engine that raises out of nowhere."""
    assert classify(Evidence(coordinator=True, raised=ValueError("odd"))) == (FailureCause.UNKNOWN, Applied.UNKNOWN)


def test_walk_reaches_everything_once() -> None:
    """Causes, contexts, reasons, args and group members, also in a circle."""
    inner = OSError(111, "refused")
    middle = RuntimeError(inner)
    outer = ValueError("x")
    outer.__cause__, inner.__context__ = middle, outer
    assert set(walk(outer)) == {inner, middle, outer}
    assert first_errno(outer) == 111


def _chain_links(count: int) -> Iterator[BaseException]:
    before: BaseException | None = None
    for _ in range(count):
        error = ValueError("x")
        error.__cause__ = before
        before = error
        yield error


def test_walk_is_bounded() -> None:
    """A chain of thousands does not cost a sync."""
    *_, last = _chain_links(5000)
    assert len(list(walk(last))) == 100
