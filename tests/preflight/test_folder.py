"""The shared folder on this side: really written to, cleaned up, measured."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_telemetry.checkpoint.filesystem import FolderFacts
from sglang_telemetry.exporter.watched import WatchedFolder
from sglang_telemetry.preflight.checkpoint import checkpoint, look_at
from sglang_telemetry.preflight.filesystem import filesystem
from sglang_telemetry.preflight.findings import Level
from sglang_telemetry.preflight.folder import FolderState, examine_folder, folder, room
from sglang_telemetry.preflight.probe_files import Probe, probes_near
from sglang_telemetry.preflight.speed import measure
from sglang_telemetry.preflight.timeout import timeout
from sglang_telemetry.preflight.visibility import is_here, visibility
from tests.harness.mounts import fill, tmpfs
from tests.testing.checkpoints import tensors, truncate, write_folder

MB = 1_000_000


def everything(folder_: Path) -> list[str]:
    """All that is in it, hidden files too."""
    return sorted(str(path.relative_to(folder_)) for path in folder_.rglob("*"))


def test_writable(tmp_path: Path) -> None:
    """Written to, and nothing is left."""
    state = examine_folder(str(tmp_path))
    assert (folder(state).level, folder(state).reason) == (Level.OK, "written to, and cleaned up again")
    assert (state.exists, everything(tmp_path)) == (True, [])
    assert (state.bytes_per_second or 0) > 0


def test_not_there_yet(tmp_path: Path) -> None:
    """It can be made, and is not."""
    state = examine_folder(str(tmp_path / "a" / "b"))
    assert (folder(state).level, folder(state).reason) == (
        Level.OK,
        f"not there yet, and can be made in {tmp_path}",
    )
    assert everything(tmp_path) == []


def test_link(tmp_path: Path) -> None:
    """Noted: the server has to be able to follow it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    found = folder(examine_folder(str(tmp_path / "link")))
    assert (found.level, f"by a symbolic link it is {tmp_path}/real" in found.reason) == (Level.OK, True)


def test_a_file_in_its_way(tmp_path: Path) -> None:
    """It can never be made."""
    (tmp_path / "file").write_text("theirs")
    for path in (tmp_path / "file", tmp_path / "file" / "ckpt"):
        found = folder(examine_folder(str(path)))
        assert (found.level, "ENOTDIR" in found.reason) == (Level.FAIL, True)
        assert found.fix.startswith("remove the file that stands in its way")


def test_link_to_nowhere(tmp_path: Path) -> None:
    """It cannot be made through the link."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    found = folder(examine_folder(str(tmp_path / "link")))
    assert (found.level, found.fix) == (Level.FAIL, "make the folder that its symbolic link leads to")


def test_mount_whose_server_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no folder that is not there yet."""

    def stale(path: str) -> os.stat_result:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "lstat", stale)
    found = folder(examine_folder(str(tmp_path)))
    assert (found.level, found.reason, found.fix) == (
        Level.FAIL,
        f"looking in {tmp_path} failed: Stale file handle (errno ESTALE)",
        "unmount it and mount it again on this host",
    )


def test_read_only(tmp_path: Path) -> None:
    """As root, whom permission bits do not stop."""
    with tmpfs(tmp_path / "disk", read_only=True) as disk:
        found = folder(examine_folder(str(disk / "ckpt")))
    assert (found.level, found.fix) == (Level.FAIL, "mount it read-write on this host")
    assert found.reason.endswith("Read-only file system (errno EROFS)")


def test_full(tmp_path: Path) -> None:
    """Nothing is left behind, not even an empty folder."""
    with tmpfs(tmp_path / "disk") as disk:
        fill(disk)
        found = folder(examine_folder(str(disk)))
        assert everything(disk) == ["ballast"]
    assert (found.level, "ENOSPC" in found.reason) == (Level.FAIL, True)


def test_small(tmp_path: Path) -> None:
    """Less than a checkpoint, and less than two."""
    with tmpfs(tmp_path / "disk", size="1m") as disk:
        state = examine_folder(str(disk))
        assert state.mounted
        rooms = [room(state, payload=payload, present=0) for payload in (2 << 20, 600_000, 100_000, None)]
        present = room(state, payload=1 << 20, present=2 << 20)
    assert [one.level.value for one in rooms if one is not None] == ["fail", "warn", "ok", "ok"]
    assert present is not None
    assert present.level is Level.OK
    assert folder(state).reason.endswith("; it is a mount point")
    assert state.bytes_per_second is None


def test_no_inodes() -> None:
    """Bytes are free, and no file can be made."""
    facts = FolderFacts(free_bytes=MB, free_inodes=3)
    found = room(FolderState(path="/x", where="/x", facts=facts), payload=1, present=0)
    assert found is not None
    assert found.level is Level.WARN


def test_speed_is_bounded(tmp_path: Path) -> None:
    """One second by the clock that it is given, and no name is left."""
    ticks = iter((0.0, 0.0, 0.6, 1.2, 1.2))
    assert measure(str(tmp_path), 1 << 30, clock=lambda: next(ticks)) == 2 * (4 << 20) / 1.2
    assert measure(str(tmp_path), 1 << 20) is None
    assert measure(str(tmp_path / "none"), 1 << 30) is None
    assert everything(tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "same_host", "proved", "level"),
    [
        ("ext4", False, False, Level.OK),
        ("tmpfs", True, False, Level.OK),
        ("tmpfs", False, False, Level.WARN),
        ("overlay", True, False, Level.WARN),
        ("overlay", False, True, Level.OK),
        ("nfs4", False, False, Level.WARN),
        ("nfs4", False, True, Level.OK),
        ("fuse.juicefs", False, False, Level.WARN),
        ("cifs", False, False, Level.WARN),
        (None, False, False, None),
    ],
)
def test_filesystem(kind: str | None, same_host: bool, proved: bool, level: Level | None) -> None:
    """What its kind means for whoever reads it."""
    found = filesystem(FolderFacts(fs_type=kind), same_host=same_host, proved=proved)
    assert (None if found is None else found.level) is level


def test_advice_for_nfs_is_that_of_the_runbook() -> None:
    """Two that differ would leave the reader alone."""
    found = filesystem(FolderFacts(fs_type="nfs4"), same_host=False, proved=False)
    assert found is not None
    runbook = Path(__file__).parents[2] / "alerts/runbooks/WeightSyncFailed.md"
    for advice in ("lookupcache=positive", "new folder name"):
        assert advice in found.fix
        assert advice in runbook.read_text()


@pytest.mark.parametrize(
    ("given", "payload", "speed", "loaded_in", "level", "words"),
    [
        (
            None,
            100 * MB,
            50e6,
            None,
            Level.OK,
            "not known (the engine has none, or --timeout is not given); 100 MB take 2 s to write (50 MB/s measured)",
        ),
        (120.0, 100 * MB, 50e6, None, Level.OK, "120 s; 100 MB take 2 s to write"),
        (5.0, 100 * MB, 50e6, None, Level.WARN, "5 s may be too short"),
        (5.0, None, 50e6, 4.0, Level.WARN, "the update of the dry run took 4 s"),
        (
            5.0,
            None,
            None,
            None,
            Level.OK,
            "5 s; to compare that with a checkpoint, give the model that is trained (--model DIR, or model=)",
        ),
        (None, None, 50e6, None, None, ""),
    ],
)
def test_timeout(
    given: float | None,
    payload: int | None,
    speed: float | None,
    loaded_in: float | None,
    level: Level | None,
    words: str,
) -> None:
    """Three times of what was measured."""
    found = timeout(given, payload=payload, bytes_per_second=speed, loaded_in=loaded_in)
    assert (None if found is None else found.level) is level
    if found is not None:
        assert found.reason.startswith(words) or words in found.reason


def test_checkpoint(tmp_path: Path) -> None:
    """Whole, torn, of another model, none yet, none at all."""
    good = write_folder(tmp_path / "good", tensors(1))
    torn = write_folder(tmp_path / "torn", tensors(1))
    truncate(torn / "model.safetensors")
    (tmp_path / "empty").mkdir()
    found = [
        checkpoint(look_at(str(path), None), asked=asked)
        for path, asked in (
            (good, False),
            (torn, False),
            (tmp_path / "empty", False),
            (tmp_path / "none", False),
            (tmp_path / "empty", True),
        )
    ]
    assert [one.level.value for one in found] == ["ok", "fail", "ok", "ok", "fail"]
    size = sum(path.stat().st_size for path in good.iterdir())
    assert found[0].reason == f"whole: 1 file of weights, {size / 1000:.1f} kB in all"
    assert found[1].reason.startswith("model.safetensors: ")
    assert found[1].fix == "save it again from the trainer, or remove it"


def test_checkpoint_that_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not called whole, nor broken."""
    path = write_folder(tmp_path / "good", tensors(1))

    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", failing)
    found = checkpoint(look_at(str(path), None), asked=False)
    assert (found.level, found.reason) == (Level.WARN, "not looked at: model.safetensors: Input/output error")


def test_a_model_that_was_given_is_not_asked_for() -> None:
    """Why it does not tell its size is said instead."""
    state = FolderState(path="/x", where="/x", facts=FolderFacts(free_bytes=MB))
    known = room(state, payload=None, present=0, unread="no weight files")
    assert known is not None
    assert known.reason == "1.0 MB are free; what a sync writes is not known: no weight files"
    told = timeout(5.0, payload=None, bytes_per_second=None, loaded_in=None, unread="no weight files")
    assert told is not None
    assert told.reason == "5 s; the size of a checkpoint is not known: no weight files"


def test_probe_files(tmp_path: Path) -> None:
    """Those of other hosts count, in the folder or the one above it, by the clock of the file server."""
    shared = tmp_path / "ckpt"
    shared.mkdir()
    for host, where in (("here", shared), ("there", tmp_path), ("gone", shared)):
        WatchedFolder(where, host, lambda _: None).touch()
    now_ns = (shared / ".sglang-telemetry/here.probe").stat().st_mtime_ns
    for host, where, age in (("there", tmp_path, 4), ("gone", shared, 300)):
        stamp = now_ns - age * 10**9
        os.utime(where / f".sglang-telemetry/{host}.probe", ns=(stamp, stamp))
    found = probes_near(str(shared), now_ns, host=lambda: "here")
    assert found == (Probe(host="there", age=4.0), Probe(host="gone", age=300.0))


def test_visibility() -> None:
    """A fresh file of another host, the same host, an old file, nothing."""
    fresh, old = Probe(host="gpu-7", age=4.0), Probe(host="gpu-7", age=900.0)
    found = [
        visibility(probes, same_host=same_host)
        for probes, same_host in (((fresh,), False), ((), True), ((old,), False), ((), False))
    ]
    assert [one.level.value for one in found] == ["ok", "ok", "warn", "warn"]
    assert found[0].reason == "shared with gpu-7, whose exporter wrote there 4 s ago"
    assert "gpu-7 wrote there 900 s ago, and no more" in found[2].reason
    assert "--dry-run" in found[3].fix


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:1", True),
        ("http://localhost:1", True),
        ("http://192.0.2.7:1", False),
        ("http://x.invalid", False),
    ],
)
def test_is_here(url: str, here: bool) -> None:
    """Only an address of this host can be bound."""
    assert is_here(url) is here


def test_state_of_a_folder_that_is_not_there_and_its_room() -> None:
    """Nothing is said of room where nothing can be written."""
    state = FolderState(path="/x/y", where="/x", error=OSError(30, "Read-only file system"), step="making a folder")
    assert room(state, payload=1, present=0) is None
    assert room(replace(state, error=None), payload=1, present=0) is None
