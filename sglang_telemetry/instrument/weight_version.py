"""The ``weight_version`` of an update request: the engine's own, or a tag of ours added to a copy of its body."""

from collections.abc import Mapping
from typing import Any

KEY = "weight_version"


def version_in(arguments: Mapping[str, Any]) -> str | None:
    """The weight version that a request names."""
    body = arguments.get("json")
    version = body.get(KEY) if isinstance(body, Mapping) else None
    return version if isinstance(version, str) else None


def tagged(arguments: Mapping[str, Any], tag: str) -> dict[str, Any] | None:
    """The body with a weight version; None where it names one already, or is no mapping.

    Args:
        arguments: Of the call that sends the request; they are not changed.
        tag: What the server shows from then on, when it takes the weights.
    """
    body = arguments.get("json")
    if not isinstance(body, Mapping) or body.get(KEY) is not None:
        return None
    return {**body, KEY: tag}
