"""Follows the journals of a folder: each event once, in the order of its process, and a word for those that vanish.

The order matters: whether a process lives is asked *before* its journal is read to the end, so that nothing it wrote
before it died can be missed, and the folder is listed once more before it is called dead, since a full journal goes
on in another file.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from sglang_telemetry.events import (
    Event,
    LaunchSignalled,
    LaunchStarted,
    PhaseSpan,
    PhaseStarted,
    ProcessEnded,
    ProcessLost,
    ProcessStarted,
    ProcessUnwatched,
    ServerSeen,
    SyncRecord,
    SyncResolved,
    SyncStarted,
    TelemetryError,
    WatchedPath,
)
from sglang_telemetry.exporter.liveness import is_alive
from sglang_telemetry.journal.lock import is_held_on
from sglang_telemetry.journal.reader import SegmentReader
from sglang_telemetry.journal.retention import segments, stem_of
from sglang_telemetry.names import Component, Exit, Phase, Result
from sglang_telemetry.text import clean

GRACE_SECONDS = 0.3
"""A scheduler stops a trainer and its launcher at the same moment: so long has the launcher to say that it was so."""


_PHASES_KEPT = 256
_OF_THE_EXPORTER = (ServerSeen, SyncResolved, WatchedPath)


@dataclass(slots=True)
class Followed:
    """How far one process's journal was read, and what that says of the process. It is saved and loaded."""

    stem: str
    segment: str = ""
    offset: int = 0
    head: ProcessStarted | None = None
    launch: LaunchStarted | None = None
    over: bool = False
    sync: SyncStarted | None = None
    phases: tuple[PhaseSpan, ...] = ()
    entered: PhaseStarted | None = None
    last_failed: bool = False
    unwatched: bool = False
    stop_asked: bool = False
    unreadable: bool = False
    missed_at: float = 0.0
    seen_alive_at: float = 0.0

    def note(self, event: Event) -> None:
        """Take from an event what is needed to judge the process's end."""
        if isinstance(event, ProcessStarted):
            self.head = event
        elif isinstance(event, LaunchStarted):
            self.launch = event
        elif isinstance(event, LaunchSignalled):
            self.stop_asked = True
        elif isinstance(event, ProcessEnded):
            self.over = True
        elif isinstance(event, SyncStarted):
            self.sync = event
            self.phases, self.entered = (PhaseSpan(phase=Phase.SETUP, offset_ns=0, duration_ns=0),), None
            if self.head is not None:
                self.head = _renamed(self.head, event)
        elif isinstance(event, PhaseStarted):
            self._enter(event)
        elif isinstance(event, SyncRecord):
            self.sync, self.phases, self.last_failed = None, (), event.result is Result.FAILURE

    def _enter(self, event: PhaseStarted) -> None:
        if self.sync is not None and self.sync.sequence == event.sequence and len(self.phases) < _PHASES_KEPT:
            entered = PhaseSpan(phase=event.phase, offset_ns=event.offset_ns, duration_ns=0)
            self.phases = (*self.phases[:-1], _until(self.phases[-1], event.offset_ns), entered)
            self.entered = event

    def lost(self, at: float, how: Exit, result: Result) -> ProcessLost | None:
        """What is to be said of it when it vanished; ``result`` holds for the sync that was open, if one was."""
        if self.head is None:
            return None
        if self.sync is None:
            return ProcessLost(identity=self.head.identity, at=at, how=how)
        request = self.entered.exchange if self.entered is not None else None
        begun_ns = self.phases[-1].offset_ns if request is None else request.offset_ns
        # The wall clock may have been set back, and a file's time is coarser than ours.
        lived_ns = max(begun_ns, round((at - self.sync.at) * 1e9))
        if request is not None:
            request = replace(request, duration_ns=lived_ns - request.offset_ns)
        return ProcessLost(
            identity=self.head.identity,
            at=at,
            how=how,
            result=result,
            sync=self.sync,
            phases=(*self.phases[:-1], _until(self.phases[-1], lived_ns)),
            exchange=request,
            exchange_index=self.entered.exchange_index if self.entered is not None else 0,
        )


def _until(phase: PhaseSpan, end_ns: int) -> PhaseSpan:
    return replace(phase, duration_ns=end_ns - phase.offset_ns)


def _renamed(head: ProcessStarted, event: SyncStarted) -> ProcessStarted:
    """The head with the identity that the process has by now: the run id may be agreed on after its start."""
    return head if head.identity == event.identity else replace(head, identity=event.identity)


class Follower:
    """Reads what was added to the journals of a folder, each time it is asked.

    Args:
        folder: Where the journals are; it need not be there yet.
        emit: Takes the events.
        now: Unix seconds.
        retention_seconds: A journal that was left longer ago is not raised from the dead.
    """

    def __init__(
        self, folder: Path, emit: Callable[[Event], object], now: Callable[[], float], *, retention_seconds: float
    ) -> None:
        self.folder = folder
        self.followed: dict[str, Followed] = {}
        self._emit = emit
        self._now = now
        self._retention_seconds = retention_seconds
        self._readers: dict[str, SegmentReader] = {}

    def poll(self) -> bool:
        """Read everything new.

        Returns:
            Something was new.
        """
        found = {stem: list(paths) for stem, paths in groupby(segments(self.folder), key=stem_of)}
        new = False
        # Launchers first: that a stop was asked for must be known before somebody is missed.
        for stem in sorted({*found, *self._readers}, key=lambda stem: (not stem.startswith("launch-"), stem)):
            known = self.followed.get(stem)
            if known is None:
                known = self.followed[stem] = Followed(stem=stem)
                if self._too_old(found.get(stem, [])):
                    known.over = True
            if not known.over:
                new = self._guarded_follow(known, found.get(stem, [])) or new
        for stem in [stem for stem, known in self.followed.items() if known.over and stem not in found]:
            del self.followed[stem]
        return new

    def live(self) -> list[Followed]:
        """Processes that are not known to have ended, launchers among them."""
        return [one for one in self.followed.values() if not one.over]

    def missed(self) -> bool:
        """Somebody is gone, and his launcher may still say that it was asked for."""
        return any(one.missed_at and not one.over for one in self.followed.values())

    def close(self) -> None:
        """Close all files."""
        for stem in list(self._readers):
            self._close(stem)

    def _too_old(self, paths: list[Path]) -> bool:
        try:
            old = bool(paths) and self._now() - paths[-1].stat().st_mtime > self._retention_seconds
            return old and is_held_on(paths[-1]) is not True
        except OSError:
            return False

    def _guarded_follow(self, known: Followed, paths: list[Path]) -> bool:
        """One journal that cannot be read must not keep the others from being read; it is tried again."""
        try:
            new = self._follow(known, paths)
            known.unreadable = False
            return new
        except OSError as error:
            if not known.unreadable:
                known.unreadable = True
                self._emit(
                    TelemetryError(
                        component=Component.EXPORTER, text=clean(f"{known.stem}: {error}", limit=500), at=self._now()
                    )
                )
            return False

    def _follow(self, known: Followed, paths: list[Path]) -> bool:
        new = False
        while True:
            reader = self._reader(known, paths)
            if reader is None:  # its files are gone before they were opened
                known.over = True
                return new
            later = [path for path in paths if path.name > known.segment]
            if known.head is None:  # it says whether the lock on its journal can be trusted
                new = self._read(known, reader, to_end_of_file=False) or new
            alive = None if later else is_alive(reader.fileno(), known.head)
            new = self._read(known, reader, to_end_of_file=bool(later) or alive is False) or new
            if not later and alive is False:
                later = [p for p in segments(self.folder) if stem_of(p) == known.stem and p.name > known.segment]
            if not later:
                return self._judged(known, alive) or new
            paths = later
            self._close(known.stem)
            known.segment, known.offset = later[0].name, 0

    def _judged(self, known: Followed, alive: bool | None) -> bool:
        now = self._now()
        if alive:
            known.seen_alive_at = now
        if known.over:
            self._close(known.stem)
            return True
        if alive is not False:
            if alive is None and known.head is not None and not known.unwatched:
                known.unwatched = True
                self._emit(ProcessUnwatched(identity=known.head.identity, at=now))
            return False
        reader = self._readers[known.stem]
        if known.head is None and known.launch is None and reader.offset == 0 and now - reader.modified_at() < 5.0:
            return False  # being born: the file is there, its lock and its first line are not
        if known.head is not None:
            loss = self._loss(known, known.head, max(known.seen_alive_at, reader.modified_at()))
            if loss is not None and loss.result is Result.FAILURE and known.head.launch_id is not None:
                known.missed_at = known.missed_at or now
                if now - known.missed_at < GRACE_SECONDS:
                    return False
            if loss is not None:
                self._emit(loss)
        known.over = True
        self._close(known.stem)
        return True

    def _loss(self, known: Followed, head: ProcessStarted, at: float) -> ProcessLost | None:
        for launcher in [one for one in self.followed.values() if one.launch is not None and not one.over]:
            reader = self._readers.get(launcher.stem)
            if reader is not None:
                self._read(launcher, reader, to_end_of_file=False)
        stopped = any(
            one.stop_asked and one.launch is not None and one.launch.launch_id == head.launch_id
            for one in self.followed.values()
        )
        if stopped:
            how, result = Exit.CLEAN, Result.CANCELLED
        elif known.last_failed and known.sync is None:
            how, result = Exit.FAILED, Result.FAILURE  # it raised, and did not take its time to say good-bye
        else:
            how, result = Exit.LOST, Result.FAILURE
        return known.lost(at, how, result)

    def _read(self, known: Followed, reader: SegmentReader, *, to_end_of_file: bool) -> bool:
        new = False
        bad_before = reader.bad_lines
        for event in self._events(reader, to_end_of_file):
            new = True
            if isinstance(event, _OF_THE_EXPORTER):  # what a journal says of servers is not asked
                continue
            known.note(event)
            self._emit(event)
        known.offset = reader.offset
        bad = reader.bad_lines - bad_before
        if bad:
            text = f"{reader.path.name}: {reader.last_error}"
            identity = known.head.identity if known.head is not None else None
            told = TelemetryError(identity=identity, component=Component.JOURNAL, text=text, count=bad, at=self._now())
            self._emit(told)
        return new or bad > 0

    def _events(self, reader: SegmentReader, to_end_of_file: bool) -> Iterator[Event]:
        try:
            yield from reader.events(to_end_of_file=to_end_of_file)
        except OSError as error:
            text = f"{reader.path.name}: {error}"
            self._emit(TelemetryError(component=Component.EXPORTER, text=text, at=self._now()))

    def _reader(self, known: Followed, paths: list[Path]) -> SegmentReader | None:
        reader = self._readers.get(known.stem)
        if reader is not None:
            return reader
        wanted = [path for path in paths if path.name >= known.segment]
        for path in wanted:
            if path.name != known.segment:
                known.segment, known.offset = path.name, 0
            try:
                reader = SegmentReader(path, offset=known.offset)
            except FileNotFoundError:
                continue
            if os.fstat(reader.fileno()).st_size < known.offset:  # not the file that was read before
                reader.offset = known.offset = 0
            self._readers[known.stem] = reader
            return reader
        return None

    def _close(self, stem: str) -> None:
        reader = self._readers.pop(stem, None)
        if reader is not None:
            reader.close()
