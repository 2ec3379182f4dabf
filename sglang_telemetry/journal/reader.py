"""Follows one growing segment: whole lines only, from where it stopped, as long as the file is there."""

import os
from collections.abc import Iterator
from pathlib import Path

from sglang_telemetry.events import Event
from sglang_telemetry.journal.format import BadLine, decode

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 4 << 20


class SegmentReader:
    """Reads the lines that were added since the last time.

    The file stays open, so that a segment which somebody removes is still read to its end.

    Args:
        path: The segment.
        offset: Bytes that were read before.

    Raises:
        OSError: The file cannot be opened, for instance because it is gone.
    """

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.bad_lines = 0
        self.last_error: str | None = None
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor, to look at locks with."""
        return self._fd

    def modified_at(self) -> float:
        """Unix seconds of the last write."""
        return os.fstat(self._fd).st_mtime

    def events(self, *, to_end_of_file: bool = False) -> Iterator[Event]:
        """The new events; ``offset`` moves on behind each.

        Args:
            to_end_of_file: Nobody writes any more: a last line without its newline is torn, and skipped.
        """
        rest = b""
        position = self.offset
        while chunk := os.pread(self._fd, CHUNK_BYTES, position):
            position += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                event = self._decoded(line)
                self.offset += len(line) + 1
                if event is not None:
                    yield event
            if len(rest) > MAX_LINE_BYTES:
                self._bad("a line is longer than 4 MiB")
                self.offset, rest = position, b""
        if rest and to_end_of_file:
            event = self._decoded(rest)
            self.offset += len(rest)
            if event is not None:
                yield event

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _decoded(self, line: bytes) -> Event | None:
        if not line.strip(b"\0 \r\t"):
            return None
        try:
            return decode(line)
        except BadLine as error:
            self._bad(str(error))
            return None

    def _bad(self, reason: str) -> None:
        self.bad_lines += 1
        self.last_error = reason[:200]
