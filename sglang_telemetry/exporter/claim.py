"""One exporter a folder: a record lock on a file in it, which holds the exporter's URL."""

import fcntl
import os
from pathlib import Path

from sglang_telemetry.journal.lock import is_held

LOCK_NAME = "exporter.lock"


class FolderServed(Exception):
    """Another exporter serves this folder already; its text names it."""


def serving(folder: Path) -> str | None:
    """URL of the exporter that serves a folder: None when none does, empty while one is starting.

    Not for use inside that exporter's process: closing the descriptor would drop its lock.
    """
    try:
        fd = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.pread(fd, 300, 0).decode(errors="replace").strip() if is_held(fd) else None
    finally:
        os.close(fd)


def take(folder: Path) -> int:
    """Claim a folder.

    Returns:
        The descriptor that holds the claim, for the URL to be written into.

    Raises:
        FolderServed: Another exporter has it.
        OSError: The folder cannot be written.
    """
    fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        url = os.pread(fd, 300, 0).decode(errors="replace").strip()
        os.close(fd)
        raise FolderServed(f"{folder} is served already, by the exporter at {url}") from error
    except OSError:  # a file system without record locks: two exporters cannot be told apart, one is still right
        pass
    os.ftruncate(fd, 0)
    return fd
