"""The look at a checkpoint folder that goes into a sync's record."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sglang_telemetry.checkpoint.filesystem import facts_of
from sglang_telemetry.checkpoint.folder import look
from sglang_telemetry.checkpoint.headers import TensorSpec
from sglang_telemetry.events import Checkpoint
from tests.checkpoint.files import saved, weights, write
from tests.harness.mounts import tmpfs


def test_shallow(tmp_path: Path) -> None:
    """Sizes and the file system, and no file is opened."""
    with tmpfs(tmp_path / "m", size="1m") as mount:
        write(saved(mount / "c", weights()), "config.json", b"{nonsense")
        (mount / "c" / "below").mkdir()
        size = (mount / "c" / "model.safetensors").stat().st_size
        facts = facts_of(mount)
        assert look(mount / "c") == Checkpoint(
            path=str(mount / "c"),
            files=1,
            bytes=size + 9,
            free_bytes=facts.free_bytes,
            free_inodes=facts.free_inodes,
            read_only=False,
            fs_type="tmpfs",
        )


def test_deep(tmp_path: Path) -> None:
    """What is wrong with the files, and with the tensors when the model's are known."""
    folder = saved(tmp_path, weights())
    assert look(folder, deep=True).fault is None
    expected = {"a": TensorSpec((2,), "F32"), "b": TensorSpec((2,), "F32")}
    assert look(folder, deep=True, expected=expected).fault == "2 of 2 tensors are missing: a, b"
    tied = look(folder, deep=True, expected=expected, ties=[("a", "model.norm.weight"), ("b", "model.norm.weight")])
    assert tied.fault is None
    assert look(folder, expected=expected).fault is None
    os.truncate(folder / "model.safetensors", 0)
    assert look(folder, deep=True).fault == "model.safetensors: 0 bytes found: empty"


def test_empty(tmp_path: Path) -> None:
    """A folder without weights, at a deep look."""
    found = look(tmp_path, deep=True)
    assert (found.files, found.bytes, found.fault) == (0, 0, "no weight files")
    assert look(tmp_path).fault is None


def test_no_folder(tmp_path: Path) -> None:
    """Its parent's file system, and why it could not be looked at."""
    found = look(tmp_path / "nowhere")
    assert (found.files, found.bytes, found.fault) == (None, None, "No such file or directory")
    assert found.fs_type == facts_of(tmp_path).fs_type
    assert found.free_bytes is not None
    write(tmp_path, "file", b"")
    assert look(tmp_path / "file").fault == "Not a directory"


def test_a_file_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary file that is renamed between the listing and the look is not counted; the rest is."""
    saved(tmp_path, weights())
    real = os.scandir

    class Vanished:
        name = "tmp.safetensors"

        def is_file(self) -> bool:
            return True

        def stat(self) -> os.stat_result:
            raise FileNotFoundError

    class Entries:
        def __enter__(self) -> list[Any]:
            with real(tmp_path) as entries:
                return [Vanished(), *entries]

        def __exit__(self, *_of: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", lambda _folder: Entries())
    assert look(tmp_path).files == 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_folder_that_cannot_be_read_here_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Nothing is known of it: the server may well read it."""
    saved(tmp_path, weights())

    def failing(_folder: str) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "scandir", failing)
    found = look(tmp_path, deep=True)
    assert (found.files, found.bytes, found.fault) == (None, None, None)
    assert found.free_bytes is not None


def test_a_mistake_of_ours_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither ends the record nor looks like a broken checkpoint."""
    saved(tmp_path, weights())

    def broken(*_of: object, **_named: object) -> str:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("sglang_telemetry.checkpoint.folder.fault_of", broken)
    found = look(tmp_path, deep=True)
    assert (found.files, found.fault) == (1, None)
    assert look("/tmp/a\0b").fault is None
