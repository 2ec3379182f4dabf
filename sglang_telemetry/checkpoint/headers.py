"""What a checkpoint folder holds: the tensors of all files that SGLang would load, and where their bytes lie."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_telemetry.checkpoint.choice import choose
from sglang_telemetry.checkpoint.errors import CheckpointError, Faulty, Unchecked, listed
from sglang_telemetry.checkpoint.opened import OpenFile
from sglang_telemetry.checkpoint.safetensors import read_safetensors
from sglang_telemetry.checkpoint.tensors import Place, TensorSpec
from sglang_telemetry.checkpoint.torch_zip import read_torch

__all__ = ["CheckpointError", "Faulty", "Headers", "Place", "TensorSpec", "Unchecked", "WeightFile", "read_headers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """One file of weights.

    Args:
        name: Its name in the folder.
        inside: Key of the top under which its tensors lie; None when they are at the top, where SGLang looks.
    """

    name: str
    inside: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """All tensors of a checkpoint.

    Args:
        tensors: What each looks like.
        places: Where the bytes of each lie.
        files: The files that SGLang would load.
        promised: Tensors that the index of the shards names; empty without one.
    """

    tensors: Mapping[str, TensorSpec]
    places: Mapping[str, Place]
    files: tuple[WeightFile, ...]
    promised: frozenset[str] = frozenset()


def read_headers(folder: str | os.PathLike[str]) -> Headers:
    """Read names, shapes and places of all tensors, and no tensor.

    Args:
        folder: The checkpoint.

    Raises:
        Faulty: A file is missing, cut or broken; names it, with the sizes found and expected.
        Unchecked: Its files are of a kind that cannot be read without torch, or cannot be read here.
    """
    where = os.fspath(folder)
    try:
        choice = choose(where)
        tensors: dict[str, TensorSpec] = {}
        places: dict[str, Place] = {}
        files: list[WeightFile] = []
        for name in choice.files:
            file, found = _read(where, name)
            twice = tensors.keys() & found.keys()
            if twice:
                other = places[min(twice)].file
                # SGLang loads the files in no fixed order.
                raise Faulty(f"{name}: {len(twice)} tensors are in {other} too, and either may win: {listed(twice)}")
            files.append(file)
            tensors.update((tensor, spec) for tensor, (spec, _place) in found.items())
            places.update((tensor, place) for tensor, (_spec, place) in found.items())
    except CheckpointError:
        raise
    except Exception as error:  # a path with a NUL in it, or a mistake of ours
        raise Unchecked(f"cannot be checked: {type(error).__name__}: {error}") from error
    return Headers(tensors=tensors, places=places, files=tuple(files), promised=choice.promised)


def _read(folder: str, name: str) -> tuple[WeightFile, dict[str, tuple[TensorSpec, Place]]]:
    try:
        with OpenFile(folder, name) as file:
            if name.endswith(".safetensors"):
                return WeightFile(name=name), read_safetensors(file)
            found, inside = read_torch(file)
            return WeightFile(name=name, inside=inside), found
    except CheckpointError:
        raise
    except Exception as error:  # what the readers did not think of says nothing of the file
        raise Unchecked(f"{name}: cannot be checked: {type(error).__name__}: {error}") from error
