"""Remedies from a TOML file and from the environment, for those who cannot edit the trainer's code.

What is wrong there is told with its place, as what is wrong in the code: a remedy that somebody counts on is never
off without a word.
"""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sglang_telemetry.names import Env
from sglang_telemetry.remedies.options import CHOICES, NUMBERS, Remedies

_KNOWN = tuple(one.name for one in fields(Remedies))
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


def from_toml(path: str | os.PathLike[str]) -> Remedies:
    """The table ``[remedies]`` of a TOML file, with the fields of :class:`Remedies`.

    Raises:
        ValueError: The file cannot be read, is no TOML, or says what makes no sense.
    """
    return _made(_table(path), f"[remedies] in {os.fspath(path)}")


def from_environ(environ: Mapping[str, str]) -> Remedies:
    """``SGLANG_TELEMETRY_REMEDIES_FILE``, and over it ``SGLANG_TELEMETRY_REMEDIES``; without them all are off.

    The latter is a list such as ``validate, pause=retract, retry, deadline_seconds=60``.

    Raises:
        ValueError: They say what makes no sense.
    """
    file, text = environ.get(Env.REMEDIES_FILE, "").strip(), environ.get(Env.REMEDIES, "").strip()
    values = {**(_table(file) if file else {}), **_listed(text)}
    return _made(values, " and ".join([f"[remedies] in {file}"] * bool(file) + [Env.REMEDIES.value] * bool(text)))


def _table(path: str | os.PathLike[str]) -> dict[str, Any]:
    import tomllib  # for those who have such a file

    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"remedies cannot be read from {os.fspath(path)}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is no TOML: {error}") from error
    table = document.get("remedies")
    if not isinstance(table, dict):
        raise ValueError(f"{os.fspath(path)} has no table [remedies]: put that line before the first remedy")
    return table


def _listed(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        if name in values:
            raise ValueError(f"{Env.REMEDIES}: {name} stands there twice")
        values[name] = _value(name, value) if equals else True
    return values


def _value(name: str, text: str) -> Any:
    if name in NUMBERS:
        try:
            return NUMBERS[name](text)
        except ValueError:
            return text  # which is refused with its name
    if name in CHOICES:
        return text
    lower = text.lower()
    return True if lower in _TRUE else False if lower in _FALSE else text


def _made(values: Mapping[str, Any], place: str) -> Remedies:
    unknown = sorted(values.keys() - set(_KNOWN))
    if unknown:
        raise ValueError(f"{place}: there is no remedy {unknown[0]!r}; there are {', '.join(_KNOWN)}")
    try:
        return Remedies(**values)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
