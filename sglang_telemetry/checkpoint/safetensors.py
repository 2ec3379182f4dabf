"""The header of a safetensors file: 8 bytes with its length, JSON, and behind it the tensors' bytes without a gap.

https://github.com/huggingface/safetensors#format; a server refuses or dies of whatever its reader does not accept.
"""

from typing import Any, TypeGuard

import orjson

from sglang_telemetry.checkpoint.opened import OpenFile
from sglang_telemetry.checkpoint.tensors import BITS, MAX_DIMENSIONS, Place, TensorSpec

MAX_HEADER_BYTES = 100_000_000
"""The library's own limit."""

MAX_TENSORS = 1_000_000
"""More than any model has; the header of a hostile file must not fill the memory."""

_TOKENS_A_TENSOR = 16


def read_safetensors(file: OpenFile) -> dict[str, tuple[TensorSpec, Place]]:
    """All tensors of a file, by name.

    Raises:
        Faulty: The header is broken or longer than the library takes, or the file is shorter or longer than it says.
        Unchecked: It names more tensors than are read.
    """
    length = _header_length(file)
    start = 8 + length
    tensors = {name: _tensor(file, name, entry, start) for name, entry in _header(file, length).items()}
    ends = [place.offset + place.nbytes for _spec, place in tensors.values()]
    expected = max(ends, default=start)
    if file.size != expected:
        what = "cut short" if file.size < expected else "more than its header says"
        raise file.fault(f"{file.size} bytes found, {expected} expected: {what}")
    at = start
    for name, place in sorted(((name, place) for name, (_spec, place) in tensors.items()), key=_by_place):
        if place.offset != at:
            what = "a gap before it" if place.offset > at else "it overlaps the one before"
            raise file.fault(f"{name} begins at byte {place.offset}, {at} expected: {what}")
        at += place.nbytes
    return tensors


def _header_length(file: OpenFile) -> int:
    if file.size == 0:
        raise file.fault("0 bytes found: empty")
    if file.size < 8:
        raise file.fault(f"{file.size} bytes found, at least 8 expected: cut short")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > MAX_HEADER_BYTES:
        raise file.fault(f"its header says that it has {length} bytes, at most {MAX_HEADER_BYTES} are allowed")
    if 8 + length > file.size:
        raise file.fault(f"{file.size} bytes found, at least {8 + length} expected: cut short in its header")
    return length


def _header(file: OpenFile, length: int) -> dict[str, Any]:
    raw = file.read(8, length)
    if sum(map(raw.count, (b"[", b"{", b","))) > MAX_TENSORS * _TOKENS_A_TENSOR:
        raise file.unchecked(f"its header names more than {MAX_TENSORS} tensors")
    try:
        header = orjson.loads(raw)
    except ValueError as error:
        raise file.fault(f"its header of {length} bytes is no JSON") from error
    if not isinstance(header, dict):
        raise file.fault("its header is no JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise file.fault("its __metadata__ is no object of texts")
    if len(header) > MAX_TENSORS:
        raise file.unchecked(f"its header names {len(header)} tensors, at most {MAX_TENSORS} are read")
    return header


def _tensor(file: OpenFile, name: str, entry: Any, data: int) -> tuple[TensorSpec, Place]:
    if not isinstance(entry, dict):
        raise file.fault(f"{name} is no tensor in its header")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not (isinstance(dtype, str) and _is_sizes(shape) and _is_sizes(offsets) and len(offsets) == 2):
        raise file.fault(f"{name} has no dtype, shape and data_offsets in its header")
    start, end = offsets
    if start > end:
        raise file.fault(f"{name} ends at byte {end} of the data, before it begins at {start}")
    spec = TensorSpec(tuple(shape), dtype)
    bits = BITS.get(dtype)  # a type newer than this list is not checked
    if bits is not None and spec.values * bits != (end - start) * 8:
        raise file.fault(f"{name} takes {end - start} bytes, {spec.values * bits // 8} expected of {dtype} {shape}")
    return spec, Place(file.name, data + start, end - start)


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= MAX_DIMENSIONS
        and all(type(size) is int and size >= 0 for size in value)
    )


def _by_place(entry: tuple[str, Place]) -> tuple[int, int]:
    return entry[1].offset, entry[1].nbytes
