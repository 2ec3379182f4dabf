"""Can the remedies that are wanted work with this engine, its client and its server? What cannot is refused at once."""

import inspect
import re
from collections.abc import Callable
from typing import Any

from sglang_telemetry.remedies.client import can_refuse
from sglang_telemetry.remedies.options import Remedies
from sglang_telemetry.text import server_of

BY_REQUEST = ("validate", "publish_atomically", "retry", "timeout", "pause", "serialize", "on_failure")
"""Remedies that take hold of the request of an update."""
_REFUSING = ("validate", "publish_atomically", "serialize")
_TIMED = ("retry", "timeout", "pause")
"""These give the client's ``post`` a time-out."""
_ROUTES = {"pause": ("/pause_generation", "/continue_generation"), "retry": ("/flush_cache",)}
_ASK_SECONDS = 2.0
_ANY_ROUTE = re.compile(r"(?:/(?:\{[^/]*\}|\*+))+")
"""A path that stands for all that lie behind a gateway, such as ``/{path}`` or ``/{path:path}``."""


def check(options: Remedies, engine: Any, *, asynchronous: bool) -> None:
    """Refuse what cannot work with an engine.

    Args:
        options: What is wanted.
        engine: Its ``http`` is looked at.
        asynchronous: Its ``update_policy`` is a coroutine function.

    Raises:
        ValueError: It says why, and what to do.
    """
    wanted = [name for name in options.names if name in BY_REQUEST]
    if not wanted:
        return
    kind = type(engine).__name__
    if asynchronous:
        raise ValueError(
            f"{', '.join(wanted)}: {kind}.update_policy is a coroutine function, and these would block its event loop; "
            "leave them off, or make it a plain function that is called in a thread"
        )
    http: Any = getattr(engine, "http", None)
    if not callable(getattr(http, "post", None)) or not callable(getattr(http, "get", None)):
        raise ValueError(
            f"{', '.join(wanted)}: {kind} has no attribute http that sends its requests; "
            "give it one, such as the module requests or a Session, and send through it"
        )
    refusing = [name for name in wanted if name in _REFUSING]
    if refusing and not can_refuse(http):
        raise ValueError(
            f"{', '.join(refusing)}: {kind}.http is a {type(http).__name__}; in the place of a request that is not "
            "sent an answer is made, which is known for requests and httpx.Client: use one of these, or leave them off"
        )
    timed = [name for name in wanted if name in _TIMED]
    if timed and not _takes(http.post, "timeout"):
        raise ValueError(
            f"{', '.join(timed)}: {kind}.http.post takes no timeout; "
            "give it that argument (or **kwargs), to be handed on to what sends, or leave them off"
        )


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Does it take this keyword argument? True also where it does not say."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # such as one in C
        return True
    named = parameters.get(name)
    return (named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY) or any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()
    )


def check_routes(options: Remedies, engine: Any) -> None:
    """Has the server what they need? One that is not up yet, or does not tell, is met with it when it comes to it.

    Raises:
        ValueError: It has not.
    """
    wanted = {route: name for name in options.names for route in _ROUTES.get(name, ())}
    url = getattr(engine, "base_url", None)
    if not wanted or not isinstance(url, str):
        return
    try:
        paths = engine.http.get(f"{url.rstrip('/')}/openapi.json", timeout=_ASK_SECONDS).json()["paths"]
    except Exception:  # whatever its client raises, and whatever answers there
        return
    if not isinstance(paths, dict) or not paths or any(_ANY_ROUTE.fullmatch(path) for path in paths):
        return
    for route, name in wanted.items():
        if route not in paths:
            raise ValueError(
                f"{name}: the server at {server_of(url)} has no route {route}; "
                f"use an SGLang that has it (0.5.23 does), or leave {name} off"
            )
