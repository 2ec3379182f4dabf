"""Saves safetensors where the engine asks for pickle, and what was asked for where a model cannot be saved so."""

import contextlib
import glob
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

ARGUMENT = "safe_serialization"
"""Of ``save_pretrained`` in transformers 4; transformers 5 writes safetensors whatever it says (measured)."""
_WRITTEN = ("*.safetensors", "*.safetensors.index.json")


def as_safetensors(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a ``save_pretrained`` that ask for safetensors; None when nothing is to be changed."""
    signature = inspect.signature(call)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:  # the call itself will say so
        return None
    if ARGUMENT in signature.parameters:
        if bound.arguments.get(ARGUMENT, signature.parameters[ARGUMENT].default) is not False:
            return None
        bound.arguments[ARGUMENT] = True
        return bound.args, bound.kwargs
    return (args, {**kwargs, ARGUMENT: True}) if kwargs.get(ARGUMENT) is False else None


class Attempt:
    """One attempt to save safetensors into a folder.

    Args:
        folder: It may be there or not; anything that is no path is left alone.
    """

    def __init__(self, folder: object) -> None:
        self._folder = os.fsdecode(folder) if isinstance(folder, str | os.PathLike) else None
        self._before = self._stamps()

    def undo(self) -> None:
        """Remove what it has left: SGLang takes safetensors before pickle when a folder has both (0.5.23, measured).

        Files that it has not written stay: they may be another model's.
        """
        for path, stamp in self._stamps().items():
            if self._before.get(path) != stamp:
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _stamps(self) -> dict[str, tuple[int, int, int]]:
        stamps: dict[str, tuple[int, int, int]] = {}
        for pattern in _WRITTEN if self._folder is not None else ():
            for path in glob.glob(os.path.join(glob.escape(self._folder or ""), pattern)):
                with contextlib.suppress(OSError):
                    there = os.stat(path, follow_symlinks=False)
                    stamps[path] = (there.st_ino, there.st_size, there.st_mtime_ns)
        return stamps
