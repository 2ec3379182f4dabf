"""How fast a folder takes data that is really written, measured with a file that has no name any more."""

import os
import time
from collections.abc import Callable

from sglang_telemetry.preflight.temporary import temporary

MAX_BYTES = 64 << 20
SECONDS = 1.0
_PIECE = 4 << 20


def measure(folder: str, free_bytes: int | None, *, clock: Callable[[], float] = time.perf_counter) -> float | None:
    """Bytes a second, or None when it cannot be measured.

    Args:
        folder: Where to write at most 64 MiB, for 1 s, and no more than a quarter of what is free.
        free_bytes: What is free there.
        clock: Monotonic seconds.
    """
    limit = min(MAX_BYTES, (free_bytes or 0) // 4)
    if limit < _PIECE:
        return None
    path = temporary(folder)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.unlink(path)  # at once, so that nothing is left behind whatever happens
            piece, written, began = os.urandom(1 << 20) * (_PIECE >> 20), 0, clock()
            while written < limit and clock() - began < SECONDS:
                written += os.write(file, piece)
                os.fsync(file)
            spent = clock() - began
        finally:
            os.close(file)
    except OSError:
        return None
    return written / spent if spent > 0 else None
