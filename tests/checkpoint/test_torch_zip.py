"""Files of ``torch.save``: read without running what their pickle says, whatever it says."""

import collections
import io
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sglang_telemetry.checkpoint.headers import Faulty, TensorSpec, Unchecked, WeightFile, read_headers
from sglang_telemetry.checkpoint.torch_pickle import MAX_OPERATIONS
from sglang_telemetry.checkpoint.torch_zip import MAX_PICKLE_BYTES
from tests.checkpoint.files import saved_bin, weights, write


def fault(folder: Path) -> str:
    """What the reader says of a folder."""
    with pytest.raises(Faulty) as caught:
        read_headers(folder)
    return str(caught.value)


def specs(content: dict[str, torch.Tensor], dtype: str = "BF16") -> dict[str, TensorSpec]:
    """What the reader should find."""
    return {name: TensorSpec(tuple(tensor.shape), dtype) for name, tensor in content.items()}


def zipped(folder: Path, pickled: bytes, *, compression: int = zipfile.ZIP_STORED, **storages: bytes) -> Path:
    """A file with any pickle, and with the storages ``_0``, ``_1``, ..."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key.removeprefix('_')}", data)
    return write(folder, "pytorch_model.bin", made.getvalue())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_state_dict(tmp_path: Path, protocol: int) -> None:
    """Names, shapes, types and the very bytes, in each protocol that pickle has."""
    content = weights()
    headers = read_headers(saved_bin(tmp_path, content, pickle_protocol=protocol))
    assert headers.tensors == specs(content)
    raw = (tmp_path / "pytorch_model.bin").read_bytes()
    assert headers.files == (WeightFile(name="pytorch_model.bin"),)
    for name, place in headers.places.items():
        data = content[name].view(torch.uint8).numpy().tobytes()
        assert raw[place.offset : place.offset + place.nbytes] == data, name


def test_a_module_with_all_that_torch_puts_into_it(tmp_path: Path) -> None:
    """Parameters, buffers of other types, the module's metadata, and values that are no tensors."""
    module = nn.BatchNorm1d(3)
    extra = {
        "size": torch.Size([1]),
        "device": torch.device("cpu"),
        "dtype": torch.float16,
        "layout": torch.strided,
        "set": {1, 2},
        "counter": collections.Counter("aab"),
        "step": 5,
        "nothing": None,
        ("odd", "key"): 1,
    }
    content = collections.OrderedDict(module.state_dict()) | {"p": module.weight} | extra
    assert read_headers(saved_bin(tmp_path, content)).tensors == {
        "weight": TensorSpec((3,), "F32"),
        "bias": TensorSpec((3,), "F32"),
        "running_mean": TensorSpec((3,), "F32"),
        "running_var": TensorSpec((3,), "F32"),
        "num_batches_tracked": TensorSpec((), "I64"),
        "p": TensorSpec((3,), "F32"),
    }


@pytest.mark.parametrize(
    ("dtype", "spelling"),
    [
        ("float64", "F64"),
        ("float32", "F32"),
        ("float16", "F16"),
        ("bfloat16", "BF16"),
        ("int8", "I8"),
        ("uint8", "U8"),
        ("int16", "I16"),
        ("int32", "I32"),
        ("int64", "I64"),
        ("bool", "BOOL"),
        ("complex64", "C64"),
        ("uint16", "U16"),
        ("uint32", "U32"),
        ("uint64", "U64"),
        ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e5m2", "F8_E5M2"),
    ],
)
def test_each_type(tmp_path: Path, dtype: str, spelling: str) -> None:
    """Old ones have a storage of their own type, newer ones one of bytes."""
    tensor = torch.zeros(2, 3).to(getattr(torch, dtype))
    headers = read_headers(saved_bin(tmp_path, {"a": tensor}))
    assert headers.tensors == {"a": TensorSpec((2, 3), spelling)}
    assert headers.places["a"].nbytes == 6 * tensor.element_size()


def test_views_of_one_storage(tmp_path: Path) -> None:
    """A part, a transposed and an expanded tensor lie within the bytes that they use."""
    whole = torch.arange(12.0).reshape(3, 4)
    content = {"whole": whole, "tied": whole, "row": whole[1], "turned": whole.t(), "one": whole[0, 0].expand(9)}
    headers = read_headers(saved_bin(tmp_path, content))
    start = headers.places["whole"].offset
    assert {name: (place.offset - start, place.nbytes) for name, place in headers.places.items()} == {
        "whole": (0, 48),
        "tied": (0, 48),
        "row": (16, 16),
        "turned": (0, 48),
        "one": (0, 4),
    }
    assert headers.tensors["turned"] == TensorSpec((4, 3), "F32")
    assert headers.tensors["one"] == TensorSpec((9,), "F32")


@pytest.mark.parametrize("key", ["state_dict", "model", "anything"])
def test_tensors_below_a_key(tmp_path: Path, key: str) -> None:
    """As training frameworks save them; where they lie is told apart."""
    content = weights()
    headers = read_headers(saved_bin(tmp_path, {"epoch": 3, "none": {}, key: content}))
    assert headers.tensors == specs(content)
    assert [file.inside for file in headers.files] == [key]


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [2, 4])
def test_code_is_never_run(tmp_path: Path, protocol: int) -> None:
    """A pickle that calls ``os.system``: the name is told, and nothing has happened."""
    happened = tmp_path / "happened"
    folder = saved_bin(
        tmp_path / "c", {"a": torch.ones(2), "b": Hostile(f"touch {happened}")}, pickle_protocol=protocol
    )
    assert fault(folder) == "pytorch_model.bin: not read: it names posix.system"
    assert not happened.exists()


@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "not read: it names os.system"),
        (b"(S'true'\nios\nsystem\n.", "not read: its pickle has the operation INST"),
        (b"(cos\nsystem\nS'true'\no.", "not read: it names os.system"),
        (b"\x80\x02\x82\x01.", "not read: its pickle has the operation EXT1"),
        (b"cbuiltins\neval\n.", "not read: it names builtins.eval"),
        (b"ctorch\nload\n(S'x'\ntR.", "not read: it calls torch.load"),
        (b"ctorch\nhub.load\n.", "not read: it names torch.hub.load"),
        (b"\x80\x02]q\x00.", "not read: it holds no dictionary of tensors"),
        (b"\x80\x02}", "its pickle is broken: "),
        (b"", "its pickle is broken: "),
        (b"\xff\xff", "its pickle is broken: "),
        (b"}r\xff\xff\xff\xff.", None),  # a place in the memo for which an Unpickler takes 64 GB
        (b"X\xff\xff\xff\xffa.", "its pickle is broken: "),
        (b"\x8d" + b"\xff" * 7 + b"\x7f" + b".", "its pickle is broken: "),
    ],
)
def test_hostile_pickles(tmp_path: Path, pickled: bytes, said: str | None) -> None:
    """Names, operations and lengths that no checkpoint has."""
    folder = zipped(tmp_path, pickled)
    if said is None:
        assert read_headers(folder).tensors == {}
    else:
        assert fault(folder).startswith(f"pytorch_model.bin: {said}")


@pytest.mark.parametrize("pickled", [b"ctorch._utils\n_rebuild_tensor_v2\n)R.", b".", b"}h\x05."])
def test_a_pickle_that_is_not_understood_is_no_fault(tmp_path: Path, pickled: bytes) -> None:
    """torch may write tomorrow what this reader does not know."""
    with pytest.raises(Unchecked, match=r"^pytorch_model.bin: its pickle is not understood: "):
        read_headers(zipped(tmp_path, pickled))


def test_a_key_that_takes_for_ever_to_hash(tmp_path: Path) -> None:
    """A tuple of twice the tuple before, 200 deep: as a key of a dictionary it would be visited 2**200 times."""
    deep = b"\x80\x02}K\x00" + b"".join(b"q\x00h\x00\x86" for _ in range(200)) + b"K\x01s."
    assert read_headers(zipped(tmp_path, deep)).tensors == {}


def test_a_pickle_without_an_end_in_sight(tmp_path: Path) -> None:
    """More operations than a checkpoint has are not done."""
    with pytest.raises(Unchecked, match=f"^pytorch_model.bin: its pickle has more than {MAX_OPERATIONS} operations$"):
        read_headers(zipped(tmp_path, b"\x80\x02" + b"N" * (MAX_OPERATIONS + 1) + b"."))


def test_a_pickle_that_is_too_long(tmp_path: Path) -> None:
    """It may be whole: 64 MiB are our limit, not torch's."""
    with pytest.raises(Unchecked, match=f"has {MAX_PICKLE_BYTES + 1} bytes, at most {MAX_PICKLE_BYTES} are read"):
        read_headers(zipped(tmp_path, bytes(MAX_PICKLE_BYTES + 1)))


def test_a_zip_bomb(tmp_path: Path) -> None:
    """A gigabyte of zeros in a megabyte is not unpacked; torch compresses nothing."""
    folder = zipped(tmp_path, b"0" * (200 << 20), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(Unchecked, match="compressed"):
        read_headers(folder)


def described(key: str, count: int, shape: tuple[int, ...], offset: int = 0) -> bytes:
    """The pickle of one float32 tensor ``a``."""
    made, storage = io.BytesIO(), object()

    class Writer(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return ("storage", torch.FloatStorage, key, "cpu", count) if value is storage else None

    stride = tuple(torch.empty(shape, device="meta").stride())

    class Tensor:
        def __reduce__(self) -> tuple[Any, ...]:
            return torch._utils._rebuild_tensor_v2, (storage, offset, shape, stride, False, {})

    Writer(made, protocol=2).dump({"a": Tensor()})
    return made.getvalue()


@pytest.mark.parametrize(
    ("count", "shape", "offset", "said"),
    [
        (4, (4,), 0, None),
        (5, (4,), 0, "the data of a has 16 bytes, 20 expected"),
        (4, (5,), 0, "the data of a has 16 bytes, 20 expected"),
        (4, (2, 2), 1, "the data of a has 16 bytes, 20 expected"),
        (4, (1 << 50,), 0, f"the data of a has 16 bytes, {4 << 50} expected"),
    ],
)
def test_storages_that_are_too_small(
    tmp_path: Path, count: int, shape: tuple[int, ...], offset: int, said: str | None
) -> None:
    """What the pickle says is compared with what the archive holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = zipped(tmp_path, described("0", count, shape, offset), _0=bytes(16))
    if said is None:
        assert read_headers(folder).tensors == {"a": TensorSpec((4,), "F32")}
    else:
        assert fault(folder) == f"pytorch_model.bin: {said}"


def test_a_storage_that_is_not_there(tmp_path: Path) -> None:
    """Named by the pickle, not in the archive."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = zipped(tmp_path, described("7", 4, (4,)), _0=bytes(16))
    assert fault(folder) == "pytorch_model.bin: the data of a is missing: there is no data/7 in it"


def test_an_archive_without_a_pickle(tmp_path: Path) -> None:
    """A zip of something else."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("hello", "world")
    assert fault(write(tmp_path, "a.bin", made.getvalue())) == "a.bin: there is no data.pkl in it"


def test_cut_short(tmp_path: Path) -> None:
    """The list of a zip's members is at its end, so every cut takes it."""
    saved_bin(tmp_path, weights())
    file = tmp_path / "pytorch_model.bin"
    size = file.stat().st_size
    for left in (size - 1, size // 2, 5):
        os.truncate(file, left)
        assert fault(tmp_path).startswith(f"pytorch_model.bin: {left} bytes found, the end of the archive is missing")
    os.truncate(file, 0)
    assert fault(tmp_path) == "pytorch_model.bin: 0 bytes found: empty"
    os.truncate(file, 4096)
    assert fault(tmp_path) == "pytorch_model.bin: 4096 bytes that begin with 00000000: no file of torch.save"


def test_a_list_of_members_that_is_too_long(tmp_path: Path) -> None:
    """A broken length in a big file must not be taken for memory."""
    saved_bin(tmp_path, {"a": torch.ones(2)})
    file = tmp_path / "pytorch_model.bin"
    raw = file.read_bytes()
    end = raw.rindex(b"PK\x05\x06")
    file.write_bytes(raw[:4])
    os.truncate(file, 1 << 30)
    tail = bytearray(raw[end:])
    tail[12:16] = (900 << 20).to_bytes(4, "little")
    with file.open("ab") as appended:
        appended.write(tail)
    with pytest.raises(Unchecked, match="at most 33554432 are read"):
        read_headers(tmp_path)


def test_the_old_format_is_unknown(tmp_path: Path) -> None:
    """It cannot be checked without unpickling, and is no fault."""
    folder = saved_bin(tmp_path, {"a": torch.ones(2)}, _use_new_zipfile_serialization=False)
    with pytest.raises(Unchecked, match=r"before 1\.6"):
        read_headers(folder)


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_a_storage_are_unknown(tmp_path: Path) -> None:
    """Sparse ones, say: torch may load them, so they are no fault."""
    folder = saved_bin(tmp_path, {"a": torch.eye(3).to_sparse()})
    with pytest.raises(Unchecked, match="_rebuild_sparse_tensor"):
        read_headers(folder)


def test_checksums_are_not_looked_at(tmp_path: Path) -> None:
    """torch can be told to write none that are true; it loads such a file all the same."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        saved_bin(tmp_path, {"a": torch.ones(2)})
    finally:
        torch.serialization.set_crc32_options(before)
    assert read_headers(tmp_path).tensors == {"a": TensorSpec((2,), "F32")}
