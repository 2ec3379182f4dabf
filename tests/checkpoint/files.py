"""Checkpoint files for the tests, good ones and some that no writer makes."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sglang_telemetry.checkpoint.tensors import TORCH


def spelled(tensor: torch.Tensor) -> str:
    """The type of a tensor, as safetensors writes it."""
    return TORCH[str(tensor.dtype).removeprefix("torch.")]


def safetensors_bytes(content: Mapping[str, torch.Tensor], *, metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file of tensors of any type."""
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    data = b""
    for name, tensor in sorted(content.items()):
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": spelled(tensor), "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    return with_header(header, data)


def with_header(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file with any header."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def write(folder: Path, name: str, content: bytes) -> Path:
    """A file in a folder, which is made when missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder


def saved(folder: Path, content: Mapping[str, torch.Tensor]) -> Path:
    """A folder with ``model.safetensors``."""
    return write(folder, "model.safetensors", safetensors_bytes(content))


def saved_bin(folder: Path, content: Any, *, name: str = "pytorch_model.bin", **options: Any) -> Path:
    """A folder with a file of ``torch.save``."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(content, folder / name, **options)
    return folder


def sharded(folder: Path, shards: Mapping[str, Mapping[str, torch.Tensor]], *, index: str | None) -> Path:
    """A folder with safetensors or ``.bin`` shards, and the index that transformers writes beside them."""
    for name, content in shards.items():
        if name.endswith(".safetensors"):
            write(folder, name, safetensors_bytes(content))
        else:
            saved_bin(folder, dict(content), name=name)
    if index is not None:
        weight_map = {tensor: name for name, content in shards.items() for tensor in content}
        (folder / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return folder


def weights(seed: int = 1, *, hidden: int = 64, layers: int = 2) -> dict[str, torch.Tensor]:
    """Random half-precision weights with the names of a small Qwen2."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (128, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (128, hidden),
    }
    for layer in range(layers):
        shapes[f"model.layers.{layer}.mlp.down_proj.weight"] = (hidden, 2 * hidden)
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (hidden,)
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
