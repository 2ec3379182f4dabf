"""What may go: journals that nobody writes and that nobody has written for long."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_telemetry.journal.retention import ABANDONED_SECONDS, prune_abandoned, segments, stem_of
from sglang_telemetry.sinks.journal import JournalSink
from sglang_telemetry.testing.doubles import ManualClock
from tests.journal import HEAD
from tests.journal.test_writer import HOLD_LOCK, lock_is_held

NOW = 1_700_000_000.0


def make(folder: Path, name: str, *, age: float) -> Path:
    """A segment that was written some seconds ago."""
    path = folder / name
    path.write_bytes(b"{}\n")
    os.utime(path, (NOW - age, NOW - age))
    return path


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Path]:
    """The segment of another process that lives."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        yield Path(holder.stdout.readline().strip())


def test_segments_of_one_process_in_their_order(tmp_path: Path) -> None:
    """Sorted by process and number; other files are not ours."""
    names = ["b-1-x.000001.jsonl", "a-1-x.000010.jsonl", "a-1-x.000009.jsonl", "exporter.lock", "a.jsonl.new"]
    for name in names:
        (tmp_path / name).touch()
    found = segments(tmp_path)
    assert [path.name for path in found] == ["a-1-x.000009.jsonl", "a-1-x.000010.jsonl", "b-1-x.000001.jsonl"]
    assert [stem_of(path) for path in found] == ["a-1-x", "a-1-x", "b-1-x"]


def test_no_folder_no_segments(tmp_path: Path) -> None:
    """A folder that nobody has made yet is empty."""
    assert segments(tmp_path / "none") == []
    assert prune_abandoned(tmp_path / "none", now=NOW) == []


def test_abandoned_for_a_week_goes(tmp_path: Path) -> None:
    """All segments of a process, by the age of its last."""
    old = [make(tmp_path, f"a-1-x.00000{n}.jsonl", age=ABANDONED_SECONDS + 10 - n) for n in (1, 2)]
    young = [make(tmp_path, f"b-1-x.00000{n}.jsonl", age=age) for n, age in ((1, 2 * ABANDONED_SECONDS), (2, 60))]
    assert prune_abandoned(tmp_path, now=NOW) == old
    assert segments(tmp_path) == young


def test_living_process_keeps_its_journal(tmp_path: Path, living: Path) -> None:
    """However long it has been silent: a lock says that it lives."""
    os.utime(living, (0, 0))
    assert prune_abandoned(tmp_path, now=NOW) == []
    assert living.exists()
    assert lock_is_held(living)


def test_own_journal_keeps_its_lock(tmp_path: Path) -> None:
    """Looking at a file of one's own would drop the lock on it."""
    sink = JournalSink(tmp_path)
    sink.emit(HEAD)
    assert sink.path is not None
    os.utime(sink.path, (0, 0))
    assert prune_abandoned(tmp_path, now=NOW) == []
    assert lock_is_held(sink.path)
    sink.close()


def test_start_of_a_trainer_prunes(tmp_path: Path) -> None:
    """A temporary folder does not fill up where no exporter runs."""
    old = make(tmp_path, "a-1-x.000001.jsonl", age=ABANDONED_SECONDS + 1)
    kept = make(tmp_path, "b-1-x.000001.jsonl", age=ABANDONED_SECONDS - 1)
    sink = JournalSink(tmp_path, clock=ManualClock(NOW))
    sink.emit(replace(HEAD, at=NOW))
    sink.close()
    assert not old.exists()
    assert kept.exists()


def test_file_that_goes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trainers prune at once: what the other one removed is no error."""
    make(tmp_path, "a-1-x.000001.jsonl", age=ABANDONED_SECONDS + 1)
    other = make(tmp_path, "b-1-x.000001.jsonl", age=ABANDONED_SECONDS + 1)
    real = Path.unlink

    def raced(self: Path, missing_ok: bool = False) -> None:
        if self.name.startswith("a-"):
            real(self)
        real(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", raced)
    assert prune_abandoned(tmp_path, now=NOW) == [other]
    assert segments(tmp_path) == []
