"""Questions to one server, with the key that each route wants, until the time is over; and how answers are read."""

import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

import orjson

from sglang_telemetry.server_truth.bounded import Response, request
from sglang_telemetry.server_truth.keys import NO_KEYS, Keys
from sglang_telemetry.text import clean

MAX_BODY = 64 << 10
MAX_VALUE = 4096
FAILED = (OSError, HTTPException, ValueError)
"""What a request raises that brings no answer."""


class Asking:
    """Asks one server, with the keys that its routes want, until the time is over.

    Args:
        url: Where it is.
        keys: What it wants to be shown.
        seconds: Longest duration of all questions together.
        clock: Monotonic seconds.
        at_most: Longest duration of one question; of all unless given.
    """

    def __init__(
        self,
        url: str,
        *,
        keys: Keys = NO_KEYS,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        at_most: float | None = None,
    ) -> None:
        self.url, self.keys, self.clock = url, keys, clock
        self.error: Exception | None = None
        """Why :meth:`json` got no answer the last time that it got none."""
        self._deadline = clock() + seconds
        self._at_most = seconds if at_most is None else at_most

    def __call__(
        self, path: str, limit: int = MAX_BODY, *, method: str = "GET", body: bytes | None = None, key: bool = True
    ) -> Response:
        """Ask once; ``key`` false shows none. It raises what :func:`~.bounded.request` does."""
        deadline = min(self._deadline, self.clock() + self._at_most)
        return request(
            self.url,
            path,
            limit=limit,
            left=lambda: deadline - self.clock(),
            method=method,
            body=body,
            key=self.keys.of_route(path) if key else None,
        )

    def json(
        self, path: str, limit: int = MAX_BODY, *, method: str = "GET", body: bytes | None = None, key: bool = True
    ) -> tuple[int | None, dict[str, Any]]:
        """Status and fields of an answer; no fields where it is no JSON object, no status where there is no answer."""
        try:
            response = self(path, limit, method=method, body=body, key=key)
        except FAILED as error:
            self.error = error
            return None, {}
        return response.status, fields_of(response.body)


def fields_of(body: bytes) -> dict[str, Any]:
    """The fields of a JSON object; none where it is something else."""
    try:
        fields = orjson.loads(body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def text_of(fields: dict[str, Any], name: str) -> str | None:
    """A text of an answer, cleaned."""
    value = fields.get(name)
    return clean(value, limit=MAX_VALUE) if isinstance(value, str) else None
