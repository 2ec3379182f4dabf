"""No two updates at once against one server from this host: SGLang queues them, and mixes what it loads.

A flock on a small file, which the kernel drops when its holder dies, however it dies. The file stays: to remove it
would let two processes lock two files of one name.
"""

import fcntl
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sglang_telemetry.remedies.forked import forget_in_child

_POLL_SECONDS = 0.05
_UNSAFE = re.compile(r"[^A-Za-z0-9._:\[\]-]")
_LONGEST = 150


class HostLock:
    """The lock of one server; one object for each use, and an object that is shared works too.

    It is not reentrant: who holds it and asks again waits for himself.

    Args:
        folder: Where the file is; made when missing, for this user alone.
        server: ``host:port``, as all on this host call it.
        clock: Seconds, only forward.
    """

    def __init__(self, folder: Path, server: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = folder / _name(server)
        self._clock = clock
        # Processes and other objects are kept out by the file, threads that share this object by the mutex.
        self._mutex = threading.Lock()
        self._fd: int | None = None
        forget_in_child(self)

    def acquire(self, seconds: float) -> bool:
        """Wait until nobody else has it.

        Args:
            seconds: How long at most; 0 asks once.

        Returns:
            False when somebody had it all that time.

        Raises:
            OSError: The file cannot be made, or its file system has no locks.
        """
        end = self._clock() + max(0.0, seconds)
        if not self._mutex.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX)):
            return False
        try:
            self._fd = self._lock(end)
        finally:
            if self._fd is None:
                self._mutex.release()
        return self._fd is not None

    def release(self) -> None:
        """Let the next one in; nothing when it is not held, as in a child that was forked meanwhile."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            # A child that was forked without Python's hooks may have the descriptor too: closing ours is not enough.
            fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)
            self._mutex.release()

    def forget(self) -> None:
        """In a forked child: it is the parent who holds it."""
        fd, self._fd = self._fd, None
        self._mutex = threading.Lock()
        if fd is not None:
            os.close(fd)

    def _lock(self, end: float) -> int | None:
        os.makedirs(self.path.parent, mode=0o700, exist_ok=True)
        # O_NOFOLLOW: in a folder under /tmp the name could be somebody's link to a file of ours.
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            while not _try(fd):
                left = end - self._clock()
                if left <= 0:
                    os.close(fd)
                    return None
                # flock has no time-out, and its waiting cannot be woken from another thread.
                time.sleep(min(_POLL_SECONDS, left))
        except BaseException:
            os.close(fd)
            raise
        return fd


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _name(server: str) -> str:
    safe = _UNSAFE.sub("_", server)
    if safe != server or len(safe) > _LONGEST:  # two servers must not become one
        safe = f"{safe[:_LONGEST]}-{hashlib.sha256(server.encode(errors='surrogateescape')).hexdigest()[:8]}"
    return f"update-{safe}.lock"
