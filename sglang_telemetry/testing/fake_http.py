"""The sockets of ``FakeSGLang``: one life of it, from listening to connections that are really closed."""

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from sglang_telemetry.testing.fake_engine import Closed, Engine
from sglang_telemetry.testing.fake_faults import Answer
from sglang_telemetry.testing.fake_routes import Died, Routes
from sglang_telemetry.testing.fake_state import Request, Settings

KEEP_ALIVE_SECONDS = 5.0
"""Idle connections are closed after that time (source of SGLang 0.5.23: SGLANG_TIMEOUT_KEEP_ALIVE)."""


class Life:
    """One life of the server: a listening socket and the threads of its connections.

    Args:
        settings: How it was started.
        port: Where to listen; 0 for a free port.
        on_death: Called with this life, in the thread of the request that ended it.
    """

    def __init__(self, settings: Settings, port: int, on_death: "Callable[[Life], None]") -> None:
        self.engine = Engine(settings.model_path)
        self.settings = settings
        self.routes = Routes(self.engine, settings)
        self.on_death = on_death
        self._http = _Http(self, port)
        self.port = self._http.server_port
        self._acceptor = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, name="fake-sglang", daemon=True
        )
        self._acceptor.start()

    def stop_listening(self) -> None:
        """From now on connections are refused."""
        self._http.shutdown()
        self._http.server_close()

    def end(self) -> None:
        """Refuse connections, close the open ones, wake those who wait, and wait for their threads."""
        self.stop_listening()
        self.engine.close()
        self._acceptor.join()
        self._http.hang_up()


class _Http(HTTPServer):
    """Knows its connections, so that it can close them."""

    request_queue_size = 128

    def __init__(self, life: Life, port: int) -> None:
        self.life = life
        self._open: dict[socket.socket, threading.Thread] = {}
        self._guard = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking the name service for the machine's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        thread = threading.Thread(target=self._serve, args=(request, client_address), name="fake-sglang", daemon=True)
        with self._guard:
            self._open[request] = thread
        thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""

    def hang_up(self) -> None:
        """Close all connections and wait for their threads."""
        with self._guard:
            connections = dict(self._open)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the client was first
        for thread in connections.values():
            if thread is not threading.current_thread():
                thread.join(timeout=5.0)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except (OSError, ValueError):
            pass  # the client went away in the middle
        finally:
            self.shutdown_request(request)
            with self._guard:
                self._open.pop(request, None)


class _Handler(BaseHTTPRequestHandler):
    """Reads a request, asks the routes, writes the answer."""

    protocol_version = "HTTP/1.1"
    timeout = KEEP_ALIVE_SECONDS
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Http

    def version_string(self) -> str:
        """What SGLang's HTTP server calls itself."""
        return "uvicorn"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        life = self.server.life
        credentials = self.headers.get("Authorization", "")
        headers = {name.lower(): value for name, value in self.headers.items()}
        if credentials:
            headers["authorization"] = f"{credentials.split(' ')[0]} ***" if " " in credentials else "***"
        request = Request(method=self.command, path=self.path, headers=headers, body=body)
        life.settings.requests.append(request)
        try:
            answer = life.routes.answer(request, credentials)
        except Closed:
            answer = None
        except Died as death:
            life.stop_listening()
            last_words = death.args[0]
            if last_words is not None:
                self._write(last_words)
            self.close_connection = True
            life.on_death(life)
            return
        if answer is None:
            self.close_connection = True
            return
        self._write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do_OPTIONS = _any

    def _write(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        if answer.content_type is not None:
            self.send_header("Content-Type", answer.content_type)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self.wfile.flush()
