"""Is the process that writes a journal alive? The record lock says so; where there is none, pid and start time do."""

import os

from sglang_telemetry.events import ProcessStarted
from sglang_telemetry.journal.lock import is_held
from sglang_telemetry.platform import boot_id, pid_namespace, start_ticks


def is_alive(fd: int, head: ProcessStarted | None) -> bool | None:
    """True or False where it can be known, None where it cannot.

    Args:
        fd: The open journal.
        head: Its first event, None when that is not a trainer's.
    """
    held = is_held(fd)
    if held or head is None or head.locked:
        return held
    if head.boot_id is None or head.boot_id != boot_id() or head.pid_namespace != pid_namespace():
        return None  # another host, or a container: a pid says nothing here
    if not os.path.isdir("/proc/self"):
        return None
    return start_ticks(head.identity.pid) == head.pid_start_ticks
