"""Saves safetensors where the engine asks for pickle, and what was asked for where a model cannot be saved so."""

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


def remove_safetensors(folder: str | os.PathLike[str]) -> None:
    """What an attempt has left: SGLang takes safetensors before pickle when a folder has both (0.5.23, measured)."""
    for pattern in _WRITTEN:
        for path in glob.glob(os.path.join(glob.escape(os.fspath(folder)), pattern)):
            os.unlink(path)
