"""The JSON files of a checkpoint folder: ``config.json`` and the index of the shards."""

import json
import os
from typing import Any

from sglang_telemetry.checkpoint.errors import Faulty, of_os_error
from sglang_telemetry.checkpoint.opened import OpenFile

_MAX_BYTES = 64 << 20


def read_document(folder: str | os.PathLike[str], name: str) -> dict[str, Any] | None:
    """The object in a JSON file, None when there is no such file.

    Raises:
        Faulty: It is there and is no JSON object.
        Unchecked: It cannot be read here, or is longer than 64 MiB.
    """
    try:
        os.lstat(os.path.join(folder, name))  # os.path.lexists takes a failing file system for a missing file
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise of_os_error(error, name) from error
    with OpenFile(os.fspath(folder), name) as file:
        if file.size > _MAX_BYTES:
            raise file.unchecked(f"{file.size} bytes long, at most {_MAX_BYTES} are read")
        raw = file.read(0, file.size)
    try:
        # Not orjson: Python's writer, which made the file, writes Infinity and NaN.
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Faulty(f"{name}: {len(raw)} bytes that are no JSON: {type(error).__name__}") from error
    if not isinstance(found, dict):
        raise Faulty(f"{name}: no JSON object")
    return found
