"""Which files of a folder are the weights: the choice that SGLang makes.

Read in SGLang 0.5.23, ``srt/model_loader/loader.py`` (``_prepare_weights``) and ``weight_utils.py``: the first kind
that there is, and of safetensors only the shards that the index names. The index of ``.bin`` files is not read there.
"""

import os
import stat
from dataclasses import dataclass

from sglang_telemetry.checkpoint.documents import read_document
from sglang_telemetry.checkpoint.errors import Faulty, Unchecked, listed, of_os_error

SAFETENSORS_INDEX = "model.safetensors.index.json"
BIN_INDEX = "pytorch_model.bin.index.json"
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""What files of weights are called."""

_KINDS = (".safetensors", ".bin", ".pt")
NO_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
"""Called like weights, and none: weight_utils.py, filter_files_not_needed_for_inference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The files to load.

    Args:
        files: Their names, in order.
        promised: Tensors that the index says are in them; empty without an index.
    """

    files: tuple[str, ...]
    promised: frozenset[str] = frozenset()


def choose(folder: str) -> Choice:
    """The files that SGLang would load.

    Raises:
        Faulty: There are none, or the index names shards that are not there.
        Unchecked: There are weights of another kind, or the folder cannot be read here.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))  # as glob does
    except OSError as error:
        raise of_os_error(error) from error
    for kind in _KINDS:
        files = [name for name in names if name.endswith(kind)]
        if not files:
            continue
        choice = _safetensors(folder, files) if kind == ".safetensors" else _torch(folder, files)
        if choice.files:
            return choice
        break
    others = [name for name in names if name.endswith(WEIGHTS) and not name.endswith(NO_WEIGHTS)]
    if others and not any(name.endswith(".safetensors") for name in others):
        raise Unchecked(f"{others[0]}: of a kind that is not read here")
    raise Faulty("no weight files")


def _safetensors(folder: str, files: list[str]) -> Choice:
    index = _index(folder, SAFETENSORS_INDEX)
    if index is not None:
        missing = _missing(folder, index)
        if missing:
            raise Faulty(f"{SAFETENSORS_INDEX}: names {len(missing)} missing shards: {listed(missing)}")
        named = set(index.values())
        return Choice(files=tuple(name for name in files if name in named), promised=frozenset(index))
    if len(files) == 2 and files[0].endswith("consolidated.safetensors") and files[1].endswith("model.safetensors"):
        files = files[1:]  # Mistral's repositories hold the same weights twice
    return Choice(files=tuple(files))


def _torch(folder: str, files: list[str]) -> Choice:
    files = [name for name in files if not name.endswith(NO_WEIGHTS)]
    index = _index(folder, BIN_INDEX)
    # transformers removes old shards when it saves a single file in their place, but not their index.
    if index is None or not set(index.values()) & set(files):
        return Choice(files=tuple(files))
    missing = _missing(folder, index)
    if missing:
        raise Faulty(f"{BIN_INDEX}: names {len(missing)} missing shards: {listed(missing)}")
    return Choice(files=tuple(files), promised=frozenset(index))


def _index(folder: str, name: str) -> dict[str, str] | None:
    if not _is_file(folder, name):
        return None
    found = (read_document(folder, name) or {}).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(shard, str) for shard in found.values()):
        raise Faulty(f"{name}: no weight_map from tensors to shards")
    return found


def _missing(folder: str, index: dict[str, str]) -> list[str]:
    return sorted(shard for shard in set(index.values()) if not _is_file(folder, shard))


def _is_file(folder: str, name: str) -> bool:
    """``os.path.isfile`` takes a file system that fails for a file that is missing."""
    try:
        return stat.S_ISREG(os.stat(os.path.join(folder, name)).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a name with a NUL is no file's
        return False
    except OSError as error:
        raise of_os_error(error, name) from error
