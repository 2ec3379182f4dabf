"""Tiny checkpoint folders, good and broken ones, with the names and faults of ``real_sglang/make_tiny_model.py``."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

CONFIG = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 8}
DROPPED = "model.layers.1.mlp.down_proj.weight"


def tensors(seed: int, hidden: int = 8) -> dict[str, torch.Tensor]:
    """Random weights of a model with two layers."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (32, hidden),
        "model.layers.0.mlp.down_proj.weight": (hidden, 2 * hidden),
        DROPPED: (hidden, 2 * hidden),
        "model.norm.weight": (hidden,),
    }
    return {name: torch.randn(shape, generator=generator).half() for name, shape in shapes.items()}


def write_safetensors(file: Path, content: Mapping[str, torch.Tensor]) -> None:
    """A safetensors file, without the library of that name."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in sorted(content.items()):
        raw = tensor.numpy().tobytes()
        header[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    encoded = json.dumps(header).encode()
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def write_folder(folder: Path, content: Mapping[str, torch.Tensor]) -> Path:
    """A checkpoint folder with ``config.json`` and one safetensors file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(folder / "model.safetensors", content)
    return folder


def write_bin(folder: Path, content: Mapping[str, torch.Tensor]) -> Path:
    """A checkpoint folder with ``config.json`` and ``pytorch_model.bin``."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    torch.save(dict(content), folder / "pytorch_model.bin")
    return folder


def truncate(file: Path) -> None:
    """Cut off the last 40 % of a file."""
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * 0.6)])


def _copy(source: Path, name: str) -> Path:
    return Path(shutil.copytree(source, source.with_name(name)))


def _write_shards(folder: Path, content: Mapping[str, torch.Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    names = sorted(content)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[:1], names[1:2], names[2:]), start=1):
        file = f"model-0000{number}-of-00003.safetensors"
        write_safetensors(folder / file, {name: content[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def write_models(models: Path) -> Path:
    """All of them, under ``models``."""
    write_folder(models / "base", tensors(1))
    two = tensors(2)
    v2 = write_folder(models / "v2", two)
    write_folder(models / "v3", tensors(3))
    v2_bin = write_bin(models / "v2_bin", two)
    sharded = _write_shards(models / "sharded", tensors(5))
    write_folder(models / "missing", {name: tensor for name, tensor in two.items() if name != DROPPED})
    write_folder(models / "extra", two | {"model.layers.1.mlp.bogus.weight": torch.zeros(4, 4).half()})
    (models / "weightsonly").mkdir()
    shutil.copy(v2 / "model.safetensors", models / "weightsonly")
    (_copy(v2, "noweights") / "model.safetensors").unlink()
    (models / "emptydir").mkdir()
    (_copy(sharded, "lostshard") / "model-00003-of-00003.safetensors").unlink()
    truncate(_copy(v2, "truncated") / "model.safetensors")
    truncate(_copy(v2_bin, "truncated_bin") / "pytorch_model.bin")
    (_copy(v2, "zerolen") / "model.safetensors").write_bytes(b"")
    truncate(_copy(sharded, "halfbad") / "model-00003-of-00003.safetensors")
    write_folder(models / "wrongshape", tensors(4, hidden=4))
    write_folder(models / "lateshape", two | {"model.norm.weight": torch.ones(4).half()})
    return models
