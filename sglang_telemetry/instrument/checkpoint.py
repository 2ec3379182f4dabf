"""What lies in the checkpoint folder: sizes after each sync, and after a failure whether the files are whole.

Only names, sizes and headers are read, never tensors, and nothing is unpickled.
"""

import json
import os
import zipfile
from pathlib import Path

from sglang_telemetry.events import Checkpoint
from sglang_telemetry.text import clean

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_MAX_HEADER_BYTES = 100 << 20


def look(path: str | os.PathLike[str], *, deep: bool = False) -> Checkpoint:
    """Look at a checkpoint folder.

    Args:
        path: The folder.
        deep: Also look for what is wrong: missing or cut files.
    """
    folder = os.path.abspath(path)
    files = total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file():
                    total += entry.stat().st_size
                    files += entry.name.endswith(_WEIGHTS)
    except OSError as error:
        parent_free = _free(os.path.dirname(folder))
        return Checkpoint(path=clean(folder), free_bytes=parent_free, fault=clean(f"{error.strerror or error}"))
    fault = _fault(Path(folder), files) if deep else None
    return Checkpoint(path=clean(folder), files=files, bytes=total, free_bytes=_free(folder), fault=fault)


def _free(folder: str) -> int | None:
    try:
        there = os.statvfs(folder)
    except OSError:
        return None
    return there.f_bavail * there.f_frsize


def _fault(folder: Path, files: int) -> str | None:
    if not files:
        return "no weight files"
    try:
        for path in sorted(path for path in folder.iterdir() if path.is_file()):
            fault = None
            if path.name.endswith(".safetensors"):
                fault = _safetensors_fault(path)
            elif path.name.endswith((".bin", ".pt", ".pth")):
                fault = _torch_fault(path)
            elif path.name.endswith(".index.json"):
                fault = _index_fault(path)
            if fault is not None:
                return clean(f"{path.name}: {fault}", limit=500)
    except Exception as error:  # a header can be anything
        return clean(f"cannot be read: {type(error).__name__}: {error}", limit=500)
    return None


def _safetensors_fault(path: Path) -> str | None:
    size = path.stat().st_size
    if size < 8:
        return f"{size} bytes, too short for a safetensors header"
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _MAX_HEADER_BYTES):
            return f"{size} bytes, but its header alone says {length}: cut short"
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    expected = 8 + length + max(ends, default=0)
    return None if size == expected else f"{size} bytes found, {expected} expected"


def _torch_fault(path: Path) -> str | None:
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
    if magic[:2] != b"PK":  # torch's format before 1.6, or none: nothing can be said without unpickling
        return f"{size} bytes, empty" if size == 0 else None
    return None if zipfile.is_zipfile(path) else f"{size} bytes, the end of the archive is missing: cut short"


def _index_fault(path: Path) -> str | None:
    shards = set(json.loads(path.read_bytes()).get("weight_map", {}).values())
    missing = sorted(shard for shard in shards if not (path.parent / shard).exists())
    return f"names {len(missing)} missing shards: {', '.join(missing[:3])}" if missing else None
