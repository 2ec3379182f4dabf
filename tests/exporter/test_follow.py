"""Following journals of real processes, which end in all the ways in which processes end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_telemetry.events import (
    Event,
    LaunchEnded,
    LaunchSignalled,
    LaunchStarted,
    PhaseStarted,
    ProcessEnded,
    ProcessLost,
    ProcessStarted,
    ProcessUnwatched,
    TelemetryError,
)
from sglang_telemetry.exporter import follow, snapshot
from sglang_telemetry.exporter.follow import Follower
from sglang_telemetry.journal.retention import segments
from sglang_telemetry.names import Component, Exit, Phase, Result
from sglang_telemetry.platform import boot_id, pid_namespace
from sglang_telemetry.sinks.tally import Tally
from tests.harness.processes import wait_until
from tests.sinks import begun, ended, entered, record, who

RETENTION = 3600.0
TRAINER = """
import fcntl, os, sys
from dataclasses import replace
from pathlib import Path
from sglang_telemetry import JournalSink
from sglang_telemetry.journal.launch import LaunchJournal
from sglang_telemetry.names import Exit, Phase
from sglang_telemetry.platform import boot_id, pid_namespace, start_ticks
from tests.sinks import begun, ended, entered, failed, record, started, who

folder = Path(sys.argv[1])
me = replace(who(0), pid=os.getpid())
sink = JournalSink(folder, segment_bytes=int(sys.argv[2]))

def head(**changes):
    here = {"boot_id": boot_id(), "pid_namespace": pid_namespace(), "pid_start_ticks": start_ticks(os.getpid())}
    sink.emit(started(me, **(here | changes)))

def no_locks(*_):
    raise OSError(37, "No locks available")

print(os.getpid(), flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Trainer:
    """A child process that does what it is told, line by line.

    Args:
        folder: Of its journal.
        segment_bytes: After which it rotates.
        prefix: Command to start it with.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = 1 << 20, prefix: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", TRAINER, str(folder), str(segment_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = int(self._line() or 0)
        self.identity = replace(who(0), pid=self.pid)

    def do(self, code: str) -> "Trainer":
        """Let it run a line, and wait until it has."""
        self._tell(code)
        assert self._line() == "done", code
        return self

    def die(self, code: str) -> None:
        """Let it run a line that it does not survive."""
        self._tell(code)
        self.process.wait(10)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it from outside."""
        self.process.send_signal(number)
        self.process.wait(10)

    def close(self) -> None:
        """Whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass

    def _tell(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


class Watch:
    """A follower, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = time.time
        self.events: list[Event] = []
        self.follower = self._new()
        self.trainers: list[Trainer] = []

    def _new(self) -> Follower:
        return Follower(self.folder, self.events.append, lambda: self.now(), retention_seconds=RETENTION)

    def trainer(self, **arguments: object) -> Trainer:
        """Start a trainer on this folder."""
        one = Trainer(self.folder, **arguments)  # type: ignore[arg-type]
        self.trainers.append(one)
        return one

    def poll(self) -> list[Event]:
        """What is new."""
        before = len(self.events)
        self.follower.poll()
        return self.events[before:]

    def restart(self) -> None:
        """Save, and go on as a new exporter would."""
        snapshot.save(self.folder, Tally(), self.follower.followed)
        self.follower.close()
        self.follower = self._new()
        self.follower.followed.update(snapshot.load(self.folder)[1])

    def losses(self) -> list[ProcessLost]:
        """Processes that were missed."""
        return [event for event in self.events if isinstance(event, ProcessLost)]

    def live(self) -> int:
        """How many are taken for alive."""
        return len(self.follower.live())

    def close(self) -> None:
        """End all."""
        for one in self.trainers:
            one.close()
        self.follower.close()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """A follower of a folder that is not there yet."""
    made = Watch(tmp_path / "j")
    yield made
    made.close()


def loss(trainer: Trainer, how: Exit, result: Result | None) -> tuple[object, ...]:
    """What is to be told of a process that vanished."""
    return (trainer.identity, how, result)


def told(losses: list[ProcessLost]) -> list[tuple[object, ...]]:
    """What was told of them, without the moment."""
    return [(one.identity, one.how, one.result) for one in losses]


def kinds(events: list[Event]) -> list[str]:
    """Class names of events."""
    return [type(event).__name__ for event in events]


def test_folder_that_is_not_there(watch: Watch) -> None:
    """An exporter may be started before any trainer."""
    assert watch.follower.poll() is False
    assert (watch.events, watch.live()) == ([], 0)


def test_what_a_journal_says_of_servers_is_not_told(watch: Watch) -> None:
    """Servers are looked at by the exporter itself."""
    trainer = watch.trainer().do("head()")
    trainer.do("from tests.sinks import seen; sink.emit(seen()); sink.emit(begun(me))")
    assert kinds(watch.poll()) == ["ProcessStarted", "SyncStarted"]


def test_clean_end(watch: Watch) -> None:
    """Every event once and in order, and nobody is missed who said good-bye."""
    trainer = watch.trainer().do("head()")
    assert kinds(watch.poll()) == ["ProcessStarted"]
    assert watch.live() == 1
    trainer.do("sink.emit(begun(me)); sink.emit(entered(me, Phase.SAVE)); sink.emit(record(me))")
    me = trainer.identity
    assert watch.poll() == [begun(me), entered(me, Phase.SAVE), record(me)]
    assert watch.poll() == []
    trainer.do("sink.emit(ended(me)); sink.close()")
    assert watch.poll() == [ended(me)]
    assert watch.live() == 0
    trainer.kill()
    assert watch.poll() == []
    assert watch.losses() == []


def test_sigkill_inside_a_sync(watch: Watch) -> None:
    """All that it wrote is read first; then it is lost, and its sync failed."""
    before = time.time()
    trainer = watch.trainer().do("head()")
    watch.poll()
    trainer.do("sink.emit(begun(me)); sink.emit(entered(me, Phase.REQUEST))")
    trainer.kill()
    assert kinds(watch.poll()) == ["SyncStarted", "PhaseStarted", "ProcessLost"]
    assert told(watch.losses()) == [loss(trainer, Exit.LOST, Result.FAILURE)]
    assert before <= watch.losses()[0].at <= time.time()
    assert watch.poll() == []
    assert watch.live() == 0


def test_sigkill_outside_of_a_sync(watch: Watch) -> None:
    """It is lost; no sync failed by that."""
    trainer = watch.trainer().do("head(); sink.emit(begun(me)); sink.emit(record(me))")
    trainer.kill()
    watch.poll()
    assert told(watch.losses()) == [loss(trainer, Exit.LOST, None)]


def test_exit_without_a_word_after_a_failed_sync(watch: Watch) -> None:
    """It raised and left by os._exit, as launchers do: it failed, and is not a riddle."""
    trainer = watch.trainer().do("head(); sink.emit(begun(me)); sink.emit(failed(me))")
    trainer.die("os._exit(1)")
    watch.poll()
    assert told(watch.losses()) == [loss(trainer, Exit.FAILED, None)]


def test_killed_in_the_sync_after_a_failed_one(watch: Watch) -> None:
    """It had recovered and begun another sync: that one is lost."""
    trainer = watch.trainer().do("head(); sink.emit(begun(me)); sink.emit(failed(me)); sink.emit(begun(me, 2))")
    trainer.kill()
    watch.poll()
    assert told(watch.losses()) == [loss(trainer, Exit.LOST, Result.FAILURE)]


def test_exporter_that_starts_late(watch: Watch) -> None:
    """The trainer is dead already: all of it is found, once."""
    trainer = watch.trainer().do("head(); sink.emit(begun(me))")
    trainer.kill()
    assert kinds(watch.poll()) == ["ProcessStarted", "SyncStarted", "ProcessLost"]
    assert watch.poll() == []


LAUNCH = "launch = LaunchJournal(folder, launch_id='l', run='grpo'); launch.start()"


def test_launcher_was_told_to_stop(watch: Watch) -> None:
    """What vanishes after a stop that was asked for was stopped: a clean end, a cancelled sync."""
    launcher = watch.trainer().do(LAUNCH)
    trainer = watch.trainer().do("head(launch_id='l'); sink.emit(begun(me))")
    watch.poll()
    launcher.do("launch.signalled(15)")
    trainer.kill(signal.SIGTERM)
    watch.poll()
    assert told(watch.losses()) == [loss(trainer, Exit.CLEAN, Result.CANCELLED)]
    launcher.do("launch.ended(143); launch.close()")
    watch.poll()
    assert watch.live() == 0
    assert [one for one in kinds(watch.events) if one.startswith("Launch")] == [
        "LaunchStarted",
        "LaunchSignalled",
        "LaunchEnded",
    ]


def test_all_is_found_at_once(watch: Watch) -> None:
    """Launcher and trainer are gone before anybody looks; its name sorts behind the trainer's."""
    launcher = watch.trainer().do(LAUNCH)
    trainer = watch.trainer().do("head(launch_id='l'); sink.emit(begun(me))")
    launcher.do("launch.signalled(2)")
    trainer.kill()
    launcher.do("launch.ended(130); launch.close()")
    watch.poll()
    assert told(watch.losses()) == [loss(trainer, Exit.CLEAN, Result.CANCELLED)]
    assert {type(one) for one in watch.events} >= {LaunchStarted, LaunchSignalled, LaunchEnded}


def test_other_launch_was_told_to_stop(watch: Watch) -> None:
    """A stop counts for the launcher's own trainers only."""
    watch.trainer().do(LAUNCH).do("launch.signalled(15)")
    trainer = watch.trainer().do("head(launch_id='another'); sink.emit(begun(me))")
    trainer.kill()
    wait_until(lambda: (watch.poll(), watch.losses())[1], "the trainer is missed")
    assert told(watch.losses()) == [loss(trainer, Exit.LOST, Result.FAILURE)]


def test_stop_is_remembered_across_a_restart_of_the_exporter(watch: Watch) -> None:
    """The stop was read before the restart, the trainer ends behind it."""
    launcher = watch.trainer().do(LAUNCH)
    trainer = watch.trainer().do("head(launch_id='l'); sink.emit(begun(me))")
    launcher.do("launch.signalled(15)")
    watch.poll()
    watch.restart()
    trainer.kill()
    watch.poll()
    assert told(watch.losses()) == [loss(trainer, Exit.CLEAN, Result.CANCELLED)]


def test_stop_that_is_told_after_the_death(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler stops all processes of a job at once: the launcher's word may come after the trainer's end."""
    monkeypatch.setattr(follow, "GRACE_SECONDS", 60.0)
    launcher = watch.trainer().do(LAUNCH)
    trainer = watch.trainer().do("head(launch_id='l'); sink.emit(begun(me))")
    watch.poll()
    trainer.kill()
    watch.poll()
    assert watch.losses() == []
    launcher.do("launch.signalled(15)")
    watch.poll()
    assert told(watch.losses()) == [loss(trainer, Exit.CLEAN, Result.CANCELLED)]


def test_rotated_segments(watch: Watch) -> None:
    """A full journal goes on in another file: nothing is lost in between, and the process stays one."""
    trainer = watch.trainer(segment_bytes=1500).do("head()")
    for first in range(0, 100, 20):
        trainer.do(f"[sink.emit(entered(me, Phase.SAVE, n)) for n in range({first}, {first + 20})]")
        if first != 40:
            watch.poll()
    assert len(segments(watch.folder)) > 5
    watch.poll()
    assert [one.sequence for one in watch.events if isinstance(one, PhaseStarted)] == list(range(100))
    assert watch.live() == 1
    assert watch.losses() == []
    trainer.do("[sink.emit(entered(me, Phase.SAVE, n)) for n in range(100, 130)]")
    trainer.kill()
    watch.poll()
    assert [one.sequence for one in watch.events if isinstance(one, PhaseStarted)] == list(range(130))
    assert told(watch.losses()) == [loss(trainer, Exit.LOST, None)]
    assert set(map(type, watch.events)) == {ProcessStarted, PhaseStarted, ProcessLost}


def test_restarted_exporter_goes_on(watch: Watch) -> None:
    """Each event once, also over a rotation, and the end of the process too."""
    trainer = watch.trainer(segment_bytes=1500).do("head()")
    for first in range(0, 60, 10):
        trainer.do(f"[sink.emit(entered(me, Phase.SAVE, n)) for n in range({first}, {first + 10})]")
        watch.poll()
        watch.restart()
    trainer.do("sink.emit(begun(me, 7))")
    watch.poll()
    watch.restart()
    trainer.kill()
    watch.poll()
    watch.restart()
    assert watch.poll() == []
    assert [one.sequence for one in watch.events if isinstance(one, PhaseStarted)] == list(range(60))
    assert told(watch.losses()) == [loss(trainer, Exit.LOST, Result.FAILURE)]


def test_file_removed_while_it_is_followed(watch: Watch) -> None:
    """The open file is read on until its process opens another at its next sync."""
    trainer = watch.trainer().do("head(); sink.emit(begun(me))")
    watch.poll()
    (path,) = segments(watch.folder)
    path.unlink()
    trainer.do("sink.emit(record(me))")
    assert watch.poll() == [record(trainer.identity)]
    assert watch.live() == 1
    trainer.do("sink.emit(begun(me, 2))")
    assert [one for one in kinds(watch.poll()) if one != "ProcessStarted"] == ["SyncStarted"]
    trainer.kill()
    watch.poll()
    assert told(watch.losses()) == [loss(trainer, Exit.LOST, Result.FAILURE)]


def test_file_removed_and_its_process_killed(watch: Watch) -> None:
    """The lock on the open file tells of the death all the same."""
    trainer = watch.trainer().do("head(); sink.emit(begun(me))")
    watch.poll()
    for path in segments(watch.folder):
        path.unlink()
    trainer.kill()
    watch.poll()
    assert told(watch.losses()) == [loss(trainer, Exit.LOST, Result.FAILURE)]
    assert watch.poll() == []
    assert watch.follower.followed == {}


def test_stopped_process_stays_alive(watch: Watch) -> None:
    """A debugger or SIGSTOP is no death, however long it takes."""
    trainer = watch.trainer().do("head(); sink.emit(begun(me))")
    watch.poll()
    trainer.process.send_signal(signal.SIGSTOP)
    wait_until(
        lambda: Path(f"/proc/{trainer.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it is stopped"
    )
    watch.now = lambda: time.time() + 100 * RETENTION
    assert watch.poll() == []
    assert watch.live() == 1
    trainer.process.send_signal(signal.SIGCONT)
    trainer.do("sink.emit(record(me))")
    assert watch.poll() == [record(trainer.identity)]


def test_torn_last_line(watch: Watch) -> None:
    """It waits while the process lives; when that is dead, it is counted as an error, once."""
    trainer = watch.trainer().do("head(); sink.emit(begun(me))")
    watch.poll()
    (path,) = segments(watch.folder)
    with path.open("ab") as file:
        file.write(b'{"v":"1.0","event":"sync_rec')
    assert watch.poll() == []
    trainer.kill()
    error, lost = watch.poll()
    assert isinstance(error, TelemetryError)
    assert (error.identity, error.component, error.count) == (trainer.identity, Component.JOURNAL, 1)
    assert path.name in error.text
    assert isinstance(lost, ProcessLost)
    assert watch.poll() == []


def test_garbage_is_counted_and_passed_over(watch: Watch) -> None:
    """What stands behind it is read."""
    trainer = watch.trainer().do("head()")
    (path,) = segments(watch.folder)
    with path.open("ab") as file:
        file.write(b'garbage\n{"v":"2.0","event":"x"}\n')
    trainer.do("sink.emit(record(me))")
    head, good, error = watch.poll()
    assert isinstance(head, ProcessStarted)
    assert good == record(trainer.identity)
    assert isinstance(error, TelemetryError)
    assert error.count == 2


def test_older_than_the_retention_is_not_raised_from_the_dead(watch: Watch) -> None:
    """A folder full of last year's runs says nothing today."""
    trainer = watch.trainer().do("head(); sink.emit(begun(me))")
    trainer.kill()
    (path,) = segments(watch.folder)
    os.utime(path, (time.time() - RETENTION - 60,) * 2)
    assert watch.poll() == []
    assert watch.live() == 0
    os.utime(path, None)
    assert watch.poll() == []


def test_long_silent_but_alive_when_the_exporter_starts(watch: Watch) -> None:
    """A trainer that syncs less often than the retention lives all the same, for its lock is held."""
    trainer = watch.trainer().do("head()")
    (path,) = segments(watch.folder)
    os.utime(path, (time.time() - RETENTION - 60,) * 2)
    assert kinds(watch.poll()) == ["ProcessStarted"]
    trainer.do("sink.emit(begun(me))")
    assert watch.poll() == [begun(trainer.identity)]


def test_journal_that_is_being_born(watch: Watch) -> None:
    """The file is there, its lock and its first line are not: no death, and nothing is missed afterwards."""
    watch.folder.mkdir()
    path = watch.folder / "grpo-r0-1-x.000001.jsonl"
    path.touch()
    assert watch.poll() == []
    assert watch.live() == 1
    watch.now = lambda: time.time() + 6
    watch.poll()
    assert (watch.live(), watch.events) == (0, [])


def test_other_pid_namespace(watch: Watch) -> None:
    """A container: its pid says nothing here, its lock does."""
    allowed = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
    if allowed.returncode != 0:
        pytest.skip(f"a pid namespace is not allowed here: {allowed.stderr.strip()}")
    trainer = watch.trainer(prefix=("unshare", "--pid", "--fork", "--kill-child")).do("head(); sink.emit(begun(me))")
    assert trainer.pid == 1
    assert kinds(watch.poll()) == ["ProcessStarted", "SyncStarted"]
    assert (watch.poll(), watch.live()) == ([], 1)
    trainer.kill()
    wait_until(lambda: watch.poll() or watch.losses(), "its death is seen")
    assert told(watch.losses()) == [loss(trainer, Exit.LOST, Result.FAILURE)]


def test_without_locks_pid_and_start_time_tell(watch: Watch) -> None:
    """A file system without record locks, on this host."""
    trainer = watch.trainer().do("fcntl.lockf = no_locks; head(); sink.emit(begun(me))")
    head = watch.poll()[0]
    assert isinstance(head, ProcessStarted)
    assert (head.locked, head.boot_id, head.pid_namespace) == (False, boot_id(), pid_namespace())
    assert (watch.poll(), watch.live()) == ([], 1)
    trainer.kill()
    watch.poll()
    assert told(watch.losses()) == [loss(trainer, Exit.LOST, Result.FAILURE)]


@pytest.mark.parametrize("elsewhere", ["boot_id='x'", "pid_namespace='pid:[1]'"])
def test_without_locks_elsewhere_nothing_is_claimed(watch: Watch, elsewhere: str) -> None:
    """Another host or container on a network file system: it is said once that it cannot be known."""
    trainer = watch.trainer().do(f"fcntl.lockf = no_locks; head({elsewhere}); sink.emit(begun(me))")
    assert kinds(watch.poll()) == ["ProcessStarted", "SyncStarted", "ProcessUnwatched"]
    trainer.do("sink.emit(record(me))")
    trainer.kill()
    assert watch.poll() == [record(trainer.identity)]
    assert watch.poll() == []
    assert isinstance(watch.events[2], ProcessUnwatched)
    assert watch.losses() == []


def test_forked_worker_that_outlives_its_trainer(watch: Watch) -> None:
    """It has no lock of the trainer's, and whatever it writes is its own."""
    trainer = watch.trainer().do("head(); sink.emit(begun(me)); read, write = os.pipe()")
    trainer.do("(os.close(write), os.read(read, 1), os._exit(0)) if os.fork() == 0 else None")
    watch.poll()
    assert watch.live() == 1
    trainer.kill()
    watch.poll()
    assert told(watch.losses()) == [loss(trainer, Exit.LOST, Result.FAILURE)]


def test_run_id_agreed_on_after_the_start(watch: Watch) -> None:
    """The loss is told of the identity that the syncs were counted under."""
    trainer = watch.trainer().do("head(); me = replace(me, run_id='agreed'); sink.emit(begun(me))")
    watch.poll()
    trainer.kill()
    watch.poll()
    assert told(watch.losses()) == [(replace(trainer.identity, run_id="agreed"), Exit.LOST, Result.FAILURE)]


def test_many_trainers(watch: Watch) -> None:
    """Some end, some are killed, some go on; each has its own story."""
    trainers = [watch.trainer().do("head(); sink.emit(begun(me)); sink.emit(record(me))") for _ in range(4)]
    watch.poll()
    assert watch.live() == 4
    trainers[0].do("sink.emit(ended(me)); sink.close()")
    trainers[1].kill()
    trainers[2].die("sink.emit(begun(me, 2)); os._exit(3)")
    watch.poll()
    assert watch.live() == 1
    by_pid = {one.identity.pid: (one.how, one.result) for one in watch.losses()}
    assert by_pid == {trainers[1].pid: (Exit.LOST, None), trainers[2].pid: (Exit.LOST, Result.FAILURE)}
    assert [one.identity.pid for one in watch.events if isinstance(one, ProcessEnded)] == [trainers[0].pid]


def test_what_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    """A FIFO, a folder and a link that end like journals: opening the first would wait for ever."""
    os.mkfifo(tmp_path / "fifo-1.000001.jsonl")
    (tmp_path / "folder-1.000001.jsonl").mkdir()
    (tmp_path / "link-1.000001.jsonl").symlink_to("/dev/zero")
    told: list[Event] = []
    follower = Follower(tmp_path, told.append, time.time, retention_seconds=60.0)
    assert follower.poll() is False
    assert told == []
