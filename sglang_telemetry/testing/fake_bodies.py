"""What SGLang 0.5.23 says to a body that it cannot use: pydantic's errors in its own envelope, status 400.

Each text was measured; the envelope carries the errors twice, the request as Python wrote it, and the place of
SGLang's source on the server's disk.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from sglang_telemetry.testing.fake_faults import Answer, envelope

_FILE = "/usr/local/lib/python3.11/site-packages/sglang/srt/entrypoints/http_server.py"
_TRUE_OR_FALSE = frozenset({"true", "false", "t", "f", "yes", "no", "y", "n", "on", "off", "1", "0"})
_MODES = ("abort", "retract", "in_place")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What a route wants as its body.

    Args:
        line: Where SGLang 0.5.23 defines the route.
        function: Its name there.
        struct: The name of the request's type.
        fields: The kind of each field that is checked, in order: ``str``, ``str?``, ``bool`` or ``mode``.
        required: The fields that must be there.
    """

    line: int
    function: str
    struct: str
    fields: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()


SCHEMAS: dict[str, Schema] = {
    "/update_weights_from_disk": Schema(
        line=1300,
        function="update_weights_from_disk",
        struct="UpdateWeightFromDiskReqInput",
        fields={
            "model_path": "str",
            "load_format": "str?",
            "abort_all_requests": "bool",
            "weight_version": "str?",
            "flush_cache": "bool",
        },
        required=("model_path",),
    ),
    "/update_weight_version": Schema(
        line=1527,
        function="update_weight_version",
        struct="UpdateWeightVersionReqInput",
        fields={"new_version": "str", "abort_all_requests": "bool"},
        required=("new_version",),
    ),
    "/weights_checker": Schema(
        line=1599, function="check_weights", struct="CheckWeightsReqInput", fields={"action": "str"}
    ),
    "/pause_generation": Schema(
        line=1831, function="pause_generation", struct="PauseGenerationReqInput", fields={"mode": "mode"}
    ),
    "/continue_generation": Schema(line=1844, function="continue_generation", struct="ContinueGenerationReqInput"),
}


def parse(path: str, method: str, body: bytes, content_type: str) -> dict[str, Any] | Answer:
    """The request's JSON object, or SGLang's refusal.

    Args:
        path: A key of ``SCHEMAS``.
        method: The request's method, named in the refusal.
        body: Its bytes; empty for none.
        content_type: Its header; anything but JSON leaves the body unread.
    """
    schema = SCHEMAS[path]
    if not body:
        return refusal(path, method, [_error("missing", (), "Field required", None)])
    content: Any = body
    if content_type.split(";")[0].strip().endswith("json"):
        try:
            content = json.loads(body)
        except json.JSONDecodeError as error:
            expected = "a string key" if "property name" in error.msg else "a JSON value"
            context = {"error": f"unexpected character, expected {expected}"}
            broken = _error("json_invalid", (error.pos,), "JSON decode error", {}, context)
            return refusal(path, method, [broken])
        except UnicodeDecodeError:
            return envelope("There was an error parsing the body")
    errors = _errors(schema, content)
    if errors:
        instance = f"Input should be an instance of {schema.struct}"
        context = {"class": schema.struct}
        first = _error("is_instance_of", (f"is-instance[{schema.struct}]",), instance, content, context)
        return refusal(path, method, [first, *errors])
    return dict(content)


def refusal(path: str, method: str, errors: list[dict[str, Any]], line: int = 0, function: str = "") -> Answer:
    """The envelope around pydantic's errors.

    Args:
        line: Where the route is defined, for one that has no schema.
        function: Its name there.
    """
    if path in SCHEMAS:
        line, function = SCHEMAS[path].line, SCHEMAS[path].function
    many = f"{len(errors)} validation error{'s' if len(errors) > 1 else ''}"
    listed = "\n".join(f"  {error}" for error in errors)
    place = f'  File "{_FILE}", line {line}, in {function}\n    {method} {path} {errors}'
    return envelope(f"{many}:\n{listed}\n\n{place}")


def timeout_seconds(query: str) -> float | Answer:
    """The ``timeout`` of ``/flush_cache`` in seconds, 0 unless given."""
    text = parse_qs(query).get("timeout", ["0"])[-1]
    try:
        return float(text)
    except ValueError:
        message = "Input should be a valid number, unable to parse string as a number"
        error = {"type": "float_parsing", "loc": ("query", "timeout"), "msg": message, "input": text}
        return refusal("/flush_cache", "POST", [error], line=1025, function="flush_cache")


def _errors(schema: Schema, content: Any) -> list[dict[str, Any]]:
    place = f"function-after[build_struct(), {schema.struct}]"
    if not isinstance(content, dict):
        return [_error("dict_type", (place,), "Input should be a valid dictionary", content)]
    errors: list[dict[str, Any]] = []
    for name, kind in schema.fields.items():
        if name not in content:
            if name in schema.required:
                errors.append(_error("missing", (place, name), "Field required", content))
            continue
        value = content[name]
        fault = _fault(kind, value)
        if fault is not None:
            errors.append(_error(fault[0], (place, name), fault[1], value, *fault[2:]))
    return errors


def _fault(kind: str, value: Any) -> tuple[Any, ...] | None:
    match kind, value:
        case ("str?", None):
            return None
        case ("str" | "str?", _) if not isinstance(value, str):
            return "string_type", "Input should be a valid string"
        case ("bool", str()) if value.lower() not in _TRUE_OR_FALSE:
            return "bool_parsing", "Input should be a valid boolean, unable to interpret input"
        case ("bool", int()) if value not in (0, 1):
            return "bool_parsing", "Input should be a valid boolean, unable to interpret input"
        case ("bool", _) if not isinstance(value, str | int):
            return "bool_type", "Input should be a valid boolean"
        case ("mode", _) if value not in _MODES:
            expected = "'abort', 'retract' or 'in_place'"
            return "literal_error", f"Input should be {expected}", {"expected": expected}
    return None


def truth(value: object) -> bool:
    """A boolean as pydantic reads it."""
    return value.lower() in {"true", "t", "yes", "y", "on", "1"} if isinstance(value, str) else bool(value)


def _error(kind: str, loc: tuple[Any, ...], message: str, value: Any, context: Any = None) -> dict[str, Any]:
    error = {"type": kind, "loc": ("body", *loc), "msg": message, "input": value}
    return error if context is None else error | {"ctx": context}
