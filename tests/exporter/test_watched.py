"""The folder that two exporters watch: who is seen, how old, and what a sick file system shows."""

import os
from pathlib import Path

import pytest

from sglang_telemetry.events import WatchedPath
from sglang_telemetry.exporter.watched import FORGET_SECONDS, MAX_HOSTS, WatchedFolder
from sglang_telemetry.names import PROBE_FOLDER
from sglang_telemetry.testing import ManualClock
from tests.harness.mounts import read_only

SECONDS = 10.0


class Side:
    """One host's exporter, which a test lets look."""

    def __init__(self, path: Path, host: str, clock: ManualClock) -> None:
        self.told: list[WatchedPath] = []
        self.folder = WatchedFolder(
            path,
            host,
            self.told.append,
            seconds=SECONDS,
            now=clock.wall,
            clock=lambda: clock.monotonic_ns() / 1e9,
        )

    def look(self) -> WatchedPath:
        """Touch the folder, and say what was found."""
        self.folder.touch()
        self.folder.say()
        return self.told[-1]


def test_both_sides_see_each_other(tmp_path: Path) -> None:
    """A file that changes is fresh; one that does not grows old by this host's own clock."""
    clock = ManualClock()
    trainer, server = Side(tmp_path, "trainer", clock), Side(tmp_path, "server", clock)
    trainer.look()
    found = server.look()
    assert (found.writable, set(found.ages), found.ages["server"]) == (True, {"trainer", "server"}, 0.0)
    clock.advance(40)
    assert server.look().ages["trainer"] == pytest.approx(40, abs=1)
    trainer.look()
    assert server.look().ages["trainer"] == 0.0


def test_other_folder_of_the_same_name(tmp_path: Path) -> None:
    """The mount is missing on one side: it sees itself alone."""
    clock = ManualClock()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    Side(tmp_path / "a", "trainer", clock).look()
    assert set(Side(tmp_path / "b", "server", clock).look().ages) == {"server"}


def test_old_file_is_old_when_it_is_first_seen(tmp_path: Path) -> None:
    """What was left behind yesterday is not fresh because this exporter was started now."""
    clock = ManualClock()
    Side(tmp_path, "trainer", clock).look()
    path = tmp_path / PROBE_FOLDER / "trainer.probe"
    then = path.stat().st_mtime - 3600
    os.utime(path, (then, then))
    assert Side(tmp_path, "server", clock).look().ages["trainer"] == pytest.approx(3600, abs=60)
    then -= FORGET_SECONDS
    os.utime(path, (then, then))
    assert "trainer" not in Side(tmp_path, "server", clock).look().ages


def test_folder_that_hangs_or_is_gone(tmp_path: Path) -> None:
    """Nothing is touched any more: it is not writable, and ages grow."""
    clock = ManualClock()
    side = Side(tmp_path / "shared", "server", clock)
    assert side.look() == WatchedPath(at=clock.wall(), writable=False)
    (tmp_path / "shared").mkdir()
    assert side.look().writable
    clock.advance(4 * SECONDS)
    side.folder.say()
    assert side.told[-1] == WatchedPath(at=clock.wall(), writable=False, ages={"server": 4 * SECONDS})


def test_read_only_mount(tmp_path: Path) -> None:
    """The server's side may be: the trainer's file is seen all the same."""
    clock = ManualClock()
    shared = tmp_path / "shared"
    shared.mkdir()
    Side(shared, "trainer", clock).look()
    with read_only(shared):
        found = Side(shared, "server", clock).look()
    assert (found.writable, set(found.ages)) == (False, {"trainer"})


def test_many_and_odd_files(tmp_path: Path) -> None:
    """A folder full of them is bounded, and a host's odd name is one file's name."""
    clock = ManualClock()
    (tmp_path / PROBE_FOLDER).mkdir()
    for number in range(MAX_HOSTS + 9):
        (tmp_path / PROBE_FOLDER / f"a{number}.probe").touch()
    assert len(Side(tmp_path, "../../etc/x y", clock).look().ages) == MAX_HOSTS
    assert (tmp_path / PROBE_FOLDER / ".._.._etc_x_y.probe").exists()
