"""Dataclasses to JSON values and back, by their type hints; unknown fields are ignored, None is left out.

A member of a closed set that this version does not know becomes that set's fallback, so that an older reader can
count what a newer writer wrote.
"""

import dataclasses
import enum
import json
import types
import typing
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.names import Action, Applied, Component, Evidence, Exit, Outcome, Phase, Result, Transport

_KEPT = 32

_FALLBACK: Mapping[type, enum.Enum] = {
    FailureCause: FailureCause.UNKNOWN,
    Phase: Phase.OTHER,
    Applied: Applied.UNKNOWN,
    Result: Result.FAILURE,
    Transport: Transport.DISK,
    Component: Component.SINK,
    Exit: Exit.FAILED,
    Evidence: Evidence.MODEL_PATH,
    Action: Action.WAIT,
    Outcome: Outcome.SKIPPED,
}


def fields_of(value: Any) -> Any:
    """What ``json.dumps(default=...)`` should make of a dataclass, a mapping or a deque."""
    names = getattr(type(value), "__dataclass_fields__", None)
    if names is not None:
        return {name: item for name in names if (item := getattr(value, name)) is not None}
    return dict(value) if isinstance(value, Mapping) else list(value)


def to_json(value: Any) -> bytes:
    """JSON of a value; text that is no UTF-8, such as an odd file name, is written with question marks."""
    try:
        return orjson.dumps(value, default=fields_of)
    except TypeError:
        return json.dumps(value, default=_plain, ensure_ascii=False).encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    try:
        return fields_of(value)
    except TypeError:
        return str(value)


def converter(hint: Any) -> Callable[[Any], Any]:
    """A function that makes a value of the hinted type from JSON.

    The function raises TypeError, KeyError or ValueError for anything else.
    """
    if dataclasses.is_dataclass(hint):
        return _dataclass_converter(typing.cast(type, hint))
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        return converter(next(arg for arg in args if arg is not type(None)))
    if origin is tuple and args[-1] is Ellipsis:
        item = converter(args[0])
        return lambda value: tuple(item(one) for one in value)
    if origin is deque:
        return lambda value: deque(value, maxlen=_KEPT)
    if origin in {dict, Mapping}:  # JSON has no other keys than text
        name, entry = int if args[0] is int else converter(args[0]), converter(args[1])
        return lambda value: {name(key): entry(one) for key, one in value.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        members, fallback = {member.value: member for member in hint}, _FALLBACK[hint]
        return lambda value: members.get(value, fallback)
    if hint is float:
        return float
    if hint in {int, str, bool}:
        return _exactly(hint)
    return lambda value: value


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not {kind.__name__}")
        return value

    return check


def _dataclass_converter(cls: type) -> Callable[[Mapping[str, Any]], Any]:
    hints = typing.get_type_hints(cls)
    converters = {f.name: converter(hints[f.name]) for f in dataclasses.fields(typing.cast(Any, cls))}

    def build(values: Mapping[str, Any]) -> Any:
        return cls(**{name: make(values[name]) for name, make in converters.items() if values.get(name) is not None})

    return build
