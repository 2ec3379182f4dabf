"""Does a process hold the record lock on this file? Asked without taking it, so that a writer is never in its way."""

import fcntl
import os
import struct
from pathlib import Path

# struct flock of Linux on 64-bit machines: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK = "hhqqi"


def is_held_on(path: Path) -> bool | None:
    """The same for a path; None also when it cannot be opened.

    Never to be asked of a journal that this very process writes: closing the descriptor would drop its lock. Those,
    which have the pid in their name, are None.
    """
    if f"-{os.getpid()}-" in path.name:
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return is_held(fd)
    finally:
        os.close(fd)


def is_held(fd: int) -> bool | None:
    """True when another process holds a lock on the file, False when none does, None when it cannot be told."""
    try:
        query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, query)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
    except (OSError, struct.error):
        return None
