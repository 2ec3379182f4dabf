"""Does a process hold the record lock on this file? Asked without taking it, so that a writer is never in its way."""

import fcntl
import os
import struct

# struct flock of Linux on 64-bit machines: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK = "hhqqi"


def is_held(fd: int) -> bool | None:
    """True when another process holds a lock on the file, False when none does, None when it cannot be told."""
    try:
        query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, query)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
    except (OSError, struct.error):
        return None
