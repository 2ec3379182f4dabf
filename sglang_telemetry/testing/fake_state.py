"""What ``FakeSGLang`` is made with, what it keeps over restarts, and what it shows of itself to tests."""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_telemetry.testing.fake_faults import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request that the server got.

    Args:
        method: Such as ``POST``.
        path: With the query.
        headers: Names in lower case; of ``authorization`` only the scheme is kept.
        body: Its bytes.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault in the queue, and how long it waits first, in seconds."""

    fault: Fault
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Settings:
    """What outlives a restart: how the server was started, what it will meet, what it got."""

    model_path: str
    api_key: str | None = field(default=None, repr=False)
    admin_api_key: str | None = field(default=None, repr=False)
    health_seconds: float = 0.0
    death_seconds: float = 0.0
    faults: deque[Injected] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What the server holds, which is not always what it says.

    Args:
        model_path: What ``/model_info`` shows.
        weight_version: What ``/model_info`` shows.
        scheduler_weight_version: What generated text carries.
        checksum: Of the bytes that are loaded.
        updates_applied: Since its start.
        paused: The pause mode, None when it is not paused.
        running: Requests that are being generated.
        pending_faults: What the next updates will meet.
    """

    model_path: str
    weight_version: str
    scheduler_weight_version: str
    checksum: str
    updates_applied: int
    paused: str | None
    running: int
    pending_faults: tuple[Fault, ...]
