"""Reads checkpoint folders the way SGLang 0.5.23 answers to them: tensors, a refusal, or its death.

Only names, shapes and digests are kept. Tensors are read with the standard library alone, from safetensors files and
from the zip files of ``torch.save``; nothing that a checkpoint contains is executed.
"""

import hashlib
import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

from sglang_telemetry.testing.fake_faults import LOST_SHARDS, NO_FOLDER

_SNAPSHOT = (
    "Failed to get weights iterator: Cannot find an appropriate cached snapshot folder for the specified revision on "
    "the local disk and outgoing traffic has been disabled. To enable repo look-ups and downloads online, pass "
    "'local_files_only=False' as input.."
)
_NOT_DEFAULT = {
    "dummy": "DummyModelLoader",
    "sharded_state": "ShardedStateLoader",
    "bitsandbytes": "BitsAndBytesModelLoader",
    "gguf": "GGUFModelLoader",
}
_PATTERNS = {
    "auto": ("*.safetensors", "*.bin"),
    "safetensors": ("*.safetensors",),
    "layered": ("*.safetensors",),
    "pt": ("*.pt",),
    "npcache": ("*.bin",),
}
_INDEX = "model.safetensors.index.json"
_CHUNK = 1 << 20


class Refused(Exception):
    """SGLang answers 400 with this text and goes on with the weights that it has."""


class Deadly(Exception):
    """SGLang's scheduler dies of this checkpoint and takes the whole server along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a checkpoint, known by the digest of its bytes."""

    shape: tuple[int, ...]
    digest: str


def read_checkpoint(path: str, load_format: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint folder, by name.

    Args:
        path: What the request names as ``model_path``.
        load_format: One of SGLang's load formats.

    Raises:
        Refused: SGLang would answer 400 (measured on SGLang 0.5.23, each text).
        Deadly: SGLang would die without an answer (measured on SGLang 0.5.23).
    """
    if load_format in _NOT_DEFAULT:
        loader = f"<sglang.srt.model_loader.loader.{_NOT_DEFAULT[load_format]} object at 0x7f0000000000>"
        raise Refused(f"Failed to get model loader: {loader}.")
    if load_format not in _PATTERNS:
        raise Deadly(f"{load_format!r} is not a valid LoadFormat")
    folder = Path(path)
    if not folder.is_dir():
        is_repository = 1 <= len(path.split("/")) <= 2 and not path.startswith(("/", "."))
        raise Refused(_SNAPSHOT if is_repository else NO_FOLDER.format(path=path))
    files = _weight_files(folder, path, load_format)
    tensors: dict[str, Tensor] = {}
    try:
        for file in files:
            tensors.update(_safetensors(file) if file.suffix == ".safetensors" else _torch_zip(file))
    except Deadly:
        raise
    except Exception as error:  # whatever a broken file makes its reader raise
        raise Deadly(f"{file.name}: {type(error).__name__}: {error}") from error
    return tensors


def merge(loaded: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights after an update: what the model does not know is ignored, what is missing keeps its old value.

    Raises:
        Deadly: A tensor has another shape than the model's.
    """
    if not loaded:
        return dict(new)  # nothing is known of the model
    known = {name: tensor for name, tensor in new.items() if name in loaded}
    for name, tensor in known.items():
        if tensor.shape != loaded[name].shape:
            raise Deadly(f"attempted to load {name} {tensor.shape} into {loaded[name].shape}")
    return {**loaded, **known}


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """64 hex digits that change when any byte, name or shape does."""
    listed = sorted((name, tensor.shape, tensor.digest) for name, tensor in tensors.items())
    return hashlib.sha256(repr(listed).encode()).hexdigest()


def _weight_files(folder: Path, path: str, load_format: str) -> list[Path]:
    """The files to load: of the first kind that there is, and of those only what the index names."""
    for pattern in _PATTERNS[load_format]:
        files = sorted(folder.glob(pattern))
        index = folder / _INDEX
        if files and pattern == "*.safetensors" and index.is_file():
            named = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            lost = [name for name in named if not (folder / name).is_file()]
            if lost:
                raise Refused(LOST_SHARDS.format(index=_INDEX, count=len(lost), path=path, names=lost))
            files = [folder / name for name in named]
        if files:
            return files
    raise Refused(f"Failed to get weights iterator: Cannot find any model weights with `{path}`.")


def _digest(file: IO[bytes], size: int) -> str:
    digest = hashlib.blake2b(digest_size=32)
    while size:
        chunk = file.read(min(size, _CHUNK))
        if not chunk:
            raise Deadly("the file ends early")
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()


def _safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """8 bytes with the header's length, the JSON header, the tensors' bytes."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in header.values()]
        if path.stat().st_size != 8 + length + max(ends, default=0):
            raise Deadly(f"{path.name}: incomplete metadata, file not fully covered")
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            file.seek(8 + length + start)
            yield name, Tensor(shape=tuple(entry["shape"]), digest=_digest(file, end - start))


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in the pickle: which storage, from which element on, and its shape."""

    key: str
    item_size: int
    offset: int
    shape: tuple[int, ...]


_ITEM_SIZES = {
    "DoubleStorage": 8,
    "LongStorage": 8,
    "FloatStorage": 4,
    "IntStorage": 4,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "ShortStorage": 2,
}


def _rebuild_tensor(storage: tuple[str, int], offset: int, shape: tuple[int, ...], *_rest: object) -> _Stored:
    return _Stored(*storage, offset, tuple(shape))


def _rebuild_parameter(data: _Stored, *_rest: object) -> _Stored:
    return data


class _Names(pickle.Unpickler):
    """Reads a ``torch.save`` pickle into plain descriptions; no class or function that it names is looked up."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        known: dict[str, Any] = {
            "collections.OrderedDict": OrderedDict,
            "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
            "torch._utils._rebuild_parameter": _rebuild_parameter,
        }
        found = known.get(f"{module_name}.{global_name}")
        if found is not None:
            return found
        if module_name == "torch" and global_name.endswith("Storage"):
            return _ITEM_SIZES.get(global_name, 1)
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not allowed")

    def persistent_load(self, pid: Any) -> tuple[str, int]:
        _storage, item_size, key, *_rest = pid
        return str(key), int(item_size)


def _torch_zip(path: Path) -> Iterator[tuple[str, Tensor]]:
    """``<name>/data.pkl`` names the tensors, ``<name>/data/<key>`` has the bytes of each storage."""
    with zipfile.ZipFile(path) as archive:
        pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        with archive.open(pickled) as file:
            stored: dict[str, _Stored] = _Names(file).load()
        for name, tensor in stored.items():
            member = archive.getinfo(f"{pickled.removesuffix('data.pkl')}data/{tensor.key}")
            start = tensor.offset * tensor.item_size
            size = min(prod(tensor.shape) * tensor.item_size, member.file_size - start)  # less for an expanded tensor
            with archive.open(member) as data:
                data.seek(start)
                yield name, Tensor(shape=tensor.shape, digest=_digest(data, size))
