"""Two paths are exchanged in one step, or one after the other with a way back."""

import errno
import os
import platform
from pathlib import Path

import pytest

from sglang_telemetry.remedies import rename
from sglang_telemetry.remedies.rename import Way, cannot_exchange, exchange, replace


def folders(where: Path) -> tuple[str, str, str]:
    """The new one and the old one, which each hold a file of that name, and a free name."""
    for name in ("new", "old"):
        (where / name).mkdir()
        (where / name / name).touch()
    return str(where / "new"), str(where / "old"), str(where / "aside")


def refused(a: str, b: str) -> None:
    """What NFS says."""
    raise OSError(errno.EINVAL, "Invalid argument")


def test_exchanged(tmp_path: Path) -> None:
    """Each is where the other was."""
    new, old, aside = folders(tmp_path)
    assert replace(new, old, aside) is Way.EXCHANGED
    assert (os.listdir(new), os.listdir(old), os.path.exists(aside)) == (["old"], ["new"], False)


@pytest.mark.parametrize("name", ["with\nnewline", os.fsdecode(b"no\xffutf8")])
def test_odd_names(name: str, tmp_path: Path) -> None:
    """Paths are bytes."""
    (tmp_path / name).mkdir()
    (tmp_path / "b").touch()
    exchange(str(tmp_path / name), str(tmp_path / "b"))
    assert ((tmp_path / name).is_file(), (tmp_path / "b").is_dir()) == (True, True)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    """A path that is not there, and one that is cut by a NUL: the kernel would take what is before it."""
    _, old, aside = folders(tmp_path)
    with pytest.raises(FileNotFoundError) as raised:
        exchange(aside, old)
    assert (raised.value.filename, raised.value.filename2) == (aside, old)
    assert not cannot_exchange(raised.value)
    with pytest.raises(OSError, match="a NUL in a path"):
        exchange(f"{old}\0x", aside)
    with pytest.raises(FileNotFoundError):
        replace(aside, old, f"{aside}2")
    assert os.listdir(old) == ["old"]


class WithoutWrapper:
    """An old C library: it knows system calls by their number only."""

    def __init__(self, libc: object) -> None:
        self.syscall = libc.syscall  # type: ignore[attr-defined]


@pytest.mark.skipif(platform.machine() not in rename._NUMBERS, reason="the number of the call is not known here")
def test_without_the_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of the call; where that is not known either, there is no exchange."""
    new, old, _ = folders(tmp_path)
    real = rename.ctypes.CDLL
    monkeypatch.setattr(rename.ctypes, "CDLL", lambda *a, **n: WithoutWrapper(real(*a, **n)))
    rename._renameat2.cache_clear()
    try:
        exchange(new, old)
        assert os.listdir(old) == ["new"]
        monkeypatch.setattr(rename.platform, "machine", lambda: "pdp11")
        rename._renameat2.cache_clear()
        with pytest.raises(OSError) as raised:
            exchange(new, old)
        assert raised.value.errno == errno.ENOSYS
        assert cannot_exchange(raised.value)
    finally:
        rename._renameat2.cache_clear()


def test_two_renames(tmp_path: Path) -> None:
    """Where there is no exchange the old one is at the other name."""
    new, old, aside = folders(tmp_path)
    assert replace(new, old, aside, swap=refused) is Way.RENAMED
    assert (os.path.exists(new), os.listdir(old), os.listdir(aside)) == (False, ["new"], ["old"])


def test_an_error_that_two_renames_would_meet_too(tmp_path: Path) -> None:
    """It is no reason to try another way."""

    def full(a: str, b: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    new, old, aside = folders(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        replace(new, old, aside, swap=full)
    assert (os.listdir(new), os.listdir(old), os.path.exists(aside)) == (["new"], ["old"], False)


def test_the_way_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the second rename fails the first is undone; when that fails too, the error says where the folder is."""
    new, old, aside = folders(tmp_path)
    real = os.rename
    failing = {new}

    def renamed(a: str, b: str) -> None:
        if a in failing:
            raise OSError(errno.EIO, "Input/output error", a)
        real(a, b)

    monkeypatch.setattr(os, "rename", renamed)
    with pytest.raises(OSError, match="Input/output error"):
        replace(new, old, aside, swap=refused)
    assert (os.listdir(new), os.listdir(old), os.path.exists(aside)) == (["new"], ["old"], False)
    failing.add(aside)
    with pytest.raises(OSError, match="Input/output error") as raised:
        replace(new, old, aside, swap=refused)
    assert "could not be put back from" in raised.value.__notes__[0]
    assert (os.listdir(aside), os.path.exists(old)) == (["old"], False)
