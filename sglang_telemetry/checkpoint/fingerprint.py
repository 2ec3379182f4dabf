"""Are these the weights of last time: a digest of the tensors' data and names, of nothing else that is in the files."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from sglang_telemetry.checkpoint.headers import Headers, Place, read_headers
from sglang_telemetry.checkpoint.opened import OpenFile

# An update of bf16 weights in RL changes about 1 % of the values. A model can be frozen but for one tensor, so every
# tensor gives some blocks, however small its share of the bytes is; of many tensors the blocks are smaller. In the
# smallest four of bf16, 1024 values, a change of 1 % of one tensor alone is missed once in 30,000 (0.99 ** 1024), of
# float32 once in 170.
_BLOCK = 16 << 10
_MIN_BLOCK = 512
_MIN_BLOCKS = 4
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What the content of a checkpoint is known by.

    Args:
        digest: 64 hex digits.
        sampled_bytes: How much of the data it is of; storage that tensors share counts once.
        tensors: The same of each tensor.
    """

    digest: str
    sampled_bytes: int
    tensors: Mapping[str, bytes] = field(repr=False)


def fingerprint(
    folder: str | os.PathLike[str],
    *,
    headers: Headers | None = None,
    budget_bytes: int = 16 << 20,
    stop: Callable[[], bool] | None = None,
) -> Fingerprint | None:
    """A digest that is the same for the same weights, saved again or in another kind of file.

    Of more data than the budget it is a sample, which can miss a change: of a few values or rows that lie between the
    blocks of their tensor, in no other tensor.

    Args:
        folder: The checkpoint.
        headers: Its own, where they have just been read.
        budget_bytes: How much to read about; of more data than that, evenly spaced blocks of every tensor are read. Up
            to 24,000 tensors at 16 MiB these are four times as much at most, then 2 KiB of each tensor.
        stop: Asked before every read; when it says true, the rest is not read and the result is None.

    Raises:
        Faulty: It is broken.
        Unchecked: It is of a kind that cannot be read without torch, or cannot be read here.
    """
    headers = headers if headers is not None else read_headers(folder)
    places = dict.fromkeys(headers.places[name] for name in sorted(headers.places))
    total = sum(place.nbytes for place in places)
    share = 1.0 if total <= budget_bytes else budget_bytes / total
    block = _block(len(places), budget_bytes)
    digests: dict[Place, bytes] = {}
    sampled = 0
    with ExitStack() as stack:
        files = {file.name: stack.enter_context(OpenFile(os.fspath(folder), file.name)) for file in headers.files}
        for place in places:
            digest = hashlib.blake2b(digest_size=32)
            for offset, length in _ranges(place.nbytes, share, block):
                if stop is not None and stop():
                    return None
                digest.update(files[place.file].read(place.offset + offset, length))
                sampled += length
            digests[place] = digest.digest()
    tensors = {name: digests[headers.places[name]] for name in headers.tensors}
    return Fingerprint(digest=_of_all(headers, tensors), sampled_bytes=sampled, tensors=tensors)


def _block(tensors: int, budget_bytes: int) -> int:
    """How long the blocks are, so that the fewest of all tensors together do not take much more than the budget."""
    fair = budget_bytes // max(1, tensors * _MIN_BLOCKS)
    return min(_BLOCK, max(_MIN_BLOCK, fair - fair % _MIN_BLOCK))


def _ranges(size: int, share: float, block: int) -> Iterator[tuple[int, int]]:
    """What to read of a tensor: all of it, or blocks from its first byte to its last."""
    blocks = max(_MIN_BLOCKS, int(size * share) // block)
    if share == 1.0 or blocks * block >= size:
        yield from ((offset, min(_CHUNK, size - offset)) for offset in range(0, size, _CHUNK))
        return
    for number in range(blocks):
        yield (size - block) * number // (blocks - 1), block


def _of_all(headers: Headers, tensors: Mapping[str, bytes]) -> str:
    whole = hashlib.blake2b(digest_size=32)
    for name in sorted(headers.tensors):
        spec = headers.tensors[name]
        # repr puts quotes around the name: no two lists of tensors give the same bytes.
        whole.update(repr((name, spec.shape, spec.dtype)).encode("utf-8", "surrogatepass"))
        whole.update(tensors[name])
    return whole.hexdigest()
