"""Finds in the bytes of an answer which weights generated it; nothing is parsed, since the engine does that itself.

What a user or a model wrote stands in JSON strings, where every quote has a backslash before it: a quote without one
begins or ends a string, and only a key's end is followed by a colon. So text cannot pass for a key. Each pattern is
possessive and ends where the next key can begin at the earliest: the cost is linear, whatever the bytes are.

Measured on SGLang 0.5.23: ``/generate`` has one ``meta_info`` a generation, with ``weight_version``, and with
``weight_versions`` when it is finished; the OpenAI routes have one ``metadata`` an answer with the same keys.
"""

import json
import re
from dataclasses import dataclass

MAX_GENERATIONS = 1 << 16
_MAX_VERSION_BYTES = 1024

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT_OBJECT = rb'\{[^{}\[\]"\\]*+(?:' + _STRING + rb'[^{}\[\]"\\]*+)*+\}'
_JSON = re.compile(rb"\s*+[\[{]")
_OBJECT = re.compile(rb"\s*+:\s*+\{")
_TEXT = re.compile(rb"\s*+:\s*+(" + _STRING + rb")", re.DOTALL)
_SPANS = re.compile(rb"\s*+:\s*+\[((?:\s*+" + _FLAT_OBJECT + rb"\s*+,?+)*+)\s*+\]", re.DOTALL)
_ABORT = re.compile(rb'\s*+:\s*+(?:\{\s*+"type"\s*+:\s*+)?+"abort"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an answer says of one generation.

    Args:
        versions: The weight versions that took part; empty where it names none, as before SGLang named them.
        aborted: The server cut it off.
    """

    versions: frozenset[str] = frozenset()
    aborted: bool = False


def generations(body: bytes) -> list[Generation]:
    """All generations in the body of an answer; none when it is not one JSON document, such as a stream of them.

    Args:
        body: Whatever came with status 200 from a route that generates.
    """
    if _JSON.match(body) is None or body.strip() == b"[]":
        return []
    starts: list[int] = []
    found = _after(b'"meta_info"', _OBJECT, body, 0, len(body))
    while found is not None and len(starts) < MAX_GENERATIONS:
        starts.append(found.end())
        found = _after(b'"meta_info"', _OBJECT, body, found.end(), len(body))
    starts = starts or [0]
    ends = [*starts[1:], len(body) if found is None else found.start()]
    return [_generation(body, start, end) for start, end in zip(starts, ends, strict=True)]


def _generation(body: bytes, start: int, end: int) -> Generation:
    return Generation(
        versions=frozenset(map(_decoded, _versions(body, start, end))),
        aborted=_after(b'"finish_reason"', _ABORT, body, start, end) is not None,
    )


def _versions(body: bytes, start: int, end: int) -> set[bytes]:
    spans = _after(b'"weight_versions"', _SPANS, body, start, end)
    versions: set[bytes] = set()
    if spans is not None:
        inside, behind = spans.span(1)
        found = _after(b'"version"', _TEXT, body, inside, behind)
        while found is not None:
            versions.add(found[1])
            found = _after(b'"version"', _TEXT, body, found.end(), behind)
    if not versions:
        found = _after(b'"weight_version"', _TEXT, body, start, end)
        versions.update(() if found is None else (found[1],))
    return versions


def _after(key: bytes, pattern: re.Pattern[bytes], body: bytes, start: int, end: int) -> re.Match[bytes] | None:
    """What follows a key; one with a backslash before it is a part of somebody's text."""
    at = body.find(key, start, end)
    while at >= 0:
        if body[at - 1 : at] != b"\\":
            found = pattern.match(body, at + len(key), end)
            if found is not None:
                return found
        at = body.find(key, at + 1, end)
    return None


def _decoded(literal: bytes) -> str:
    """The text of a JSON string; one that cannot be a version is as good as none."""
    try:
        return str(json.loads(literal)) if len(literal) <= _MAX_VERSION_BYTES else ""
    except ValueError:
        return ""
