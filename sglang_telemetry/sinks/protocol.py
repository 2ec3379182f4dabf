"""What a sink is."""

from typing import Protocol

from sglang_telemetry.events import Event
from sglang_telemetry.names import Component


class Sink(Protocol):
    """Takes events. It may raise: whoever calls it through :class:`~sglang_telemetry.sinks.guard.Fanout` is safe."""

    component: Component

    def emit(self, event: Event) -> bool | None:
        """Take one event; it is called on the trainer's thread and should return at once.

        Returns:
            For a log: False when nobody will read of it, because the host's configuration filters it out.
        """

    def close(self) -> None:
        """Let go of files and threads; nothing is emitted afterwards."""
