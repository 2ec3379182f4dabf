"""One POST to a route that changes something, for whoever was told to; the exporter never calls this."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from sglang_telemetry.server_truth.asking import FAILED, Asking, fields_of, text_of
from sglang_telemetry.server_truth.keys import NO_KEYS, Keys
from sglang_telemetry.server_truth.no_answer import why
from sglang_telemetry.text import clean

POST_SECONDS = 60.0
_MAX_ANSWER = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What came of it.

    Args:
        status: None when there was no answer.
        success: What the body says of itself; None where it says nothing.
        message: Of the body, cleaned.
        text: The body, cleaned and cut.
        error: Why there was no answer, as a line for the user.
        seconds: How long it took.
    """

    status: int | None = None
    success: bool | None = None
    message: str | None = None
    text: str = field(default="", repr=False)
    error: str | None = None
    seconds: float = field(default=0.0, compare=False)


def post(
    url: str,
    path: str,
    body: Mapping[str, Any],
    *,
    keys: Keys = NO_KEYS,
    seconds: float = POST_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Posted:
    """Send a body to a route once.

    A time-out does not undo anything: SGLang 0.5.23 applies an update also when nobody waits for its answer (measured).
    No answer at all from ``/update_weights_from_disk`` is what a broken checkpoint gives: the server has died of it.

    Args:
        url: Where the server is.
        path: The route, such as ``/update_weights_from_disk`` or ``/continue_generation``.
        body: Sent as JSON; SGLang wants one on every route, ``{}`` is enough (SGLang 0.5.23, measured).
        keys: What the server wants to be shown.
        seconds: Longest duration.
        clock: Monotonic seconds.
    """
    began = clock()
    asking = Asking(url, keys=keys, seconds=seconds, clock=clock)
    try:
        response = asking(path, _MAX_ANSWER, method="POST", body=orjson.dumps(dict(body)))
    except FAILED as error:
        return Posted(error=why(error, url).line, seconds=clock() - began)
    fields = fields_of(response.body)
    success = fields.get("success")
    return Posted(
        status=response.status,
        success=success if isinstance(success, bool) else None,
        message=text_of(fields, "message") or text_of(fields, "error"),
        text=clean(response.body[: 1 << 15].decode("utf-8", "replace")),
        seconds=clock() - began,
    )
