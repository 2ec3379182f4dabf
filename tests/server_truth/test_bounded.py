"""One request: bounded whatever the server does, nothing of a key where it does not belong, and what is read of it."""

import json
import socket
import ssl
import time
from collections.abc import Callable
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from sglang_telemetry.server_truth.bounded import Response, request
from tests.server_truth.sites import Certificate, body, make_certificate, site, talker

KEY = "k-3f9a-do-not-show"
SHORT = 0.4


def within(seconds: float = 10.0) -> Callable[[], float]:
    """What is left of that time."""
    deadline = time.monotonic() + seconds
    return lambda: deadline - time.monotonic()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """For the loopback, of nobody's authority."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_post() -> None:
    """Method, body, its type and length, more headers and the key arrive; the answer is status, body, date and name."""
    seen: dict[str, object] = {}

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.update(dict(handler.headers.items()))
        handler.send_response_only(201)
        handler.send_header("Date", "Thu, 03 Dec 2026 02:13:30 GMT")
        handler.send_header("Server", "uvicorn")
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"{}")

    sent = json.dumps({"action": "checksum"}).encode()
    with site({"/x": answer}) as server:
        found = request(server.url, "/x?a=1", limit=10, left=within(), method="POST", body=sent, key=KEY)
        assert (server.methods, server.paths) == (["POST"], ["/x?a=1"])
    assert found == Response(status=201, body=b"{}", date=1796264010.0, server="uvicorn")
    wanted = {"Content-Type": "application/json", "Content-Length": str(len(sent))}
    assert {name: seen.get(name) for name in wanted} == wanted
    assert seen["Authorization"] == f"Bearer {KEY}"
    assert "{}" not in repr(found)


def test_a_plain_get() -> None:
    """Status and body, no key, no body."""
    with site({"/x": (503, b"later")}) as server:
        found = request(server.url, "/x", limit=10, left=within())
        assert (found.status, found.body) == (503, b"later")
        assert (server.methods, server.authorizations) == (["GET"], [None])


@pytest.mark.parametrize(
    ("date", "seconds"),
    [
        (b"Thu, 03 Dec 2026 02:13:30 GMT", 1796264010.0),
        (b"yesterday", None),
        (b"", None),
        (b"Thu, 03 Dec 99999999999 02:13:30 GMT", None),
        (b", , , ,", None),
    ],
)
def test_date(date: bytes, seconds: float | None) -> None:
    """Unix seconds, or nothing where it is no date."""
    with talker(b"HTTP/1.1 200 OK\r\nDate: " + date + b"\r\nContent-Length: 0\r\n\r\n") as url:
        assert request(url, "/", limit=1, left=within()).date == seconds


def test_no_date_and_no_name() -> None:
    """Both are optional."""
    with talker(b"HTTP/1.1 200 OK\r\n\r\n") as url:
        assert request(url, "/", limit=1, left=within()) == Response(status=200)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "forever", "every"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.01),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y", 0.02),
        (CHUNKED, b"1\r\nx\r\n", 0.02),
        (CHUNKED, b"0" * 10, 0.02),
        (CHUNKED + b"0\r\n", b"X: y\r\n", 0.001),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"x", 0.02),
    ],
    ids=["headers", "one header", "chunks", "a chunk's size", "trailers", "a body"],
)
def test_what_drips_and_never_ends(head: bytes, forever: bytes, every: float) -> None:
    """Each read succeeds, and the time is over all the same."""
    with talker(head, every=every, forever=forever) as url:
        with pytest.raises((OSError, HTTPException)):
            request(url, "/", limit=1 << 20, left=within(SHORT), method="POST", body=b"{}", key=KEY)


@pytest.mark.parametrize(
    ("head", "forever"),
    [
        (CHUNKED, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n", b"x" * 65536),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
    ],
    ids=["chunked", "10 GB", "until it is closed"],
)
def test_huge_answers_are_read_up_to_the_limit(head: bytes, forever: bytes) -> None:
    """And then not believed."""
    with talker(head, forever=forever) as url:
        with pytest.raises(ValueError, match="more than 100000 bytes"):
            request(url, "/", limit=100_000, left=within(), method="POST", body=b"{}")


def test_headers_without_end() -> None:
    """As fast as they can be sent."""
    with talker(b"HTTP/1.1 200 OK\r\n", forever=b"X: y\r\n" * 1000) as url:
        with pytest.raises(HTTPException):
            request(url, "/", limit=10, left=within())


def test_server_that_does_not_read() -> None:
    """A body that nobody takes fills the buffers, and the time is over."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        with pytest.raises(TimeoutError):
            request(
                f"http://127.0.0.1:{hole.getsockname()[1]}",
                "/",
                limit=10,
                left=within(SHORT),
                method="POST",
                body=b"x" * (64 << 20),
            )


def test_no_time_left() -> None:
    """Nothing is sent any more."""
    with site({}) as server:
        with pytest.raises(TimeoutError):
            request(server.url, "/", limit=10, left=lambda: 0.0, key=KEY)
        assert server.paths == []


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY}\r\nX-Evil: 1", f"a\0{KEY}", f"{KEY}é", f" {KEY}", ""])
def test_key_that_cannot_be_sent(key: str) -> None:
    """Said before anything is sent, and without the key."""
    with site({}) as server:
        with pytest.raises(ValueError, match="the key") as caught:
            request(server.url, "/", limit=10, left=within(), key=key)
        assert KEY not in str(caught.value)
        assert server.paths == []


def test_a_method_that_would_become_another_line() -> None:
    """It brings no header of its own."""
    with site({}) as server:
        with pytest.raises(ValueError, match="method"):
            request(server.url, "/", limit=10, left=within(), method="GET /x HTTP/1.1\r\nX:")
        assert server.paths == []


def test_redirect_does_not_take_the_key_along() -> None:
    """Its status is the answer."""
    with site({}) as other:

        def elsewhere(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(307)
            handler.send_header("Location", other.url)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        with site({"/x": elsewhere}) as server:
            assert request(server.url, "/x", limit=10, left=within(), method="POST", body=b"{}", key=KEY).status == 307
        assert other.paths == []


def test_proxies_do_not_see_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's proxy variables apply to the trainer, not to this."""
    with site({}) as proxy, site({"/x": (200, b"")}) as server:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert request(server.url, "/x", limit=10, left=within(), key=KEY).status == 200
        assert proxy.paths == []


def test_key_over_tls_that_is_verified(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent where ``SSL_CERT_FILE`` names the authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
    with site({"/x": body(a=1)}, tls=certificate.context) as server:
        assert request(server.url, "/x", limit=10, left=within(), key=KEY).status == 200
        assert server.authorizations == [f"Bearer {KEY}"]


def test_key_over_tls_that_is_not_trusted(certificate: Certificate) -> None:
    """The handshake fails, and the server has read no request at all; without a key it is asked."""
    with site({"/x": body(a=1)}, tls=certificate.context) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            request(server.url, "/x", limit=10, left=within(), key=KEY)
        assert server.paths == []
        assert request(server.url, "/x", limit=10, left=within()).status == 200
        assert server.authorizations == [None]


def test_key_over_tls_of_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An authority that is trusted says who that is: somebody else."""
    other = make_certificate(tmp_path, names="DNS:other.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(other.file))
    with site({"/x": body(a=1)}, tls=other.context) as server:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid"):
            request(server.url, "/x", limit=10, left=within(), key=KEY)
        assert server.paths == []


def test_handshake_that_never_ends() -> None:
    """A server that takes the connection and says nothing of TLS."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        with pytest.raises(TimeoutError):
            request(f"https://127.0.0.1:{hole.getsockname()[1]}", "/", limit=10, left=within(SHORT), key=KEY)


def test_chunk_of_a_negative_length() -> None:
    """``http.client`` would read all that comes, whatever was asked for."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"
    with talker(head, forever=b"x" * 65536) as url, pytest.raises(ValueError, match="no end"):
        request(url, "/x", limit=1000, left=lambda: 30.0)
