"""What ``config.json`` says of the model, and how two of them differ."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sglang_telemetry.checkpoint.documents import read_document
from sglang_telemetry.checkpoint.errors import CheckpointError, line


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The sizes of a model; None is what the file does not say. Its type is not here: trainers send half precision.

    Args:
        quantized: It has a ``quantization_config``.
    """

    model_type: str | None = None
    architectures: tuple[str, ...] | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    vocab_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    intermediate_size: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool | None = None
    quantized: bool = False


def architecture_of(folder: str | os.PathLike[str]) -> Architecture | None:
    """What ``config.json`` says; None when there is none or it cannot be read.

    Args:
        folder: The checkpoint.
    """
    try:
        return read_architecture(folder)
    except (CheckpointError, OSError, ValueError):
        return None


def read_architecture(folder: str | os.PathLike[str]) -> Architecture | None:
    """What ``config.json`` says; None when there is none.

    Args:
        folder: The checkpoint.

    Raises:
        Faulty: It is no JSON object.
        Unchecked: It cannot be read here.
    """
    config = read_document(folder, "config.json")
    if config is None:
        return None
    inner = config.get("text_config")  # models that see have the language model's sizes there
    both: list[Mapping[str, Any]] = [config, inner] if isinstance(inner, dict) else [config]
    names = config.get("architectures")
    is_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return Architecture(
        model_type=_text(config, "model_type"),
        architectures=tuple(map(str, names)) if isinstance(names, list) and is_names else None,
        hidden_size=_size(both, "hidden_size"),
        num_hidden_layers=_size(both, "num_hidden_layers"),
        vocab_size=_size(both, "vocab_size"),
        num_attention_heads=_size(both, "num_attention_heads"),
        num_key_value_heads=_size(both, "num_key_value_heads"),
        intermediate_size=_size(both, "intermediate_size"),
        head_dim=_size(both, "head_dim"),
        tie_word_embeddings=next((one[_TIE] for one in both if isinstance(one.get(_TIE), bool)), None),
        quantized=any(isinstance(one.get("quantization_config"), dict) for one in both),
    )


def differences(here: Architecture, there: Architecture) -> tuple[str, ...]:
    """What two models do not have in common, as far as both say it: ``hidden_size is 64 here, 128 there``."""
    return tuple(
        line(f"{name} is {_shown(mine)} here, {_shown(theirs)} there")
        for name in (field.name for field in fields(Architecture))
        if (mine := getattr(here, name)) is not None and (theirs := getattr(there, name)) is not None and mine != theirs
    )


_TIE = "tie_word_embeddings"


def _size(both: list[Mapping[str, Any]], name: str) -> int | None:
    return next((one[name] for one in both if type(one.get(name)) is int), None)


def _text(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    return value if isinstance(value, str) else None


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
