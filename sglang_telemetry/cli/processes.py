"""Ends a process and everything that it started."""

import contextlib
import os
import signal
from pathlib import Path


def kill_tree(pid: int) -> None:
    """SIGKILL a process and its descendants; stopped first, so that none starts another meanwhile."""
    pids = [pid]
    for one in pids:
        _send(one, signal.SIGSTOP)
        pids += [child for child in _children(one) if child not in pids]
    for one in pids:
        _send(one, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
