"""Headers of safetensors files: what a good one says, and each way in which one is broken."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_telemetry.checkpoint.headers import Faulty, Place, TensorSpec, Unchecked, WeightFile, read_headers
from sglang_telemetry.checkpoint.safetensors import MAX_HEADER_BYTES
from tests.checkpoint.files import safetensors_bytes, saved, with_header, write

ONE = {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}


def fault(folder: Path) -> str:
    """What the reader says of a folder."""
    with pytest.raises(Faulty) as caught:
        read_headers(folder)
    return str(caught.value)


def test_all_that_a_header_says(tmp_path: Path) -> None:
    """Shapes, types, and the very place of each tensor's bytes."""
    content = {
        "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "b": torch.tensor(7, dtype=torch.int64),
        "c": torch.zeros(0, 5).half(),
        "d": torch.tensor([True, False]),
        "e": torch.ones(3).to(torch.float8_e4m3fn),
    }
    headers = read_headers(saved(tmp_path, content))
    assert headers.tensors == {
        "a": TensorSpec((2, 3), "F32"),
        "b": TensorSpec((), "I64"),
        "c": TensorSpec((0, 5), "F16"),
        "d": TensorSpec((2,), "BOOL"),
        "e": TensorSpec((3,), "F8_E4M3"),
    }
    file = tmp_path / "model.safetensors"
    assert headers.files == (WeightFile(name=file.name),)
    raw = file.read_bytes()
    place = headers.places["a"]
    assert raw[place.offset : place.offset + place.nbytes] == content["a"].numpy().tobytes()
    assert headers.places["e"] == Place(file.name, len(raw) - 3, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "0 bytes found: empty"),
        (b"1234", "4 bytes found, at least 8 expected: cut short"),
        (b"\xff" * 9, f"its header says that it has {2**64 - 1} bytes, at most {MAX_HEADER_BYTES} are allowed"),
        (with_header({"a": ONE}, b"x" * 12)[:20], "20 bytes found, at least 73 expected: cut short in its header"),
        (with_header({"a": ONE}, b"x" * 5), "78 bytes found, 85 expected: cut short"),
        (with_header({"a": ONE}, b"x" * 13), "86 bytes found, 85 expected: more than its header says"),
        (with_header(b"{nonsense"), "its header of 9 bytes is no JSON"),
        (with_header(b"[]"), "its header is no JSON object"),
        (with_header({"a": 5}), "a is no tensor in its header"),
        (with_header({"a": {"dtype": "F16"}}), "a has no dtype, shape and data_offsets in its header"),
        (with_header({"a": ONE | {"data_offsets": [0, True]}}), "a has no dtype, shape and data_offsets in its header"),
        (with_header({"a": ONE | {"data_offsets": [-1, 11]}}), "a has no dtype, shape and data_offsets in its header"),
        (with_header({"a": ONE | {"shape": [2**70, 0]}}), "a has no dtype, shape and data_offsets in its header"),
        (with_header({"a": ONE | {"shape": [1] * 65}}), "a has no dtype, shape and data_offsets in its header"),
        (with_header({"a": ONE | {"data_offsets": [12, 0]}}), "a ends at byte 0 of the data, before it begins at 12"),
        (with_header({"a": ONE | {"shape": [7]}}, b"x" * 12), "a takes 12 bytes, 14 expected of F16 [7]"),
        (with_header({"__metadata__": 5}), "its __metadata__ is no object of texts"),
        (
            with_header({"a": ONE, "b": ONE | {"data_offsets": [8, 20]}}, b"x" * 20),
            "b begins at byte 146, 150 expected: it overlaps the one before",
        ),
        (
            with_header({"a": ONE, "b": ONE | {"data_offsets": [14, 26]}}, b"x" * 26),
            "b begins at byte 153, 151 expected: a gap before it",
        ),
    ],
)
def test_broken(tmp_path: Path, content: bytes, said: str) -> None:
    """Each names the file, with what is found and what is expected."""
    assert fault(write(tmp_path, "model.safetensors", content)) == f"model.safetensors: {said}"


def test_a_type_that_is_newer_than_this_package_is_no_fault(tmp_path: Path) -> None:
    """Its size cannot be known; that it fills the file can."""
    folder = write(tmp_path, "model.safetensors", with_header({"a": ONE | {"dtype": "F3_NEW"}}, b"x" * 12))
    assert read_headers(folder).tensors == {"a": TensorSpec((2, 3), "F3_NEW")}


def test_a_header_that_is_too_long(tmp_path: Path) -> None:
    """Longer than the library takes: said before a byte of it is read."""
    length = MAX_HEADER_BYTES + 1
    write(tmp_path, "model.safetensors", length.to_bytes(8, "little"))
    os.truncate(tmp_path / "model.safetensors", 2 * length)
    assert "at most 100000000 are allowed" in fault(tmp_path)


@pytest.mark.parametrize("nested", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a":{"shape":' + b"[" * 5000])
def test_json_that_nests_for_ever(tmp_path: Path, nested: bytes) -> None:
    """A fault, and no end of the stack."""
    assert "is no JSON" in fault(write(tmp_path, "model.safetensors", with_header(nested)))


def test_a_header_full_of_names(tmp_path: Path) -> None:
    """A million entries are refused before they are made into objects."""
    entry = b'"%d":{"dtype":"F16","shape":[0,0,0,0,0,0,0,0,0,0,0,0],"data_offsets":[0,0]},'
    header = b"{" + b"".join(entry % number for number in range(1_000_001)) + b'"z":{}}'
    with pytest.raises(Unchecked, match=r"^model.safetensors: its header names more than 1000000 tensors$"):
        read_headers(write(tmp_path, "model.safetensors", with_header(header)))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """A FIFO would make the reader wait for ever, a folder and a dangling link are no files."""
    os.mkfifo(tmp_path / "model.safetensors")
    assert fault(tmp_path) == "model.safetensors: not a regular file"
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").mkdir()
    assert fault(tmp_path) == "model.safetensors: a folder, not a file"
    (tmp_path / "model.safetensors").rmdir()
    (tmp_path / "model.safetensors").symlink_to("nowhere")
    assert fault(tmp_path) == "model.safetensors: No such file or directory"
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("/dev/zero")
    assert fault(tmp_path) == "model.safetensors: not a regular file"


def test_a_link_to_a_good_file_is_followed(tmp_path: Path) -> None:
    """As the model caches of Hugging Face are made."""
    write(tmp_path / "blobs", "1", safetensors_bytes({"a": torch.ones(2)}))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to("../blobs/1")
    assert read_headers(tmp_path / "model").tensors == {"a": TensorSpec((2,), "F32")}


def test_of_a_gigabyte_only_the_header_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where the reads are made."""
    size = 1 << 30
    header = {"a": {"dtype": "BF16", "shape": [1 << 14, 1 << 15], "data_offsets": [0, size]}}
    raw = with_header(header)
    write(tmp_path, "model.safetensors", raw)
    os.truncate(tmp_path / "model.safetensors", len(raw) + size)
    lengths: list[int] = []
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        found = pread(fd, length, offset)
        lengths.append(len(found))
        return found

    monkeypatch.setattr(os, "pread", counted)
    assert read_headers(tmp_path).places["a"].nbytes == size
    assert sum(lengths) == len(raw)


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next save begins in the middle of the look: a fault, not an endless loop."""
    saved(tmp_path, {"a": torch.ones(2)})
    pread: Any = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, length, offset) if offset == 0 else b"")
    assert "ends at byte 8, " in fault(tmp_path)
