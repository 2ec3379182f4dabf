"""The trainers that one command started, as the ends of their journals have them once it is over."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from sglang_telemetry.events import Event, Remedied, SyncRecord
from sglang_telemetry.exporter.follow import Followed
from sglang_telemetry.journal.lock import is_held
from sglang_telemetry.journal.reader import SegmentReader
from sglang_telemetry.journal.retention import segments, stem_of

_SEGMENTS_READ = 2
"""A sync can begin in one segment and end in the next; older ones hold older syncs."""


@dataclass(slots=True, kw_only=True)
class Trainer:
    """One process.

    Args:
        known: How it ended, and the sync that it was in.
        records: Its syncs that ended.
        remedied: What remedies did.
        alive: It lives.
    """

    known: Followed
    records: list[SyncRecord] = field(default_factory=list)
    remedied: list[Remedied] = field(default_factory=list)
    alive: bool = False

    def note(self, event: Event) -> None:
        """Take in what its journal says next."""
        self.known.note(event)
        if isinstance(event, SyncRecord):
            self.records.append(event)
        elif isinstance(event, Remedied):
            self.remedied.append(event)


def trainers(folder: Path, launch_id: str) -> Iterator[Trainer]:
    """Those of this host.

    Args:
        folder: The journals.
        launch_id: Whose trainers are meant.
    """
    for stem, paths in groupby(_of_trainers(folder), key=stem_of):
        one = Trainer(known=Followed(stem=stem))
        for path in list(paths)[-_SEGMENTS_READ:]:
            try:
                reader = SegmentReader(path)
            except OSError:
                continue
            try:
                one.alive = is_held(reader.fileno()) is True
                for event in _events(reader):
                    one.note(event)
            finally:
                reader.close()
        if one.known.head is not None and one.known.head.launch_id == launch_id:
            yield one


def _of_trainers(folder: Path) -> list[Path]:
    # Not the launcher's own: closing a descriptor of a journal that this process writes would drop its lock.
    return [path for path in segments(folder) if not path.name.startswith("launch-")]


def _events(reader: SegmentReader) -> Iterator[Event]:
    try:
        yield from reader.events(to_end_of_file=True)
    except OSError:
        return
