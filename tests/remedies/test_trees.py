"""Whole folders are removed and synced, and nothing outside of them."""

import errno
import os
from pathlib import Path

import pytest

from sglang_telemetry.remedies.trees import own_links, remove, sync_files, sync_folders
from tests.harness.mounts import tmpfs


def test_removed(tmp_path: Path) -> None:
    """Also what may not be read or written, and odd names; what links lead to stays."""
    folder = tmp_path / "folder"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / os.fsdecode(b"\xff\n")).touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").touch()
    (folder / "file").symlink_to(tmp_path / "data" / "x")
    (folder / "link").symlink_to(tmp_path / "data")
    os.mkfifo(folder / "pipe")
    (folder / "a" / "b").chmod(0)
    (folder / "a").chmod(0o555)
    assert remove(str(folder)) is None
    assert remove(str(folder)) is None
    assert remove(str(tmp_path / "no" / "such")) is None
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["data", "x"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """The folder itself is one: it is not ours."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").touch()
    (tmp_path / "link").symlink_to("data")
    assert isinstance(remove(str(tmp_path / "link")), OSError)
    assert (tmp_path / "data" / "x").exists()


def test_another_file_system_is_left_alone(tmp_path: Path) -> None:
    """Data that somebody mounted inside is not ours to remove; the rest goes."""
    folder = tmp_path / "folder"
    with tmpfs(folder / "data") as data:
        (data / "precious").touch()
        (folder / "weights").touch()
        error = remove(str(folder))
        assert error is not None
        assert error.errno == errno.EXDEV
        assert (os.listdir(data), os.listdir(folder)) == (["precious"], ["data"])


def test_what_nfs_keeps_for_a_reader_is_no_error(tmp_path: Path) -> None:
    """It goes when the reader closes it."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / ".nfs00000000012345ab00000001").touch()
    (tmp_path / "folder" / "model.safetensors").touch()
    assert remove(str(tmp_path / "folder")) is None
    assert os.listdir(tmp_path / "folder") == [".nfs00000000012345ab00000001"]


def test_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file, what a link leads to, and each folder; a pipe is not waited for, a link to nothing is no error."""
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for path in (folder / "a", folder / "sub" / "b", tmp_path / "blob"):
        path.touch()
    (folder / "link").symlink_to("../blob")
    (folder / "nowhere").symlink_to("nothing")
    (folder / "circle").symlink_to("circle")
    os.mkfifo(folder / "pipe")
    sync_files(str(folder))
    assert sorted(synced) == sorted(map(str, (folder / "a", folder / "sub" / "b", tmp_path / "blob")))
    synced.clear()
    sync_folders(str(folder))
    assert synced == [str(folder / "sub"), str(folder)]


def test_an_error_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a file always counts; folders cannot be synced everywhere."""
    (tmp_path / "a").touch()
    codes = [errno.EINVAL]

    def fsync(fd: int) -> None:
        raise OSError(codes[0], os.strerror(codes[0]))

    monkeypatch.setattr(os, "fsync", fsync)
    sync_folders(str(tmp_path))
    with pytest.raises(OSError, match="Invalid argument"):
        sync_files(str(tmp_path))
    codes[0] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        sync_folders(str(tmp_path))


def test_links_into_the_folder_move_with_it(tmp_path: Path) -> None:
    """By its whole path they would lead to what is at that path later: the old weights."""
    folder = tmp_path / "staging"
    (folder / "sub").mkdir(parents=True)
    (folder / "blob").write_text("new")
    links = {"sub/model": str(folder / "blob"), "a": "blob", "b": str(folder / "sub"), "c": f"{folder}x", "d": "/etc"}
    for name, target in links.items():
        (folder / name).symlink_to(target)
    own_links(str(folder), was=str(folder))
    found = {name: os.readlink(folder / name) for name in links}
    assert found == {"sub/model": "../blob", "a": "blob", "b": "sub", "c": f"{folder}x", "d": "/etc"}
    folder.rename(tmp_path / "live")
    assert (tmp_path / "live" / "sub" / "model").read_text() == "new"
