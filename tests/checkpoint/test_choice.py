"""Which files are the weights: the choice of SGLang 0.5.23."""

import json
from pathlib import Path

import pytest
import torch

from sglang_telemetry.checkpoint.choice import BIN_INDEX, SAFETENSORS_INDEX, choose
from sglang_telemetry.checkpoint.headers import Faulty, Unchecked, read_headers
from tests.checkpoint.files import saved, saved_bin, sharded, weights, write

ONE, TWO, THREE = (f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
BINS = tuple(f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2))


def touch(folder: Path, *names: str) -> Path:
    """Empty files in a folder."""
    for name in names:
        write(folder, name, b"")
    return folder


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("model.safetensors", "pytorch_model.bin", "x.pt"), ("model.safetensors",)),
        (("b.safetensors", "a.safetensors"), ("a.safetensors", "b.safetensors")),
        (("pytorch_model.bin", "training_args.bin", "my_optimizer.bin", "x.pt"), ("pytorch_model.bin",)),
        (("model.pt", "scheduler.pt"), ("model.pt",)),
        ((".hidden.safetensors", "a.bin"), ("a.bin",)),
        (("consolidated.safetensors", "model.safetensors"), ("model.safetensors",)),
        (("consolidated.safetensors", "x.safetensors"), ("consolidated.safetensors", "x.safetensors")),
        (("a.SAFETENSORS", "b.bin"), ("b.bin",)),
    ],
)
def test_kinds(tmp_path: Path, names: tuple[str, ...], chosen: tuple[str, ...]) -> None:
    """Safetensors first, then ``.bin``, then ``.pt``; never two kinds, and no optimizers."""
    assert choose(str(touch(tmp_path, *names))).files == chosen


@pytest.mark.parametrize("names", [(), ("config.json",), ("training_args.bin",), ("optimizer.pt",)])
def test_none(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A folder with anything but weights."""
    with pytest.raises(Faulty, match=r"^no weight files$"):
        choose(str(touch(tmp_path, *names)))


@pytest.mark.parametrize("name", ["model.gguf", "model.pth"])
def test_other_kinds_are_unknown(tmp_path: Path, name: str) -> None:
    """A server can be told to load them; they are not read here."""
    with pytest.raises(Unchecked, match=name):
        choose(str(touch(tmp_path, name)))


def shards() -> dict[str, dict[str, torch.Tensor]]:
    """A model in three parts."""
    content = weights()
    names = sorted(content)
    parts = {ONE: names[:2], TWO: names[2:3], THREE: names[3:]}
    return {file: {name: content[name] for name in part} for file, part in parts.items()}


def test_shards(tmp_path: Path) -> None:
    """All tensors of all shards; what the index does not name is not read, whole or not."""
    sharded(tmp_path, shards(), index=SAFETENSORS_INDEX)
    write(tmp_path, "old.safetensors", b"torn")
    headers = read_headers(tmp_path)
    assert set(headers.tensors) == set(weights())
    assert [file.name for file in headers.files] == [ONE, TWO, THREE]
    assert headers.promised == frozenset(weights())
    assert {place.file for place in headers.places.values()} == {ONE, TWO, THREE}


def test_missing_shards(tmp_path: Path) -> None:
    """Named by the index, not there."""
    sharded(tmp_path, shards(), index=SAFETENSORS_INDEX)
    (tmp_path / TWO).unlink()
    (tmp_path / THREE).unlink()
    with pytest.raises(Faulty) as caught:
        read_headers(tmp_path)
    assert str(caught.value) == f"{SAFETENSORS_INDEX}: names 2 missing shards: {TWO}, {THREE}"


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {"a": 5}}', "[" * 100_000, "\udcff"]
)
def test_an_index_that_is_none(tmp_path: Path, index: str) -> None:
    """SGLang cannot read it either."""
    saved(tmp_path, weights())
    (tmp_path / SAFETENSORS_INDEX).write_text(index, errors="surrogateescape")
    with pytest.raises(Faulty, match=f"^{SAFETENSORS_INDEX}: "):
        read_headers(tmp_path)


def test_an_index_that_points_out_of_the_folder(tmp_path: Path) -> None:
    """What lies elsewhere is not opened."""
    write(tmp_path, "secret.safetensors", b"secret")
    saved(tmp_path / "c", weights())
    index = {"weight_map": {"a": "../secret.safetensors", "b": "model.safetensors"}}
    (tmp_path / "c" / SAFETENSORS_INDEX).write_text(json.dumps(index))
    assert choose(str(tmp_path / "c")).files == ("model.safetensors",)


def test_shards_of_torch(tmp_path: Path) -> None:
    """SGLang reads all ``.bin`` files that there are; a shard that is gone leaves old weights in the server."""
    content = weights()
    names = sorted(content)
    parts = zip(BINS, (names[:3], names[3:]), strict=True)
    sharded(tmp_path, {file: {name: content[name] for name in part} for file, part in parts}, index=BIN_INDEX)
    assert set(read_headers(tmp_path).tensors) == set(content)
    (tmp_path / BINS[1]).unlink()
    with pytest.raises(Faulty, match=f"^{BIN_INDEX}: names 1 missing shards: {BINS[1]}$"):
        read_headers(tmp_path)


def test_the_index_of_an_older_save_is_no_fault(tmp_path: Path) -> None:
    """transformers removes the old shards but not their index, which SGLang does not read for this kind."""
    saved_bin(tmp_path, weights())
    (tmp_path / BIN_INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(weights(), BINS[0])}))
    assert choose(str(tmp_path)).files == ("pytorch_model.bin",)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    """Which one the server ends with is not known."""
    content = {"a": torch.ones(2), "b": torch.ones(3)}
    sharded(tmp_path, {ONE: content, TWO: {"b": torch.zeros(3)}}, index=None)
    with pytest.raises(Faulty) as caught:
        read_headers(tmp_path)
    assert str(caught.value) == f"{TWO}: 1 tensors are in {ONE} too, and either may win: b"
