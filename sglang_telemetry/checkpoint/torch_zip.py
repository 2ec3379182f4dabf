"""A file of ``torch.save``: a zip of ``<name>/data.pkl``, which names the tensors, and ``<name>/data/*``, their bytes.

The checksums of the zip are not looked at: torch can be told not to write them.
"""

import io
import zipfile

from sglang_telemetry.checkpoint.errors import CheckpointError, Unchecked
from sglang_telemetry.checkpoint.opened import OpenFile
from sglang_telemetry.checkpoint.tensors import BITS, Place, TensorSpec
from sglang_telemetry.checkpoint.torch_pickle import Stored, read_pickle

MAX_DIRECTORY_BYTES = 32 << 20
"""Longest list of a zip's members that is read; torch writes about 100 bytes a storage."""

MAX_PICKLE_BYTES = 64 << 20
"""Longest pickle that is read."""

_OLD = (b"\x80", b"L")  # the formats before torch 1.6 are pickles from the first byte on
_LOCAL_HEADER = 30


def read_torch(file: OpenFile) -> tuple[dict[str, tuple[TensorSpec, Place]], str | None]:
    """All tensors of a file by name, and under which key they lie; None when they are at the top.

    Raises:
        Faulty: It is cut or broken, or its pickle names what weights have no need of.
        Unchecked: It is of torch's old format, compressed, longer than what is read here, or holds tensors of a kind
            that is not known here.
    """
    members = _members(file)
    pickle = next((name for name in members if name.endswith("/data.pkl")), None)
    if pickle is None:
        raise file.fault("there is no data.pkl in it")
    offset, size = _data(file, members[pickle])
    if size > MAX_PICKLE_BYTES:
        raise file.unchecked(f"its data.pkl has {size} bytes, at most {MAX_PICKLE_BYTES} are read")
    pickled = file.read(offset, size)
    try:
        stored, inside = read_pickle(pickled)
    except CheckpointError as error:
        raise type(error)(f"{file.name}: {error}") from error
    folder = pickle.removesuffix("data.pkl") + "data/"
    storages: dict[str, tuple[int, int]] = {}
    tensors: dict[str, tuple[TensorSpec, Place]] = {}
    for name, tensor in stored.items():
        member = members.get(folder + tensor.key)
        if member is None:
            raise file.fault(f"the data of {name} is missing: there is no data/{tensor.key} in it")
        if tensor.key not in storages:
            storages[tensor.key] = _data(file, member)
        tensors[name] = _tensor(file, name, tensor, *storages[tensor.key])
    return tensors, inside


def _members(file: OpenFile) -> dict[str, zipfile.ZipInfo]:
    if file.size == 0:
        raise file.fault("0 bytes found: empty")
    head = file.read(0, min(4, file.size))
    if head[:2] != b"PK":
        if head.startswith(_OLD) or (file.size >= 262 and file.read(257, 5) == b"ustar"):
            raise Unchecked(f"{file.name}: torch's format before 1.6, which cannot be checked without unpickling")
        raise file.fault(f"{file.size} bytes that begin with {head.hex()}: no file of torch.save")
    try:
        with zipfile.ZipFile(_Window(file)) as archive:
            return {member.filename: member for member in archive.infolist()}
    except (zipfile.BadZipFile, OSError) as error:  # an OSError is the window's own: a read that fails is Unchecked
        raise file.fault(f"{file.size} bytes found, the end of the archive is missing or broken: cut short") from error


def _data(file: OpenFile, member: zipfile.ZipInfo) -> tuple[int, int]:
    """Where the bytes of a member lie, and how many they are."""
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise Unchecked(f"{file.name}: {member.filename} is compressed, which torch does not do")
    at, size = member.header_offset, member.file_size
    if not 0 <= at <= file.size - _LOCAL_HEADER:
        raise file.fault(f"{file.size} bytes found, {member.filename} begins at {at}: cut short")
    header = file.read(at, _LOCAL_HEADER)
    if header[:4] != b"PK\x03\x04":
        raise file.fault(f"there is no {member.filename} at byte {at}, where the archive's list says so")
    offset = at + _LOCAL_HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    if offset + size > file.size:
        raise file.fault(f"{file.size} bytes found, {member.filename} ends at {offset + size}: cut short")
    return offset, size


def _tensor(file: OpenFile, name: str, tensor: Stored, offset: int, size: int) -> tuple[TensorSpec, Place]:
    bits = BITS.get(tensor.dtype)
    if bits is None or bits % 8:
        raise Unchecked(f"{file.name}: {name} is of the type {tensor.dtype}, which is not known here")
    item = bits // 8
    needed = (tensor.storage_values or 0) * item
    spec = TensorSpec(tensor.shape, tensor.dtype)
    if spec.values:
        # With a stride of 0 or of a part of a bigger tensor, the bytes are fewer or more than the values.
        span = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride, strict=True))
        needed = max(needed, (tensor.offset + span) * item)
    else:
        span = 0
    if needed > size:
        raise file.fault(f"the data of {name} has {size} bytes, {needed} expected")
    return spec, Place(file.name, offset + tensor.offset * item if span else offset, span * item)


class _Window(io.RawIOBase):
    """The file as ``zipfile`` wants it, which reads as much at once as a broken length says."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        if at < 0:
            raise OSError("before the start of the file")
        self._at = at
        return at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        size = left if size is None or size < 0 else min(size, left)
        if size > MAX_DIRECTORY_BYTES:
            raise self._file.unchecked(
                f"the archive's list of members has {size} bytes, at most {MAX_DIRECTORY_BYTES} are read"
            )
        found = self._file.read(self._at, size)
        self._at += size
        return found
