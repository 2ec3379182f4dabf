"""A server that gives the answers it is told to, for what no real SGLang can be made to say on demand."""

import contextlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answers:
    """Answers POSTs from a list; a callable in it gets the handler and does as it likes.

    A GET, such as an exporter's that looks whether the server is up, is answered 404 and is not noted.

    Args:
        answers: Status and body a request, in order; the last one is repeated.
        host: Address to bind.
    """

    def __init__(
        self, *answers: tuple[int, bytes] | Callable[[BaseHTTPRequestHandler], None], host: str = "127.0.0.1"
    ) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        queue = list(answers)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests.append((self.path, dict(self.headers), body))
                answer = queue.pop(0) if len(queue) > 1 else queue[0]
                if callable(answer):
                    answer(self)
                    return
                give(self, answer)

            def do_GET(self) -> None:
                give(self, (404, b'{"detail":"Not Found"}'))

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.server = f"{host}:{self._server.server_port}"
        self.url = f"http://{self.server}"

    def close(self) -> None:
        """Stop; later connections are refused."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Held:
    """An answer that the server holds back until it is told to give it, or the block is left.

    Args:
        answer: Status and body.
    """

    def __init__(self, answer: tuple[int, bytes]) -> None:
        self.asked = threading.Event()
        self._answer = answer
        self._released = threading.Event()

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        self.asked.set()
        self._released.wait(60)
        with contextlib.suppress(OSError):  # whoever asked may have been killed meanwhile
            give(handler, self._answer)

    def release(self) -> None:
        """Give the answer now."""
        self._released.set()

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def give(handler: BaseHTTPRequestHandler, answer: tuple[int, bytes]) -> None:
    """Answer with this status and body."""
    status, content = answer
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def close_without_answer(handler: BaseHTTPRequestHandler) -> None:
    """Hang up after the request was read."""
    handler.close_connection = True


SUCCESS = (200, b'{"success":true,"message":"Succeeded to update model weights.","num_paused_requests":0}')
BUSY = (
    400,
    b'{"success":false,"message":"Weights were updated, but the cache was not flushed because requests are still '
    b'running or queued. Retract or finish them, then call /flush_cache.","num_paused_requests":0}',
)
