"""The phone: a webhook that remembers what it was sent, and when."""

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.processes import wait_until


@dataclass(frozen=True, slots=True)
class Page:
    """One alert, when it was first sent with that status, and the Unix time at which it came."""

    status: str
    labels: dict[str, str]
    annotations: dict[str, str]
    at: float


class Webhook:
    """A receiver of Alertmanager's notifications on a free port.

    A notification has the whole group, also what was sent before: ``pages`` has each alert once.
    """

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self.notifications = 0
        sent: set[tuple[str, str, str]] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                at = time.time()
                outer.notifications += 1
                for alert in body["alerts"]:
                    what = (alert["status"], alert["fingerprint"], alert["startsAt"])
                    if what not in sent:
                        sent.add(what)
                        outer.pages.append(Page(alert["status"], alert["labels"], alert["annotations"], at))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def of(self, status: str, **labels: str) -> list[Page]:
        """Pages with that status and these labels."""
        return [p for p in self.pages if p.status == status and labels.items() <= p.labels.items()]

    def wait_for(self, status: str, timeout: float = 60.0, **labels: str) -> Page:
        """The first page with that status and these labels, when it comes."""
        wait_until(lambda: self.of(status, **labels), f"a page: {status} {labels}", timeout)
        return self.of(status, **labels)[0]

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> "Webhook":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
