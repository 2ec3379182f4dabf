"""What is read of an engine and a model: attributes that may be there or not, and what a model is wrapped in."""

import os
from dataclasses import dataclass
from typing import Any

from sglang_telemetry.events import Target
from sglang_telemetry.instrument.http import server_in
from sglang_telemetry.remedies.timeout import timeout_of
from sglang_telemetry.text import server_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an engine says that its syncs go: base URL, checkpoint folder, and the time-out in seconds."""

    url: str | None = None
    folder: str | None = None
    timeout_seconds: float | None = None


def place_of(engine: object) -> Place:
    """What an engine's attributes say now, where it has them."""
    url = attribute(engine, "base_url")
    return Place(
        url=url if isinstance(url, str) else None,
        folder=folder_of(engine),
        timeout_seconds=timeout_of(attribute(engine, "timeout")),
    )


def target_of(engine: object) -> Target:
    """Where an engine's syncs go, as far as it says so."""
    place = place_of(engine)
    return Target(server=server_of(place.url), timeout_seconds=place.timeout_seconds)


def server_at(url: str, client: object, engine: object) -> str:
    """``host:port`` that a request goes to, or ``unknown``: never a path or a query, which may hold a secret.

    Args:
        url: As it is given to the client, which may be relative.
        client: One of httpx may have a base URL.
        engine: Its base URL is what is left where the others name no host.
    """
    base = attribute(client, "base_url")
    for one in (url, "" if base is None else str(base)):
        server = server_in(one)
        if server is not None:
            return server
    return server_of(place_of(engine).url) or "unknown"


def layers_of(model: Any) -> list[Any]:
    """The model and what it wraps: DistributedDataParallel and torch.compile, in either order."""
    layers: list[Any] = []
    while model is not None and len(layers) < 8 and all(model is not layer for layer in layers):
        layers.append(model)
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in {"DistributedDataParallel", "DataParallel"}:
            inner = getattr(model, "module", None)
        model = inner
    return layers


def folder_of(engine: object) -> str | None:
    """The checkpoint folder that an engine saves to, None where it does not say."""
    folder = attribute(engine, "shared_ckpt_path")
    return os.fspath(folder) if isinstance(folder, str | os.PathLike) and folder else None


def attribute(engine: object, name: str) -> Any:
    """An attribute that an engine may or may not have, or have as a property that is not ready yet."""
    try:
        return getattr(engine, name, None)
    except Exception:
        return None
