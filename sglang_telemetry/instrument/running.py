"""Which sync the calls of this context belong to."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from sglang_telemetry.instrument.context import attach
from sglang_telemetry.instrument.seams import Restore
from sglang_telemetry.instrument.sync import Sync

RUNNING: ContextVar[Sync | None] = ContextVar("sglang_telemetry_sync", default=None)


def enter(sync: Sync) -> Restore:
    """Make a sync the one that calls in this context belong to, until the returned function is called."""
    token = RUNNING.set(sync)
    detach = attach(lambda: sync.context)

    def leave() -> None:
        if detach is not None:
            detach()
        with contextlib.suppress(ValueError):  # a generator that was finished in another context
            RUNNING.reset(token)

    return leave


@contextlib.contextmanager
def running(sync: Sync) -> Iterator[None]:
    """The same for a block."""
    leave = enter(sync)
    try:
        yield
    finally:
        leave()
