"""When no answer came: does the server still accept connections? Asked beside the sync, never waited for."""

import socket
import threading

TIMEOUT_SECONDS = 1.0


class Probe:
    """One connection attempt in a thread of its own.

    Args:
        server: ``host:port``.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self.accepting: bool | None = None
        threading.Thread(target=self._try, name="sglang-telemetry-probe", daemon=True).start()

    def _try(self) -> None:
        host, _, port = self._server.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_SECONDS):
                self.accepting = True
        except ConnectionRefusedError:
            self.accepting = False
        except (OSError, ValueError):
            return
