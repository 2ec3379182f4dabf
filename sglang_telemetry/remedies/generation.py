"""Pauses the generation of one server around an update, flushes its cache, and continues it.

The routes want a body, ``{}`` is enough; they may be called again and again (SGLang 0.5.23, measured).
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sglang_telemetry.names import Action, Outcome
from sglang_telemetry.remedies.client import Client
from sglang_telemetry.text import clean, said_by

CONTROL_SECONDS = 60.0
"""Longest wait for the answer to one of these requests; what is left of the deadline bounds it further."""
RELEASE_SECONDS = 5.0
"""A release is tried for so long even when nothing is left: a server that stays paused is worse than a late sync."""
_ASK_SECONDS = 2.0
"""What the question whether a server is gone may take."""
_ANSWER_SECONDS = 1.0
"""Of a flush that waits: for the answer, after the server itself has waited."""


class Told(Protocol):
    """Who is told what was done."""

    def __call__(self, action: Action, outcome: Outcome, began_ns: int, detail: str = "") -> None:
        """Never raises."""


class Generation:
    """That of the server which an update goes to.

    Args:
        client: Sends to it.
        offset_ns: Nanoseconds since the start of the sync.
        told: Told of each action.
    """

    def __init__(self, client: Client, offset_ns: Callable[[], int], told: Told) -> None:
        self._client, self._offset_ns, self._told = client, offset_ns, told
        self._pid = os.getpid()
        self._paused = False

    @property
    def paused(self) -> bool:
        """It was paused, or may have been, by this process: a child that is forked meanwhile ends nothing."""
        return self._paused and os.getpid() == self._pid

    def pause(self, mode: str, seconds: float) -> None:
        """Pause it.

        Args:
            mode: SGLang's: ``retract`` or ``abort``.
            seconds: Longest duration.
        """
        before, self._paused = self._paused, True  # from now on, whatever stops us: the request may come through
        status = self._post(Action.PAUSE, "/pause_generation", {"mode": mode}, mode, seconds=seconds)
        if status is not None and 400 <= status < 500:  # a gateway's 504 says nothing of the server behind it
            self._paused = before

    def flush(self, seconds: float, *, wait: bool) -> bool:
        """Flush its cache.

        Args:
            seconds: Longest duration.
            wait: Until running requests are through.
        """
        waits = int(max(0.0, seconds - _ANSWER_SECONDS))
        route = f"/flush_cache?timeout={waits}" if wait else "/flush_cache"
        return self._post(Action.FLUSH, route, None, "", seconds=seconds) == 200

    def release(self, seconds: float) -> None:
        """Continue it, if it was paused; once more where Ctrl-C comes between.

        Args:
            seconds: Longest duration.
        """
        try:
            self._released(seconds)
        except BaseException:  # Ctrl-C: it is let through, but not before the server goes on
            self._released(RELEASE_SECONDS)
            raise

    def _released(self, seconds: float) -> None:
        if not self.paused:
            return
        began, client = self._offset_ns(), self._client
        try:
            status, text = client.post("/continue_generation", {}, seconds)
            done = status == 200
            detail = "" if done else f"{status} {text}"
        except Exception as error:
            done, detail = False, said_by(error)
            spent = (self._offset_ns() - began) / 1e9
            # One that has used up its time hangs, and may come back as it was: asking again would only take longer.
            if spent + _ASK_SECONDS <= seconds and client.can_ask and client.status("/ready") is None:
                text = "the server is gone: it comes back without a pause"
                self._told(Action.RELEASE, Outcome.SKIPPED, began, text)
                return
        self._told(Action.RELEASE, Outcome.DONE if done else Outcome.FAILED, began, clean(detail, limit=500))

    def _post(
        self, action: Action, route: str, body: Mapping[str, Any] | None, detail: str, *, seconds: float
    ) -> int | None:
        """Status of the answer; None when there was none: the server may have done it."""
        began = self._offset_ns()
        try:
            status, text = self._client.post(route, body, seconds)
        except Exception as error:
            self._told(action, Outcome.FAILED, began, said_by(error))
            return None
        done = status == 200
        said = detail if done else clean(f"{status} {text}", limit=500)
        self._told(action, Outcome.DONE if done else Outcome.FAILED, began, said)
        return status
