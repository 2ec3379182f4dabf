"""Events as lines: one JSON object a line, each with the schema version, and back.

A reader accepts unknown fields, unknown members of closed sets and newer minor versions; it refuses another major.
"""

import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from sglang_telemetry import events
from sglang_telemetry.codec import converter, to_json

VERSION = "1.0"
SUFFIX = ".jsonl"


class BadLine(ValueError):
    """A line that is no event of a version that this reader knows."""


def encode(event: events.Event) -> bytes:
    """One line with its newline."""
    return to_json({"v": VERSION, "event": _KIND_OF[type(event)], "data": event}) + b"\n"


def decode(line: bytes) -> events.Event | None:
    """The event in a line, None for a kind of event that only newer versions know.

    Raises:
        BadLine: The line is torn, is no event, or is of another major version.
    """
    try:
        fields = orjson.loads(line)
        version = str(fields["v"])
        if version.partition(".")[0] == VERSION.partition(".")[0]:
            convert = _CONVERTERS.get(fields["event"])
            event: events.Event | None = convert(fields["data"]) if convert else None
            return event
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadLine(f"not an event: {type(error).__name__}: {error}") from error
    raise BadLine(f"journal version {version}: this exporter reads {VERSION}; upgrade it")


def _snake(name: str) -> str:
    return re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()


_KIND_OF: Mapping[type, str] = {cls: _snake(cls.__name__) for cls in typing.get_args(events.Event)}
_CONVERTERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {kind: converter(cls) for cls, kind in _KIND_OF.items()}
