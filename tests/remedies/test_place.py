"""Where a folder really is, and what is refused at once, with what to do; nothing is left of the trial."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_telemetry.remedies.place import Place, is_mount_point, look, mounts_below, try_out
from sglang_telemetry.remedies.rename import exchange
from tests.harness.mounts import fill, read_only, tmpfs


def refused(a: str, b: str) -> None:
    """What NFS says."""
    raise OSError(errno.EINVAL, "Invalid argument")


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Path]:
    """A folder of the same file system that is mounted in another one, where mounting is allowed."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").touch()
    where = tmp_path / "policy" / "with space"
    where.mkdir(parents=True)
    done = subprocess.run(["mount", "--bind", tmp_path / "data", where], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=False)


def test_found(tmp_path: Path) -> None:
    """It need not be there yet."""
    assert look(str(tmp_path / "policy")) == Place(folder=str(tmp_path / "policy"), parent=str(tmp_path))
    (tmp_path / "link").symlink_to("policy")
    assert look(str(tmp_path / "link")) == look(str(tmp_path / "policy"))


def test_refused_by_looking(tmp_path: Path) -> None:
    """What is no folder, or can be none."""
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to("circle")
    cases = {
        "": "has no name; give the engine a path",
        "/": "is a mount point, which cannot be renamed; let the engine save into a folder below it, such as '/policy'",
        str(tmp_path / "file"): "is a file; name a folder",
        str(tmp_path / "file" / "policy"): "is a file; name a folder elsewhere|is not there; make it",
        str(tmp_path / "nowhere" / "policy"): "is not there; make it, since the new checkpoint is written beside",
        str(tmp_path / "circle"): "lead in a circle; let them lead to a folder",
    }
    for path, text in cases.items():
        with pytest.raises(ValueError, match=text):
            look(path)


def test_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process would be left in a folder that is removed."""
    (tmp_path / "policy" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "policy" / "deep")
    for path in (".", "..", str(tmp_path / "policy")):
        with pytest.raises(ValueError, match="is the working directory, or one above"):
            look(path)
    monkeypatch.chdir(tmp_path)
    look("policy")


def test_what_is_mounted_inside(bound: Path) -> None:
    """It would go along with the old folder, and be removed with it."""
    folder = str(bound.parent)
    assert (is_mount_point(str(bound)), is_mount_point(folder)) == (True, False)
    assert mounts_below(folder) == [str(bound)]
    assert mounts_below(str(bound)) == []
    with pytest.raises(ValueError, match="inside of it is a mount point; mount that elsewhere"):
        look(folder)
    with pytest.raises(ValueError, match="is a mount point, which cannot be renamed"):
        look(str(bound))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user for a moment")
def test_another_users_folder_in_one_that_is_sticky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /tmp: who may write there may still not rename it."""
    tmp_path.chmod(0o1777)
    (tmp_path / "policy").mkdir()
    look(str(tmp_path / "policy"))
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(ValueError, match=r"belongs to another user, and .* has the sticky bit"):
        look(str(tmp_path / "policy"))
    look(str(tmp_path / "mine"))


@pytest.mark.parametrize("swap", [exchange, refused])
def test_tried_out(swap: Callable[[str, str], None], tmp_path: Path) -> None:
    """One of the two ways is enough."""
    try_out(look(str(tmp_path / "policy")), swap)
    assert list(tmp_path.iterdir()) == []


def test_an_exchange_that_does_nothing(tmp_path: Path) -> None:
    """What says that it did and did not would publish nothing."""
    with pytest.raises(ValueError, match="cannot be made and renamed"):
        try_out(look(str(tmp_path / "policy")), lambda a, b: None)
    assert list(tmp_path.iterdir()) == []


def test_neither_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As object stores that are mounted as folders."""

    def rename(a: str, b: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(ValueError, match=r"renamed in .* \(Operation not permitted\); give this user the right to"):
        try_out(look(str(tmp_path / "policy")), refused)
    assert list(tmp_path.iterdir()) == []


def test_no_room_and_no_right(tmp_path: Path) -> None:
    """A full file system, and one that is read-only."""
    with tmpfs(tmp_path / "full", size="256k") as where:
        ballast = fill(where)
        with pytest.raises(ValueError, match="No space left on device"):
            try_out(look(str(where / "policy")), exchange)
        assert list(where.iterdir()) == [ballast]
    (tmp_path / "ro").mkdir()
    with read_only(tmp_path / "ro"):
        with pytest.raises(ValueError, match="Read-only file system"):
            try_out(look(str(tmp_path / "ro" / "policy")), exchange)
