"""The digest of a checkpoint: the same for the same weights, another for one tensor that changed."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch

from sglang_telemetry.checkpoint.choice import SAFETENSORS_INDEX
from sglang_telemetry.checkpoint.fingerprint import Fingerprint, fingerprint
from sglang_telemetry.checkpoint.headers import Faulty, Unchecked, read_headers
from tests.checkpoint.files import safetensors_bytes, saved, saved_bin, sharded, weights, with_header, write

SMALL = 256 << 10


def of(folder: Path, budget_bytes: int = 16 << 20) -> Fingerprint:
    """The fingerprint of a folder that is read to its end."""
    found = fingerprint(folder, budget_bytes=budget_bytes)
    assert found is not None
    return found


def big() -> dict[str, torch.Tensor]:
    """8 MB in which one tensor is small."""
    return {
        "a": torch.arange(1 << 20, dtype=torch.float32),
        "b": torch.arange(1 << 20, dtype=torch.float32) * 2,
        "norm": torch.ones(64),
    }


def test_the_same_weights_saved_again(tmp_path: Path) -> None:
    """In another file, with other metadata, at another time, in another kind of file, in shards."""
    first = of(saved(tmp_path / "a", weights()))
    size = sum(tensor.nbytes for tensor in weights().values())
    assert (first.sampled_bytes, len(first.digest)) == (size, 64)
    again = write(tmp_path / "b", "other.safetensors", safetensors_bytes(weights(), metadata={"step": "7"}))
    os.utime(again / "other.safetensors", (0, 0))
    assert of(again) == first
    assert of(saved_bin(tmp_path / "c", dict(reversed(weights().items())))) == first
    names = sorted(weights())
    parts = {"1.safetensors": names[3:], "2.safetensors": names[:3]}
    shards = {file: {name: weights()[name] for name in part} for file, part in parts.items()}
    assert of(sharded(tmp_path / "d", shards, index=SAFETENSORS_INDEX)) == first


def test_names_shapes_and_types_count(tmp_path: Path) -> None:
    """The same bytes under another name are other weights."""
    contents = [
        {"a": torch.zeros(4)},
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int32)},
        {"a": torch.zeros(2), "b": torch.zeros(2)},
        {"a": torch.zeros(2), "('b'": torch.zeros(2)},
    ]
    found = [of(saved(tmp_path / str(number), content)).digest for number, content in enumerate(contents)]
    assert len(set(found)) == len(contents)


@pytest.mark.parametrize("save", [saved, saved_bin])
@pytest.mark.parametrize("name", sorted(weights()))
def test_one_changed_value(tmp_path: Path, name: str, save: object) -> None:
    """Of any tensor, its last."""
    assert callable(save)
    first = of(save(tmp_path / "a", weights()))
    changed = weights()
    changed[name].reshape(-1)[-1] += 1
    assert of(save(tmp_path / "b", changed)).digest != first.digest


def test_a_sample_is_small_and_deterministic(tmp_path: Path) -> None:
    """About the budget, the same each time, and of both kinds of file."""
    folder = saved(tmp_path / "a", big())
    first = of(folder, SMALL)
    assert SMALL // 2 <= first.sampled_bytes <= SMALL + 256
    assert of(Path(shutil.copytree(folder, tmp_path / "b")), SMALL) == first
    assert of(saved_bin(tmp_path / "c", big()), SMALL) == first


@pytest.mark.parametrize("name", ["a", "b", "norm"])
@pytest.mark.parametrize("budget", [0, 1, SMALL])
def test_a_sample_sees_an_update_of_one_tensor(tmp_path: Path, name: str, budget: int) -> None:
    """One value of a hundred changes, in one tensor alone, however small the budget is."""
    first = of(saved(tmp_path / "a", big()), budget)
    changed = big()
    changed[name][torch.randperm(len(changed[name]), generator=torch.Generator().manual_seed(1))[::97]] += 1
    assert of(saved(tmp_path / "b", changed), budget).digest != first.digest


def mixture(folder: Path, count: int, nbytes: int) -> Path:
    """A file of so many bf16 tensors that holds nothing but zeros, and takes no room."""
    entries = {
        f"model.layers.{number}.weight": {
            "dtype": "BF16",
            "shape": [nbytes // 2],
            "data_offsets": [number * nbytes, (number + 1) * nbytes],
        }
        for number in range(count)
    }
    raw = with_header(entries)
    write(folder, "model.safetensors", raw)
    os.truncate(folder / "model.safetensors", len(raw) + count * nbytes)
    return folder


def test_many_tensors_stay_near_the_budget(tmp_path: Path) -> None:
    """A mixture of 18,867 tensors with 61 GB, of which four times the budget are read at most, some of each."""
    folder = mixture(tmp_path, 18_867, 3_233_792)
    first = of(folder)
    assert 18_867 * 4 * 512 <= first.sampled_bytes <= 4 * (16 << 20)
    place = read_headers(folder).places["model.layers.9000.weight"]
    chance = torch.Generator().manual_seed(1)
    changed = torch.rand(place.nbytes // 2, generator=chance).lt(0.01).to(torch.int16).numpy().tobytes()
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(place.offset)
        file.write(changed)
    assert of(folder).digest != first.digest


def test_each_end_of_a_tensor_is_in_the_sample(tmp_path: Path) -> None:
    """The first and the last value, of which rows of an embedding may be all that changed."""
    first = of(saved(tmp_path / "a", big()), SMALL)
    for place in (0, -1):
        changed = big()
        changed["a"][place] += 1
        assert of(saved(tmp_path / f"b{place}", changed), SMALL).digest != first.digest


def test_shared_storage_counts_once(tmp_path: Path) -> None:
    """Tied tensors are not read twice."""
    tensor = torch.arange(100.0)
    found = of(saved_bin(tmp_path, {"a": tensor, "b": tensor}))
    assert found.sampled_bytes == 400


@pytest.mark.parametrize("after", [0, 1, 5])
def test_it_can_be_abandoned(tmp_path: Path, after: int) -> None:
    """It is asked before each read, and reads nothing more when told so."""
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) > after

    assert fingerprint(saved(tmp_path, weights()), stop=stop) is None
    assert len(asked) == after + 1


def test_nothing_to_read(tmp_path: Path) -> None:
    """Empty tensors and no tensors."""
    assert of(saved(tmp_path / "a", {"a": torch.zeros(0)})).sampled_bytes == 0
    assert of(saved(tmp_path / "b", {})).sampled_bytes == 0


def test_broken_and_unknown(tmp_path: Path) -> None:
    """No digest of half a checkpoint, nor of what is not read."""
    saved(tmp_path / "a", weights())
    os.truncate(tmp_path / "a" / "model.safetensors", 2000)
    with pytest.raises(Faulty):
        fingerprint(tmp_path / "a")
    with pytest.raises(Unchecked):
        fingerprint(saved_bin(tmp_path / "b", weights(), _use_new_zipfile_serialization=False))


def test_a_read_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No digest, and no fault either: the file server has a hiccup."""
    folder = saved(tmp_path, weights())
    end = read_headers(folder).places["model.norm.weight"].offset
    pread = os.pread

    def failing(fd: int, length: int, offset: int) -> bytes:
        if offset >= end:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(Unchecked, match=r"^model.safetensors: Stale file handle$"):
        fingerprint(folder)


def test_files_are_closed(tmp_path: Path) -> None:
    """After a whole look, an abandoned one and a broken one."""
    folder = saved(tmp_path, weights())
    before = len(os.listdir("/proc/self/fd"))
    fingerprint(folder)
    fingerprint(folder, stop=lambda: True)
    os.truncate(folder / "model.safetensors", 100)
    with pytest.raises(Faulty):
        fingerprint(folder)
    assert len(os.listdir("/proc/self/fd")) == before
