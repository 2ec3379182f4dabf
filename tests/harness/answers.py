"""A server that gives the answers it is told to, for what no real SGLang can be made to say on demand."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answers:
    """Answers POSTs from a list; a callable in it gets the handler and does as it likes.

    Args:
        answers: Status and body a request, in order; the last one is repeated.
    """

    def __init__(self, *answers: tuple[int, bytes] | Callable[[BaseHTTPRequestHandler], None]) -> None:
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
                status, content = answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.server = f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop; later connections are refused."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def close_without_answer(handler: BaseHTTPRequestHandler) -> None:
    """Hang up after the request was read."""
    handler.close_connection = True


SUCCESS = (200, b'{"success":true,"message":"Succeeded to update model weights.","num_paused_requests":0}')
BUSY = (
    400,
    b'{"success":false,"message":"Weights were updated, but the cache was not flushed because requests are still '
    b'running or queued. Retract or finish them, then call /flush_cache.","num_paused_requests":0}',
)
