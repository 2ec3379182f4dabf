"""A recording client in the place of an engine's own, for as long as a call of the engine lasts."""

import threading
from typing import Any

from sglang_telemetry.instrument.http import Listener, RecordingHttp
from sglang_telemetry.instrument.reading import attribute
from sglang_telemetry.instrument.seams import Restore, swap


class Lent:
    """Puts a recording client in the place of ``engine.http``, as long as any call of the engine needs it.

    Args:
        engine: Where there is no ``http`` attribute that sends, nothing is done.
        listener: Told of the requests.
    """

    def __init__(self, engine: Any, listener: Listener) -> None:
        self._engine, self._listener = engine, listener
        self._lock = threading.Lock()
        self._lent: list[tuple[RecordingHttp, Restore]] = []
        self._users = 0

    def lend(self) -> Restore:
        """Put it there; the caller gives it back with what is returned."""
        with self._lock:
            self._users += 1
            http = attribute(self._engine, "http")
            # The engine may have made itself another client since.
            if all(http is not recording for recording, _ in self._lent) and self._sends(http):
                recording = RecordingHttp(http, self._listener)
                self._lent.append((recording, swap(vars(self._engine), "http", recording)))
        return self._give_back

    def _sends(self, http: Any) -> bool:
        is_client = callable(attribute(http, "post")) or callable(attribute(http, "request"))
        return is_client and not isinstance(getattr(type(self._engine), "http", None), property)

    def _give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for _, restore in reversed(self._lent):
                restore()
            self._lent.clear()
