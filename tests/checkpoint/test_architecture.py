"""What ``config.json`` says of the model."""

import json
import os
from pathlib import Path

import pytest

from sglang_telemetry.checkpoint.architecture import Architecture, architecture_of, differences
from tests.checkpoint.files import write

QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "head_dim": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_theta": float("inf"),
}


def configured(folder: Path, config: object) -> Path:
    """A folder with this ``config.json``."""
    return write(folder, "config.json", json.dumps(config).encode())


def test_all_fields(tmp_path: Path) -> None:
    """Of a model as transformers writes it, with Python's own spelling of infinity."""
    assert architecture_of(configured(tmp_path, QWEN)) == Architecture(
        model_type="qwen2",
        architectures=("Qwen2ForCausalLM",),
        hidden_size=64,
        num_hidden_layers=2,
        vocab_size=512,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        tie_word_embeddings=False,
    )


def test_nested_sizes(tmp_path: Path) -> None:
    """Sizes of a model that sees, a quantised one."""
    config = {"text_config": {"hidden_size": 8}, "quantization_config": {"bits": 4}}
    assert architecture_of(configured(tmp_path, config)) == Architecture(hidden_size=8, quantized=True)


@pytest.mark.parametrize("text", [b"", b"[]", b"5", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000])
def test_none(tmp_path: Path, text: bytes) -> None:
    """A file that cannot be read says nothing."""
    assert architecture_of(write(tmp_path, "config.json", text)) is None


def test_no_file(tmp_path: Path) -> None:
    """None there, a FIFO, a folder."""
    assert architecture_of(tmp_path) is None
    os.mkfifo(tmp_path / "config.json")
    assert architecture_of(tmp_path) is None
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    assert architecture_of(tmp_path) is None


def test_values_of_other_types_are_unknown(tmp_path: Path) -> None:
    """Numbers that are texts, names that are numbers."""
    config = {"hidden_size": "64", "vocab_size": True, "architectures": [5], "model_type": 5, "text_config": []}
    assert architecture_of(configured(tmp_path, config)) == Architecture()


def test_differences() -> None:
    """What both say and say otherwise; the unknown is no difference."""
    here = Architecture(hidden_size=64, model_type="qwen2", architectures=("A", "B"), head_dim=8)
    there = Architecture(hidden_size=128, model_type="qwen2", architectures=("C",), quantized=True)
    assert differences(here, there) == (
        "architectures is A, B here, C there",
        "hidden_size is 64 here, 128 there",
        "quantized is False here, True there",
    )
    assert differences(here, here) == ()
