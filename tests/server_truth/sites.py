"""Servers that are not SGLang, or not as it should be: answers from a table, and raw bytes without an end."""

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.harness.answers import give
from tests.harness.processes import tool

Routes = Mapping[str, tuple[int, bytes] | Callable[[BaseHTTPRequestHandler], None]]


class Site:
    """A server whose requests are answered from a table; what is not in it is 404.

    Args:
        routes: Status and body of each path, or a function that gets the handler.
        tls: With a certificate, it speaks HTTPS.
        server: What it calls itself.
    """

    def __init__(self, routes: Routes, tls: ssl.SSLContext | None = None, server: str = "uvicorn") -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.methods: list[str] = []
        self.authorizations: list[str | None] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                site.asked.append((self.path, self.headers.get("User-Agent")))
                site.methods.append(self.command)
                site.authorizations.append(self.headers.get("Authorization"))
                answer = routes.get(self.path.partition("?")[0], (404, b'{"detail":"Not Found"}'))
                if callable(answer):
                    answer(self)
                else:
                    give(self, answer)

            do_POST = do_OPTIONS = do_GET

            def version_string(self) -> str:
                return server

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a handshake that fails is no news
        if tls is not None:
            # Each connection's own thread shakes hands, when it first reads.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        scheme = "https" if tls is not None else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [path for path, _ in self.asked]

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def site(routes: Routes, *, tls: ssl.SSLContext | None = None, server: str = "uvicorn") -> Iterator[Site]:
    """A server with these routes."""
    made = Site(routes, tls, server)
    try:
        yield made
    finally:
        made.close()


def never(handler: BaseHTTPRequestHandler) -> None:
    """An answer that does not come; it ends when the client hangs up."""
    handler.rfile.read(1)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate of its own making, which is its own authority.

    Args:
        file: What a client would trust.
        context: What a server needs.
    """

    file: Path
    context: ssl.SSLContext


def make_certificate(folder: Path, *, names: str = "IP:127.0.0.1,DNS:localhost") -> Certificate:
    """Make one for these names."""
    folder.mkdir(exist_ok=True)
    key, file = folder / "key.pem", folder / "cert.pem"
    command = [tool("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=test", "-addext", f"subjectAltName={names}"]
    subprocess.run([*command, "-keyout", key, "-out", file], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return Certificate(file=file, context=context)
