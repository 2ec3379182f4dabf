"""What the journals of a command that has ended say of its last failed sync, also of ranks that were killed in it."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from sglang_telemetry.events import Event, Identity, ProcessLost, SyncRecord
from sglang_telemetry.exporter.follow import Followed
from sglang_telemetry.journal.lock import is_held
from sglang_telemetry.journal.reader import SegmentReader
from sglang_telemetry.journal.retention import segments, stem_of
from sglang_telemetry.names import Exit, Result
from sglang_telemetry.spans import Span, spans_of

_SEGMENTS_READ = 2
"""A sync can begin in one segment and end in the next; older ones hold older syncs."""

_SyncKey = tuple[str, str, int]


def last_failure(folder: Path, launch_id: str) -> tuple[Span, ...]:
    """The spans of all ranks of this host in the last sync that failed; none when none did.

    Args:
        folder: The journals.
        launch_id: Whose trainers are meant.
    """
    syncs: dict[_SyncKey, list[SyncRecord | ProcessLost]] = {}
    for _, paths in groupby(_of_trainers(folder), key=stem_of):
        for event in _ended_syncs(list(paths)[-_SEGMENTS_READ:], launch_id):
            syncs.setdefault(_key(event), []).append(event)
    failed = [events for events in syncs.values() if any(one.result is Result.FAILURE for one in events)]
    if not failed:
        return ()
    latest = max(failed, key=lambda events: max(_started_at(one) for one in events))
    return tuple(span for event in latest for span in spans_of(event))


def _of_trainers(folder: Path) -> list[Path]:
    # Not the launcher's own: closing a descriptor of a journal that this process writes would drop its lock.
    return [path for path in segments(folder) if not path.name.startswith("launch-")]


def _ended_syncs(paths: list[Path], launch_id: str) -> Iterator[SyncRecord | ProcessLost]:
    known = Followed(stem="")
    alive, seen_at = False, 0.0
    for path in paths:
        try:
            reader = SegmentReader(path)
        except OSError:
            continue
        try:
            alive, seen_at = is_held(reader.fileno()) is True, reader.modified_at()
            for event in _events(reader):
                known.note(event)
                if known.head is not None and known.head.launch_id != launch_id:
                    return
                if isinstance(event, SyncRecord):
                    yield event
        finally:
            reader.close()
    loss = None if alive or known.over else known.lost(seen_at, Exit.LOST, Result.FAILURE)
    if loss is not None and loss.sync is not None:
        yield loss


def _events(reader: SegmentReader) -> Iterator[Event]:
    try:
        yield from reader.events(to_end_of_file=True)
    except OSError:
        return


def _key(event: SyncRecord | ProcessLost) -> _SyncKey:
    identity, sequence, _ = _sync_of(event)
    return (identity.run, identity.run_id, sequence)


def _started_at(event: SyncRecord | ProcessLost) -> float:
    return _sync_of(event)[2]


def _sync_of(event: SyncRecord | ProcessLost) -> tuple[Identity, int, float]:
    """Whose sync it was, its sequence and its start."""
    if isinstance(event, SyncRecord):
        return event.identity, event.sequence, event.started_at
    return (event.identity, 0, 0.0) if event.sync is None else (event.sync.identity, event.sync.sequence, event.sync.at)
