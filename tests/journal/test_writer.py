"""The writer: one write an event, private, locked, and nothing lost to a full disk, a rotation or a fork."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_telemetry.events import Event, PhaseStarted, ProcessStarted, SyncStarted, TelemetryError
from sglang_telemetry.journal.format import encode
from sglang_telemetry.journal.reader import SegmentReader
from sglang_telemetry.journal.retention import segments
from sglang_telemetry.journal.writer import MAX_PENDING, JournalWriter
from sglang_telemetry.names import Phase
from sglang_telemetry.sinks.journal import JournalSink
from tests.harness.mounts import fill, tmpfs
from tests.harness.processes import wait_until
from tests.journal import EVERY_KIND, HEAD, IDENTITY, TARGET

ASK_LOCK = """
import sys, os
from sglang_telemetry.journal.lock import is_held
print(is_held(os.open(sys.argv[1], os.O_RDONLY)))
"""
HOLD_LOCK = """
import sys
from pathlib import Path
from sglang_telemetry import JournalSink
from tests.journal import HEAD
sink = JournalSink(Path(sys.argv[1]))
sink.emit(HEAD)
print(sink.path, flush=True)
sys.stdin.readline()
"""


def lock_is_held(path: Path) -> bool:
    """As another process sees it."""
    done = subprocess.run([sys.executable, "-c", ASK_LOCK, str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


def phase(number: int) -> PhaseStarted:
    """An event that can be told from the others."""
    return PhaseStarted(identity=IDENTITY, sequence=number, phase=Phase.SAVE, offset_ns=number)


def begun(number: int) -> SyncStarted:
    """The event at which a journal that is gone is opened anew."""
    return SyncStarted(identity=IDENTITY, sequence=number, at=1.0, coordinator=True, trace_id="a", target=TARGET)


def read(folder: Path) -> tuple[list[Event], int]:
    """All events of all segments in their order, and how many lines were bad. Not for a journal that is locked here."""
    events: list[Event] = []
    bad = 0
    for path in segments(folder):
        reader = SegmentReader(path)
        events += reader.events(to_end_of_file=True)
        bad += reader.bad_lines
        reader.close()
    return events, bad


def phases_in(folder: Path) -> list[int]:
    """Numbers of the phases that arrived."""
    return [event.sequence for event in read(folder)[0] if isinstance(event, PhaseStarted)]


def cut_writes(monkeypatch: pytest.MonkeyPatch, fits: Callable[[bytes], int]) -> None:
    """Let the disk take only so many bytes of each line."""
    real = os.write

    def short(fd: int, data: bytes) -> int:
        return real(fd, data[: fits(data)])

    monkeypatch.setattr(os, "write", short)


def test_private(tmp_path: Path) -> None:
    """Nobody else reads or forges a journal, whatever the umask."""
    before = os.umask(0)
    try:
        sink = JournalSink(tmp_path / "a" / "j")
        sink.emit(HEAD)
    finally:
        os.umask(before)
    assert sink.path is not None
    assert stat.S_IMODE(sink.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(sink.path.parent.stat().st_mode) == 0o700
    sink.close()


def test_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shared /tmp another user may have made the folder first."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, -1) if os.getuid() == 0 else monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(PermissionError, match="SGLANG_TELEMETRY_DIR"):
        JournalWriter(folder, "x").open_segment()


def test_one_write_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole line in one system call: what was emitted is in the file when emit returns."""
    written: list[bytes] = []
    real = os.write

    def counting(fd: int, data: bytes) -> int:
        written.append(data)
        return real(fd, data)

    monkeypatch.setattr(os, "write", counting)
    sink = JournalSink(tmp_path)
    for event in EVERY_KIND:
        if event == HEAD or not isinstance(event, ProcessStarted):
            sink.emit(event)
            assert written[-1].endswith(b"\n")
    expected = [encode(event) for event in EVERY_KIND if event == HEAD or not isinstance(event, ProcessStarted)]
    assert written == expected
    assert sink.path is not None
    size = sink.path.stat().st_size
    sink.close()
    assert size == sum(map(len, expected))


def test_emit_before_the_head_is_an_error(tmp_path: Path) -> None:
    """A journal says whose it is before anything else."""
    with pytest.raises(OSError, match="begins with ProcessStarted"):
        JournalSink(tmp_path).emit(phase(1))


def test_full_disk_keeps_what_it_did_not_take(tmp_path: Path) -> None:
    """Kept lines arrive in their order when there is room again, and a torn one breaks none of the others."""
    with tmpfs(tmp_path / "small", size="64k") as folder:
        sink = JournalSink(folder / "j")
        sink.emit(HEAD)
        ballast = fill(folder)
        refused = 0
        for number in range(100):
            try:
                sink.emit(phase(number))
            except OSError:
                refused += 1
        ballast.unlink()
        sink.emit(phase(100))
        sink.close()
        events, bad = read(folder / "j")
    assert 0 < refused < 100
    assert bad <= 1
    assert events == [HEAD, *map(phase, range(101))]


def test_full_disk_from_the_start(tmp_path: Path) -> None:
    """The head waits too, and comes first."""
    with tmpfs(tmp_path / "small", size="64k") as folder:
        (folder / "j").mkdir(mode=0o700)
        ballast = fill(folder)
        sink = JournalSink(folder / "j")
        with pytest.raises(OSError):
            sink.emit(HEAD)
        with pytest.raises(OSError):
            sink.emit(phase(1))
        ballast.unlink()
        sink.emit(begun(2))
        sink.close()
        assert read(folder / "j") == ([HEAD, phase(1), begun(2)], 0)


@pytest.mark.parametrize("fits", [1, 2, 20, -2])
def test_short_write_is_made_good(fits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line is ended and written anew: one bad line, and every event once."""
    sink = JournalSink(tmp_path)
    sink.emit(HEAD)
    with monkeypatch.context() as patch:
        cut_writes(patch, lambda data: fits % len(data))
        with pytest.raises(OSError, match="bytes fitted"):
            sink.emit(phase(1))
        with pytest.raises(OSError):
            sink.emit(phase(2))
    sink.emit(phase(3))
    sink.close()
    assert read(tmp_path)[0] == [HEAD, phase(1), phase(2), phase(3)]


def test_short_write_of_all_but_the_newline_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full exactly before the newline: the event is there already, and must not come twice."""
    sink = JournalSink(tmp_path)
    sink.emit(HEAD)
    with monkeypatch.context() as patch:
        cut_writes(patch, lambda data: len(data) - 1)
        try:
            sink.emit(phase(1))
        except OSError:
            pass
    sink.emit(phase(2))
    sink.close()
    assert read(tmp_path) == ([HEAD, phase(1), phase(2)], 0)


def test_head_is_never_among_the_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much waits for a full disk: without its head nobody would miss the process when it dies."""
    sink = JournalSink(tmp_path)
    with monkeypatch.context() as patch:
        cut_writes(patch, lambda data: 0)
        for event in (HEAD, *map(phase, range(MAX_PENDING + 50))):
            with pytest.raises(OSError):
                sink.emit(event)
    sink.emit(phase(9999))
    sink.close()
    events, bad = read(tmp_path)
    assert bad == 0
    assert events[0] == HEAD
    assert len(events) == 1 + MAX_PENDING + 1
    assert events[-2] == phase(9999)
    told = events[-1]
    assert isinstance(told, TelemetryError)
    assert (told.component, told.count) == ("journal", 51)


def test_oldest_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stays full costs a bounded amount of memory; the newest are kept."""
    writer = JournalWriter(tmp_path, "x")
    writer.open_segment()
    with monkeypatch.context() as patch:
        cut_writes(patch, lambda data: 0)
        for number in range(MAX_PENDING + 10):
            with pytest.raises(OSError):
                writer.write(encode(phase(number)))
    writer.write(encode(phase(7777)))
    writer.close()
    assert writer.dropped == 11
    assert phases_in(tmp_path) == [*range(11, MAX_PENDING + 10), 7777]


def test_rotation_loses_nothing(tmp_path: Path) -> None:
    """Each segment begins with the head, and together they hold each event once, in order."""
    sink = JournalSink(tmp_path, segment_bytes=2000)
    sink.emit(HEAD)
    for number in range(200):
        sink.emit(phase(number))
    sink.close()
    paths = segments(tmp_path)
    assert len(paths) > 5
    assert max(path.stat().st_size for path in paths) < 2400
    for path in paths:
        reader = SegmentReader(path)
        assert next(reader.events()) == HEAD
        reader.close()
    assert phases_in(tmp_path) == list(range(200))


def test_rotation_keeps_the_lock(tmp_path: Path) -> None:
    """The segment that is written is locked, the ones before are not any more."""
    sink = JournalSink(tmp_path, segment_bytes=1000)
    sink.emit(HEAD)
    for number in range(20):
        sink.emit(phase(number))
    first, *_, last = segments(tmp_path)
    assert last == sink.path
    assert (lock_is_held(first), lock_is_held(last)) == (False, True)
    sink.close()
    assert not lock_is_held(last)


def test_rotation_while_the_next_segment_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The full segment goes on being written: nothing is lost, nothing is raised."""
    sink = JournalSink(tmp_path, segment_bytes=500)
    sink.emit(HEAD)
    real = os.open

    def refuse(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_EXCL:
            raise OSError(28, "no inode left")
        return real(path, flags, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        for number in range(20):
            sink.emit(phase(number))
    for number in range(20, 40):
        sink.emit(phase(number))
    sink.close()
    assert phases_in(tmp_path) == list(range(40))


def test_folder_that_is_removed(tmp_path: Path) -> None:
    """Somebody cleans up below a running trainer: the next sync opens a new segment with its head."""
    folder = tmp_path / "j"
    sink = JournalSink(folder)
    sink.emit(HEAD)
    assert sink.path is not None
    sink.path.unlink()
    folder.rmdir()
    sink.emit(phase(1))  # goes where nobody looks: opening is tried once a sync
    sink.emit(begun(2))
    sink.emit(phase(3))
    assert sink.path.exists()
    assert lock_is_held(sink.path)
    sink.close()
    assert read(folder) == ([HEAD, begun(2), phase(3)], 0)


def test_file_that_is_unlinked(tmp_path: Path) -> None:
    """The same with the file alone."""
    sink = JournalSink(tmp_path)
    sink.emit(HEAD)
    assert sink.path is not None
    sink.path.unlink()
    sink.emit(begun(1))
    sink.close()
    assert read(tmp_path) == ([HEAD, begun(1)], 0)


def test_folder_that_comes_late(tmp_path: Path) -> None:
    """It could not be made at the start, and can at the next sync: what was kept arrives behind the head."""
    (tmp_path / "j").write_text("in the way")
    sink = JournalSink(tmp_path / "j")
    with pytest.raises(OSError):
        sink.emit(HEAD)
    with pytest.raises(OSError, match="1 events wait"):
        sink.emit(phase(1))
    (tmp_path / "j").unlink()
    sink.emit(begun(2))
    sink.close()
    assert read(tmp_path / "j") == ([HEAD, phase(1), begun(2)], 0)


def test_fork(tmp_path: Path) -> None:
    """A child writes its own file under its own pid, without the parent's lock, and leaves the parent's alone."""
    sink = JournalSink(tmp_path)
    head = replace(HEAD, identity=replace(IDENTITY, pid=os.getpid()))
    sink.emit(head)
    parents = sink.path
    assert parents is not None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sink.emit(phase(2))
            code = int(sink.path == parents)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sink.emit(phase(1))
    assert lock_is_held(parents)
    childs = next(path for path in segments(tmp_path) if path != parents)
    assert not lock_is_held(childs)
    sink.close()
    by_file = {}
    for path in (parents, childs):
        reader = SegmentReader(path)
        by_file[path] = list(reader.events())
        reader.close()
    assert by_file == {
        parents: [head, phase(1)],
        childs: [replace(head, identity=replace(IDENTITY, pid=child)), phase(2)],
    }


def test_fork_that_lives_on_does_not_hold_the_lock(tmp_path: Path) -> None:
    """A data-loader worker that outlives its trainer must not make that look alive."""
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom sglang_telemetry import JournalSink\n"
        "from tests.journal import HEAD\n"
        "sink = JournalSink(Path(sys.argv[1])); sink.emit(HEAD)\n"
        "child = os.fork()\n"
        "if child == 0:\n    sys.stdin.readline(); os._exit(0)\n"
        "print(sink.path, flush=True); os._exit(1)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        path = Path(parent.stdout.readline().strip())
        wait_until(lambda: parent.poll() is not None, "the parent ends")
        assert not lock_is_held(path)


def test_lock_is_seen_and_dropped_on_sigkill(tmp_path: Path) -> None:
    """The kernel says that a process lives, and that it does no more, however it died."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        path = Path(holder.stdout.readline().strip())
        assert lock_is_held(path)
        holder.send_signal(signal.SIGKILL)
        wait_until(lambda: holder.poll() is not None, "the holder dies")
        assert not lock_is_held(path)


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head says that the lock could not be had, so that nobody trusts its absence."""

    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    sink = JournalSink(tmp_path)
    sink.emit(HEAD)
    sink.close()
    assert read(tmp_path) == ([replace(HEAD, locked=False)], 0)


def test_two_sinks_of_one_process_keep_apart(tmp_path: Path) -> None:
    """A second journal in the same folder does not cost the first one its lock."""
    one, two = JournalSink(tmp_path), JournalSink(tmp_path)
    one.emit(HEAD)
    two.emit(HEAD)
    assert one.path is not None
    assert two.path is not None
    assert one.path != two.path
    assert (lock_is_held(one.path), lock_is_held(two.path)) == (True, True)
    one.close()
    assert (lock_is_held(one.path), lock_is_held(two.path)) == (False, True)
    two.close()
