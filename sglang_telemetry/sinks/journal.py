"""Events into the journal file, from which the exporter makes metrics also when this process is gone."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from sglang_telemetry.events import Event, ProcessStarted, SyncStarted, TelemetryError
from sglang_telemetry.journal.folder import default_folder
from sglang_telemetry.journal.format import encode
from sglang_telemetry.journal.retention import prune_abandoned
from sglang_telemetry.journal.writer import DEFAULT_SEGMENT_BYTES, JournalWriter
from sglang_telemetry.names import Component
from sglang_telemetry.timeline import Clock, SystemClock


class JournalSink:
    """Writes each event as one line, with one ``write``.

    Args:
        folder: Default ``SGLANG_TELEMETRY_DIR``, else a private folder below the temporary one.
        segment_bytes: A file that is longer is ended, and another one begun.
        clock: Where time comes from.
    """

    component = Component.JOURNAL

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._folder = Path(folder) if folder is not None else default_folder()
        self._segment_bytes = segment_bytes
        self._clock = clock or SystemClock()
        self._writer: JournalWriter | None = None
        self._pid = os.getpid()
        self._head: ProcessStarted | None = None

    @property
    def path(self) -> Path | None:
        """The file that is being written, None before the first event."""
        return self._writer.path if self._writer else None

    def emit(self, event: Event) -> None:
        """Append the event.

        Raises:
            OSError: The disk did not take it; it is kept, and written before the next event that is taken.
        """
        if isinstance(event, ProcessStarted):
            self._begin(event)
            return
        if os.getpid() != self._pid:
            self._after_fork()
        writer = self._writer
        if writer is None:
            raise OSError("a journal begins with ProcessStarted")
        # Opening is tried once a sync, not once an event: on a sick file system each try can cost.
        if (isinstance(event, SyncStarted) and not writer.is_open) or (writer.full and writer.is_open):
            with contextlib.suppress(OSError):
                self._open(writer)
        writer.write(encode(event))
        if writer.dropped:
            lost, writer.dropped = writer.dropped, 0
            text = f"{lost} events were dropped: the disk took none for too long"
            identity = self._head.identity if self._head is not None else None
            told = TelemetryError(
                component=self.component, text=text, count=lost, identity=identity, at=self._clock.wall()
            )
            writer.write(encode(told))

    def close(self) -> None:
        """Close the file, and with it drop the lock that says this process is observed."""
        if self._writer is not None:
            self._writer.close()

    def _begin(self, head: ProcessStarted) -> None:
        self._head = head
        identity = head.identity
        self._writer = JournalWriter(
            self._folder, f"{identity.run}-r{identity.rank}", segment_bytes=self._segment_bytes
        )
        prune_abandoned(self._folder, now=self._clock.wall())
        self._open(self._writer)

    def _open(self, writer: JournalWriter) -> None:
        writer.open_segment()
        if self._head is not None:
            writer.write_first(encode(replace(self._head, locked=writer.locked)))

    def _after_fork(self) -> None:
        """A forked child writes a file of its own: the lock stayed with its parent."""
        self._pid = os.getpid()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._head is not None:
            self._begin(replace(self._head, identity=replace(self._head.identity, pid=self._pid)))
