"""A file of a checkpoint, open: regular files only, and reads that say so when they come back short.

A FIFO or a device in the place of a file would make a plain ``open`` or ``read`` wait for ever.
"""

import os
import stat
from types import TracebackType

from sglang_telemetry.checkpoint.errors import Faulty, Unchecked, of_os_error

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class OpenFile:
    """A regular file, opened for reading.

    Args:
        folder: The checkpoint.
        name: Name of the file in it.

    Raises:
        Faulty: It is not there, or is no regular file.
        Unchecked: It cannot be opened here.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        path = os.path.join(folder, name)
        try:
            # Before it is opened too: opening a device can have effects of its own.
            self._check(os.stat(path))
            self._fd = os.open(path, _FLAGS)
        except OSError as error:
            raise of_os_error(error, name) from error
        try:
            there = os.fstat(self._fd)
            self._check(there)
        except OSError as error:
            os.close(self._fd)
            raise of_os_error(error, name) from error
        except BaseException:
            os.close(self._fd)
            raise
        self.size = there.st_size

    def __enter__(self) -> "OpenFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly these bytes.

        Args:
            offset: From the start of the file.
            length: How many; the caller has compared it with a bound.

        Raises:
            Faulty: The file ends before, for instance since it was cut after it was opened.
            Unchecked: It cannot be read here.
        """
        parts: list[bytes] = []
        while length:
            try:
                part = os.pread(self._fd, length, offset)
            except OSError as error:
                raise of_os_error(error, self.name) from error
            if not part:
                raise self.fault(f"ends at byte {offset}, {offset + length} expected: cut short")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fault(self, text: str) -> Faulty:
        """What is wrong with this file, which it names."""
        return Faulty(f"{self.name}: {text}")

    def unchecked(self, text: str) -> Unchecked:
        """Why this file, which it names, is not checked."""
        return Unchecked(f"{self.name}: {text}")

    def _check(self, there: os.stat_result) -> None:
        if stat.S_ISDIR(there.st_mode):
            raise self.fault("a folder, not a file")
        if not stat.S_ISREG(there.st_mode):
            raise self.fault("not a regular file")
