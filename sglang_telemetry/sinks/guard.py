"""Hands each event to each sink, and keeps the errors of one from the others and from the trainer."""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from sglang_telemetry.events import Event, Identity, TelemetryError
from sglang_telemetry.names import Component
from sglang_telemetry.sinks.protocol import Sink
from sglang_telemetry.text import clean, said_by

Report = Callable[[int, str], None]
"""How a sink that works on in the background tells of errors later: how many, and what happened."""


class Fanout:
    """All sinks as one that never raises.

    An error is told at once to the other sinks, and to the failing sink itself as soon as that takes events again,
    so that the journal counts its own gaps.

    Args:
        sinks: Called in this order.
        now: Unix seconds.
    """

    def __init__(self, sinks: Sequence[Sink], now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._sinks = tuple(sinks)
        self._owed: dict[int, list[TelemetryError]] = {}
        self._lock = threading.RLock()
        self.identity: Identity | None = None
        for sink in self._sinks:
            tell = getattr(sink, "report_to", None)
            if callable(tell):
                tell(functools.partial(self._late, getattr(sink, "component", Component.SINK)))

    def emit(self, event: Event) -> bool:
        """Give the event to every sink.

        Returns:
            A log took it, so that a person can read it.
        """
        logged = False
        with self._lock:
            for index, sink in enumerate(self._sinks):
                try:
                    read = sink.emit(event)
                except Exception as error:
                    self._tell(index, sink, error)
                    continue
                self._pay(index, sink)
                logged = logged or (getattr(sink, "component", None) is Component.LOG and read is not False)
        return logged

    def error(self, component: Component, error: BaseException) -> None:
        """Something of ours outside the sinks failed: tell all sinks."""
        self.emit(self._error(component, said_by(error)))

    def close(self) -> None:
        """Close every sink."""
        with self._lock:
            for sink in self._sinks:
                try:
                    sink.close()
                except Exception:  # nobody is left to be told
                    continue

    def _error(self, component: Component, text: str, count: int = 1) -> TelemetryError:
        return TelemetryError(identity=self.identity, component=component, text=text, count=count, at=self._now())

    def _late(self, component: Component, count: int, text: str) -> None:
        self.emit(self._error(component, clean(text, limit=500), count))

    def _tell(self, index: int, failing: Sink, error: Exception) -> None:
        component = getattr(failing, "component", Component.SINK)
        told = self._error(component, said_by(error))
        for other, sink in enumerate(self._sinks):
            if other == index or _try(sink, told) is not None:
                self._owe(other, told)

    def _owe(self, index: int, told: TelemetryError) -> None:
        owed = self._owed.setdefault(index, [])
        same = next((n for n, one in enumerate(owed) if one.component == told.component), None)
        if same is None:
            owed.append(told)
        else:
            owed[same] = replace(told, count=owed[same].count + told.count)

    def _pay(self, index: int, sink: Sink) -> None:
        for told in self._owed.pop(index, ()):
            if _try(sink, told) is not None:
                self._owe(index, told)


def _try(sink: Sink, event: Event) -> Exception | None:
    try:
        sink.emit(event)
    except Exception as error:
        return error
    return None
