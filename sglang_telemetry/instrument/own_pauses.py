"""Which servers an engine has paused itself: those are its own to continue, and no pause of ours goes between.

It is read of the engine's own requests, which are sent as they are.
"""

from collections.abc import Callable
from typing import Any

from sglang_telemetry.instrument.http import Around


class OwnPauses:
    """Those of one engine, by the server."""

    def __init__(self) -> None:
        self._servers: set[str] = set()

    def __contains__(self, server: str) -> bool:
        """Has the engine paused that server, and not continued it since?"""
        return server in self._servers

    def around(self, url: str, server: str) -> Around | None:
        """Sees how a pause ends; None for other requests.

        Args:
            url: Where the engine sends to.
            server: ``host:port`` of that.
        """
        route = url.partition("?")[0].rstrip("/").rpartition("/")[2]
        if route == "continue_generation":
            self._servers.discard(server)  # before it is known how it ends: it shall not stay paused
        if route != "pause_generation":
            return None

        def run(send: Callable[[dict[str, Any]], Any], arguments: dict[str, Any]) -> Any:
            answer = send(arguments)
            status = getattr(answer, "status_code", None)
            if not isinstance(status, int) or 200 <= status < 300:
                self._servers.add(server)
            return answer

        return run
