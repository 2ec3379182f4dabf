"""One bounded look at one server: a few GETs that cost it nothing, and of each answer only what is named here.

The one decision: what is asked must cost the server nothing and answer at once. ``/health`` is never asked: it
generates a token, takes 1 s, and blocks for 20 s while paused (SGLang 0.5.23, measured).
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from typing import Any

import orjson

from sglang_telemetry.server_truth.bounded import get as bounded_get
from sglang_telemetry.text import clean

LOOK_SECONDS = 2.0
"""Longest look, but for a name service that does not answer, which cannot be interrupted."""
MAX_BODY = 64 << 10
MAX_SERVER_INFO = 1 << 20
"""``/server_info`` had 37 KB (SGLang 0.5.23, measured)."""
_MAX_VALUE = 4096
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,40}")
_FAILED = (OSError, HTTPException, ValueError)


class Reach(StrEnum):
    """How far a look came: an answer over HTTP, a refused connection, or neither."""

    ANSWERED = "answered"
    REFUSED = "refused"
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What ``/model_info`` says of the weights, cleaned.

    Args:
        model_path: The start model, or what the last update named (SGLang 0.5.23, measured).
        weight_version: ``default`` until somebody sets one.
        tokenizer_path: The start model unless given at the start; no update changes it (SGLang 0.5.23, measured).
    """

    model_path: str
    weight_version: str | None = None
    tokenizer_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look found; None is unknown or not asked.

    Args:
        ready: Of ``/ready``: 503 while paused (SGLang 0.5.23, measured); None where it says something else.
        version: SGLang's own, in a closed form that can be a label.
    """

    reach: Reach
    ready: bool | None = None
    info: ModelInfo | None = None
    version: str | None = None


def look(
    url: str,
    *,
    info: bool = True,
    version: bool = False,
    seconds: float = LOOK_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Look:
    """Look at a server once.

    Args:
        url: Where it is, such as ``http://10.0.0.7:30000``, with the path that its routes stand below.
        info: Also ask ``/model_info``.
        version: Also ask for SGLang's version.
        seconds: Longest duration of all of it.
        clock: Monotonic seconds.
    """
    deadline = clock() + seconds

    def get(path: str, limit: int = MAX_BODY) -> tuple[int, bytes]:
        return bounded_get(url, path, limit=limit, left=lambda: deadline - clock())

    try:
        status, _ = get("/ready", 0)
    except ConnectionRefusedError:
        return Look(reach=Reach.REFUSED)
    except _FAILED:
        return Look(reach=Reach.SILENT)
    return Look(
        reach=Reach.ANSWERED,
        ready={200: True, 503: False}.get(status),
        info=_model_info(get) if info else None,
        version=_version(get) if version else None,
    )


_Get = Callable[..., tuple[int, bytes]]


def _model_info(get: _Get) -> ModelInfo | None:
    """Answers at once, also during a load; before ``/model_info`` there was ``/get_model_info``, the same body."""
    for path in ("/model_info", "/get_model_info"):
        status, fields = _json(get, path)
        if status == 404:
            continue
        model_path = _text(fields, "model_path")
        if status != 200 or model_path is None:
            return None
        return ModelInfo(
            model_path=model_path,
            weight_version=_text(fields, "weight_version"),
            tokenizer_path=_text(fields, "tokenizer_path"),
        )
    return None


def _version(get: _Get) -> str | None:
    """``/v1/loads`` is read from shared memory; ``/server_info`` asks the scheduler, and may hold keys: one is read."""
    for path, limit in (
        ("/v1/loads?include=core", MAX_BODY),
        ("/server_info", MAX_SERVER_INFO),
        ("/get_server_info", MAX_SERVER_INFO),
    ):
        status, fields = _json(get, path, limit)
        said = _text(fields, "version") if status == 200 else None
        match = _VERSION.match(said) if said is not None else None
        if match is not None:
            return match[0]
        if status == 401:
            return None
    return None


def _json(get: _Get, path: str, limit: int = MAX_BODY) -> tuple[int | None, dict[str, Any]]:
    """Status and fields of an answer; no fields where it is no JSON object, no status where there is no answer."""
    try:
        status, body = get(path, limit)
    except _FAILED:
        return None, {}
    try:
        fields = orjson.loads(body)
    except ValueError:
        return status, {}
    return status, fields if isinstance(fields, dict) else {}


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return clean(value, limit=_MAX_VALUE) if isinstance(value, str) else None
