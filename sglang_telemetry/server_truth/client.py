"""One bounded look at one server: a few requests that cost it little, and of each answer only what is named here.

What each costs on SGLang 0.5.23, measured:

- ``/ready``: 1 ms, no key. 503 while paused.
- ``/model_info``: 1 ms, from the process that serves HTTP, whose label may lag behind the weights.
- ``/v1/loads``: 1 ms, 10 ms the first time, from shared memory: the version.
- ``/weights_checker``: 3 to 6 ms for a tiny model; every byte is read, by the scheduler, which generates nothing
  meanwhile. The one proof of which weights are loaded.
- ``/server_info``: 10 ms and 37 KB, by the scheduler, so that it blocks during a load. Its top level is how the server
  was started. It holds both keys as they are, in fields of their own and in ``launch_command``: never pass it on.
- ``/health``: generates a token, takes 1 s, and 20 s while paused, after which the server calls itself unhealthy.

The one decision: what is asked must cost the server nothing and answer at once, so that ``/health`` is never asked; the
checksum, which costs something, only by whoever wants it, and with a time limit of its own.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sglang_telemetry.server_truth.asking import FAILED, MAX_BODY, MAX_VALUE, Asking, text_of
from sglang_telemetry.server_truth.keys import NO_KEYS, Keys
from sglang_telemetry.server_truth.routes import (
    CHECKER,
    LOADS_CORE,
    MODEL_INFO,
    OLD_MODEL_INFO,
    OLD_SERVER_INFO,
    READY,
    SERVER_INFO,
    is_well,
)
from sglang_telemetry.text import clean

LOOK_SECONDS = 2.0
"""Longest look, but for a name service that does not answer, which cannot be interrupted."""
CHECKSUM_SECONDS = 2.0
MAX_SERVER_INFO = 8 << 20
"""``/server_info`` had 37 KB for one replica, ``/openapi.json`` 233 KB (SGLang 0.5.23, measured)."""
MAX_CHECKSUMS = 8 << 20
"""A name and 16 digits for each tensor of each rank: 80 bytes, so that 100,000 of them fit."""
_MAX_ARCHITECTURES = 16
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,40}")
_DIGEST = re.compile(r"[0-9A-Za-z]{8,128}")


class Reach(StrEnum):
    """How far a look came: an answer over HTTP, a refused connection, or neither."""

    ANSWERED = "answered"
    REFUSED = "refused"
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What ``/model_info`` says of the weights, cleaned.

    Two are equal when they name the same weights: what only describes the model is left out of that, since a server of
    another version may not tell it. ``served_model_name`` is not there, for each update changes it.

    Args:
        model_path: The start model, or what the last update named (SGLang 0.5.23, measured).
        weight_version: ``default`` until somebody sets one.
        tokenizer_path: The start model unless given at the start; no update changes it (SGLang 0.5.23, measured).
        architectures: Of the start model's ``config.json``.
        model_type: Of the start model's ``config.json``.
    """

    model_path: str
    weight_version: str | None = None
    tokenizer_path: str | None = None
    architectures: tuple[str, ...] = field(default=(), compare=False)
    model_type: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """Which bytes are loaded; two are equal when the bytes are.

    Args:
        engine: Of all ranks. SGLang 0.5.23 hashes the data-parallel replicas in the order in which they answer
            (source): replicas with different weights can give another one each time, equal ones cannot.
        seconds: How long the answer took; the server generated nothing meanwhile.
        tensors: How many were hashed, over all ranks.
    """

    engine: str
    seconds: float = field(default=0.0, compare=False)
    tensors: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedWith:
    """How the server was started, as far as it matters to whoever asks; None is unknown.

    Args:
        tokenizer_workers: Processes that serve HTTP. Each keeps a label of its own, and an update changes that of the
            one which it came to (source of SGLang 0.5.23).
        memory_saver: Weights can be taken out of memory with ``/release_memory_occupation``. A checksum reads them all
            the same (source of SGLang 0.5.23): on a GPU that may end the server.
    """

    tokenizer_workers: int | None = None
    memory_saver: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look found; None is unknown or not asked.

    Args:
        ready: Of ``/ready``: 503 while paused (SGLang 0.5.23, measured); None where it says something else.
        version: SGLang's own, in a closed form that can be a label.
        started_with: Of ``/server_info``.
        checksum: None also where the answer has none.
        status: Of ``/ready``.
        info_status: Of ``/model_info``: 401 where it wants another ``--api-key``, 404 where it is not SGLang.
        checksum_status: Of ``/weights_checker``: 401 where it wants another key, 404 where SGLang is too old for it,
            None when there was no answer in time. Then the server is still busy with it and the next waits behind it
            (source of SGLang 0.5.23): do not ask again soon.
    """

    reach: Reach
    ready: bool | None = None
    info: ModelInfo | None = None
    version: str | None = None
    started_with: StartedWith | None = None
    checksum: Checksum | None = None
    status: int | None = None
    info_status: int | None = None
    checksum_status: int | None = None


def look(
    url: str,
    *,
    info: bool = True,
    version: bool = False,
    checksum: bool = False,
    keys: Keys = NO_KEYS,
    seconds: float = LOOK_SECONDS,
    checksum_seconds: float = CHECKSUM_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Look:
    """Look at a server once.

    Args:
        url: Where it is, such as ``http://10.0.0.7:30000``, with the path that its routes stand below.
        info: Also ask ``/model_info``.
        version: Also ask for SGLang's version, and how it was started; the latter waits for a load.
        checksum: Also ask which bytes are loaded; it waits for a load, and generation waits for it. With ``version``
            only where the server says that its weights cannot be out of memory.
        keys: What the server wants to be shown; each route gets its own.
        seconds: Longest duration of all of it but the checksum.
        checksum_seconds: Longest duration of the checksum, which is asked for last and comes on top.
        clock: Monotonic seconds.
    """
    asking = Asking(url, keys=keys, seconds=seconds, clock=clock)
    try:
        response = asking(READY, 0)
    except ConnectionRefusedError:
        return Look(reach=Reach.REFUSED)
    except FAILED:
        return Look(reach=Reach.SILENT)
    info_status, shown = model_info(asking) if info else (None, None)
    said = _version(asking) if version else None
    started_with = _started_with(asking) if version else None
    checksum = checksum and (not version or (started_with is not None and started_with.memory_saver is False))
    checksum_status, loaded = (
        loaded_bytes(Asking(url, keys=keys, seconds=checksum_seconds, clock=clock)) if checksum else (None, None)
    )
    return Look(
        reach=Reach.ANSWERED,
        ready=is_well(response.status),
        info=shown,
        version=said,
        started_with=started_with,
        checksum=loaded,
        status=response.status,
        info_status=info_status,
        checksum_status=checksum_status,
    )


def model_info(asking: Asking, *, key: bool = True) -> tuple[int | None, ModelInfo | None]:
    """Answers at once, also during a load; before ``/model_info`` there was ``/get_model_info``, the same body."""
    status: int | None = None
    for path in (MODEL_INFO, OLD_MODEL_INFO):
        status, fields = asking.json(path, key=key)
        if status == 404:
            continue
        model_path = text_of(fields, "model_path")
        if status != 200 or model_path is None:
            break
        return status, ModelInfo(
            model_path=model_path,
            weight_version=text_of(fields, "weight_version"),
            tokenizer_path=text_of(fields, "tokenizer_path"),
            architectures=_architectures(fields.get("architectures")),
            model_type=text_of(fields, "model_type"),
        )
    return status, None


def loaded_bytes(asking: Asking) -> tuple[int | None, Checksum | None]:
    """The answer of ``/weights_checker`` and its status; it goes through the scheduler."""
    began = asking.clock()
    status, fields = asking.json(CHECKER, MAX_CHECKSUMS)
    engine = fields.get("per_engine_checksum")
    if status != 200 or not isinstance(engine, str) or not _DIGEST.fullmatch(engine):
        return status, None
    return status, Checksum(engine=engine, seconds=asking.clock() - began, tensors=_tensors(fields.get("ranks")))


def version_of(fields: dict[str, Any]) -> str | None:
    """SGLang's version in a closed form."""
    match = _VERSION.match(text_of(fields, "version") or "")
    return match[0] if match is not None else None


def _version(asking: Asking) -> str | None:
    """``/v1/loads`` costs the scheduler nothing; of ``/server_info``, which does, one field is read."""
    for path, limit in (
        (LOADS_CORE, MAX_BODY),
        (SERVER_INFO, MAX_SERVER_INFO),
        (OLD_SERVER_INFO, MAX_SERVER_INFO),
    ):
        status, fields = asking.json(path, limit)
        said = version_of(fields) if status == 200 else None
        if said is not None or status == 401:
            return said
    return None


def _started_with(asking: Asking) -> StartedWith | None:
    """None where the server does not tell."""
    for path in (SERVER_INFO, OLD_SERVER_INFO):
        status, fields = asking.json(path, MAX_SERVER_INFO)
        if status == 200 and fields:
            return started_with_of(fields)
        if status != 404:
            return None
    return None


def started_with_of(settings: dict[str, Any]) -> StartedWith | None:
    """The same of the fields of ``/server_info``; None where they do not tell."""
    workers, saver = settings.get("tokenizer_worker_num"), settings.get("enable_memory_saver")
    found = StartedWith(
        tokenizer_workers=workers if type(workers) is int else None,
        memory_saver=saver if isinstance(saver, bool) else None,
    )
    return None if found == StartedWith() else found


def _architectures(value: Any) -> tuple[str, ...]:
    names = value[:_MAX_ARCHITECTURES] if isinstance(value, list) else ()
    return tuple(clean(name, limit=MAX_VALUE) for name in names if isinstance(name, str))


def _tensors(ranks: Any) -> int:
    checksums = [rank.get("checksums") for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []
    return sum(len(one) for one in checksums if isinstance(one, dict))
