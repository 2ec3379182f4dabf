"""Bytes turned at random and files cut anywhere: a fault or none, never an exception, never an endless look."""

import json
import os
import random
from pathlib import Path

import pytest
import torch

from sglang_telemetry.checkpoint.choice import SAFETENSORS_INDEX
from sglang_telemetry.checkpoint.fingerprint import fingerprint
from sglang_telemetry.checkpoint.headers import CheckpointError
from sglang_telemetry.checkpoint.validate import fault_of
from tests.checkpoint.files import saved, saved_bin, sharded

CONTENT = {"model.norm.weight": torch.ones(8).half(), "b": torch.zeros(2, 3), "c": torch.tensor(5)}


def check(folder: Path) -> str | None:
    """Both readers; what the first one says."""
    fault = fault_of(folder)
    assert fault is None or fault.isprintable()
    try:
        fingerprint(folder)
    except CheckpointError:
        pass
    return fault


def turned(raw: bytes, chance: random.Random, *, within: int) -> bytes:
    """A few bytes changed, put in or taken out."""
    changed = bytearray(raw)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(min(within, len(changed)))
        match chance.randrange(4):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at] = chance.choice(b'\x00\xff"{}[],:019')
            case 2:
                changed[at:at] = chance.randbytes(chance.randrange(1, 9))
            case _:
                del changed[at : at + chance.randrange(1, 9)]
    return bytes(changed)


@pytest.mark.parametrize("seed", range(4))
def test_safetensors(tmp_path: Path, seed: int) -> None:
    """Every byte of the header can be anything."""
    chance = random.Random(seed)
    file = saved(tmp_path, CONTENT) / "model.safetensors"
    raw = file.read_bytes()
    header = 8 + int.from_bytes(raw[:8], "little")
    faults = 0
    for _ in range(200):
        file.write_bytes(turned(raw, chance, within=header))
        faults += check(tmp_path) is not None
    assert faults > 100


@pytest.mark.parametrize("seed", range(4))
def test_torch(tmp_path: Path, seed: int) -> None:
    """Every byte of the archive and of the pickle in it."""
    chance = random.Random(seed)
    file = saved_bin(tmp_path, CONTENT) / "pytorch_model.bin"
    raw = file.read_bytes()
    for _ in range(200):
        file.write_bytes(turned(raw, chance, within=len(raw)))
        check(tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_pickle_alone(tmp_path: Path, seed: int) -> None:
    """Bits of the pickle turned in place, so that the archive around it stays whole."""
    chance = random.Random(seed)
    file = saved_bin(tmp_path, CONTENT) / "pytorch_model.bin"
    raw = file.read_bytes()
    start = raw.index(b"\x80\x02}")
    end = raw.index(b".PK", start)
    for _ in range(400):
        changed = bytearray(raw)
        for _turn in range(chance.choice((1, 2, 5))):
            changed[chance.randrange(start, end)] = chance.randrange(256)
        file.write_bytes(changed)
        check(tmp_path)


def test_index(tmp_path: Path) -> None:
    """The list of shards is a file like the others."""
    chance = random.Random(1)
    sharded(tmp_path, {"a.safetensors": CONTENT}, index=SAFETENSORS_INDEX)
    index = tmp_path / SAFETENSORS_INDEX
    raw = index.read_bytes()
    for _ in range(200):
        index.write_bytes(turned(raw, chance, within=len(raw)))
        check(tmp_path)


def test_config(tmp_path: Path) -> None:
    """A broken ``config.json`` beside good weights is nobody's concern here."""
    chance = random.Random(2)
    saved(tmp_path, CONTENT)
    raw = json.dumps({"hidden_size": 8, "architectures": ["A"], "text_config": {"hidden_size": 8}}).encode()
    for _ in range(200):
        (tmp_path / "config.json").write_bytes(turned(raw, chance, within=len(raw)))
        check(tmp_path)


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_every_cut(tmp_path: Path, kind: str) -> None:
    """A file that ends too early is found wherever it ends."""
    file = (saved if kind == "model.safetensors" else saved_bin)(tmp_path, CONTENT) / kind
    raw = file.read_bytes()
    assert fault_of(tmp_path) is None
    for length in range(len(raw) - 1, -1, -1 if kind == "model.safetensors" else -7):
        os.truncate(file, length)
        fault = fault_of(tmp_path)
        assert fault is not None, length
        assert fault.startswith(f"{kind}: {length} bytes "), fault
