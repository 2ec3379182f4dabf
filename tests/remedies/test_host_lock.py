"""No two updates at once from one host: threads, processes, and those that die with the lock."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

from sglang_telemetry.remedies.host_lock import HostLock

SERVER = "10.0.0.7:30000"
HOLDER = """
import sys, pathlib
from sglang_telemetry.remedies.host_lock import HostLock
lock = HostLock(pathlib.Path(sys.argv[1]), sys.argv[2])
print(lock.acquire(5), flush=True)
sys.stdin.read()
"""


def test_one_at_a_time(tmp_path: Path) -> None:
    """Of two that ask, the second waits until the first is done; another server is another lock."""
    first, second = HostLock(tmp_path, SERVER), HostLock(tmp_path, SERVER)
    assert first.acquire(0.0)
    assert not second.acquire(0.1)
    assert HostLock(tmp_path, "10.0.0.8:30000").acquire(0.0)
    threading.Timer(0.1, first.release).start()
    assert second.acquire(20.0)
    second.release()
    second.release()


def test_a_process_that_dies_lets_go(tmp_path: Path) -> None:
    """The kernel takes the lock from it."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path), SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        mine = HostLock(tmp_path, SERVER)
        assert not mine.acquire(0.0)
        holder.kill()
        holder.wait(20)
        assert mine.acquire(20.0)
        mine.release()


def test_a_forked_child_does_not_have_it(tmp_path: Path) -> None:
    """It lives on, and the lock is free when its parent lets go."""
    lock = HostLock(tmp_path, SERVER)
    assert lock.acquire(0.0)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    lock.release()
    assert HostLock(tmp_path, SERVER).acquire(0.0)
    os.close(writing)
    os.waitpid(child, 0)


def test_the_folder_is_private_and_the_name_is_safe(tmp_path: Path) -> None:
    """Two names that are written alike stay two."""
    locks = [HostLock(tmp_path / "locks", name) for name in ("[::1]:1", "a/b:1", "a_b:1", "x" * 300)]
    assert all(lock.acquire(0.0) for lock in locks)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o700
    assert len(list((tmp_path / "locks").iterdir())) == 4
    for lock in locks:
        lock.release()
