"""Appends lines to a locked file of this process's own, in segments; keeps what the disk does not take for later.

The record lock (``fcntl.lockf``) tells the exporter that the process lives: the kernel drops it at any death, it is
seen across pid namespaces, and forked workers do not inherit it. Closing *any* descriptor of a file drops the
process's locks on it, so a segment is opened once and nothing else in this process may open it.
"""

import fcntl
import os
import uuid
from collections import deque
from pathlib import Path

from sglang_telemetry.journal.folder import make_private, slug
from sglang_telemetry.journal.format import SUFFIX

DEFAULT_SEGMENT_BYTES = 16 << 20
MAX_PENDING = 512


class JournalWriter:
    """One process's journal.

    Args:
        folder: Made with mode 0700 when missing.
        name: First part of the file name, for people.
        segment_bytes: A file that is longer is ended, and another one begun.
    """

    def __init__(self, folder: Path, name: str, *, segment_bytes: int = DEFAULT_SEGMENT_BYTES) -> None:
        self.folder = folder
        self.locked = False
        self.dropped = 0
        self._stem = f"{slug(name)}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._segment_bytes = segment_bytes
        self._segment = 0
        self._fd: int | None = None
        self._size = 0
        self._torn = False
        self._head: bytes | None = None
        self._pending: deque[bytes] = deque()

    @property
    def path(self) -> Path:
        """The segment that is being written."""
        return self._path_of(self._segment)

    def _path_of(self, segment: int) -> Path:
        return self.folder / f"{self._stem}.{segment:06d}{SUFFIX}"

    @property
    def is_open(self) -> bool:
        """A segment is open, and nobody has removed it."""
        if self._fd is None:
            return False
        try:
            return os.fstat(self._fd).st_nlink > 0
        except OSError:
            return False

    @property
    def full(self) -> bool:
        """The segment is as long as it should get."""
        return self._size >= self._segment_bytes

    def open_segment(self) -> None:
        """Begin the next segment, locked before it has a single byte.

        Raises:
            OSError: The folder or the file cannot be made.
        """
        make_private(self.folder)
        before, number = self._fd, self._segment + 1
        fd = os.open(self._path_of(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.locked = True
        except OSError:  # a file system without record locks
            self.locked = False
        self._fd, self._segment, self._size, self._torn = fd, number, 0, False
        if before is not None:
            os.close(before)

    def write_first(self, head: bytes) -> None:
        """Begin a fresh segment with its head, before anything that waits.

        Raises:
            OSError: The disk did not take it now.
        """
        self._head = head
        self._flush()

    def write(self, line: bytes) -> None:
        """Append a line with one ``write``; a line that the disk does not take is kept and tried again later.

        Raises:
            OSError: The disk did not take it now.
        """
        self._pending.append(line)
        while len(self._pending) > MAX_PENDING:
            self._pending.popleft()
            self.dropped += 1
        self._flush()

    def _flush(self) -> None:
        if self._fd is None:
            raise OSError(f"no journal could be opened in {self.folder}; {len(self._pending)} events wait")
        if self._head is not None:
            self._append(self._fd, self._head)
            self._head = None
        while self._pending:
            line = self._pending.popleft()  # first: a signal's exception behind the write must not write it again
            try:
                self._append(self._fd, line)
            except OSError:
                self._pending.appendleft(line)
                raise

    def _append(self, fd: int, line: bytes) -> None:
        # A short write left half a line behind: end it, so that only that copy is lost and not this one too.
        data = b"\n" + line if self._torn else line
        written = os.write(fd, data)
        self._size += written
        if written == len(data) - 1:  # the newline alone is missing: the line is there, the next one ends it
            self._torn = True
            return
        if written != len(data):
            self._torn = written > 0 or self._torn
            raise OSError(28, f"only {written} of {len(data)} bytes fitted into {self.path}")
        self._torn = False

    def close(self) -> None:
        """Close the segment, and with it drop the lock."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)
