"""Looks at what is sent, in a thread beside the update: is it whole, and is it something else than last time?

A sync never waits for it. Since SGLang answers a checkpoint with a missing tensor with success (measured on 0.5.23),
only the trainer's side can tell. Whatever changes under the look, as the next save does, ends it, and nothing is told.
"""

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang_telemetry.checkpoint.choice import WEIGHTS
from sglang_telemetry.checkpoint.errors import CheckpointError
from sglang_telemetry.checkpoint.fingerprint import Fingerprint, fingerprint
from sglang_telemetry.checkpoint.validate import Verdict
from sglang_telemetry.events import CheckpointInspected, Event, SyncRecord
from sglang_telemetry.instrument.expectation import Expected, expected_of, headers_of, verdict_for
from sglang_telemetry.instrument.http import is_update, server_in
from sglang_telemetry.instrument.model import changes_of
from sglang_telemetry.text import clean
from sglang_telemetry.timeline import Clock

_WIDE = frozenset({"F64", "F32"})
HEAD_START_SECONDS = 0.05
"""What reads names of tensors holds Python's lock, while the request is on its way: that goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What the last look that came to its end has found."""

    content: Fingerprint | None = None
    wide: frozenset[str] = frozenset()
    model: Callable[[], Any] | None = None
    changes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    verdict: Verdict
    content: Fingerprint | None
    wide: frozenset[str]
    seconds: float


class _Look:
    """One thread's work; the record and what was found meet in here, and whichever comes last tells."""

    def __init__(self, folder: str, before: _Known, *, rollouts: bool, changes: int | None) -> None:
        self.folder, self.before, self.rollouts, self.changes = folder, before, rollouts, changes
        self.stamps = _stamps(folder)
        self.stopped = False
        self.alone = threading.Event()
        """The sync is over, and nothing of it can be held up any more."""
        self.record: SyncRecord | None = None
        self.found: _Found | None = None


class Inspector:
    """What is remembered from sync to sync of one engine.

    Args:
        emit: Takes the events; never raises.
        clock: Where time comes from.
        on_error: Told of every error of ours; never raises.
    """

    def __init__(
        self, emit: Callable[[Event], object], clock: Clock, on_error: Callable[[BaseException], None]
    ) -> None:
        self.emit, self.clock, self.on_error = emit, clock, on_error
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.known = _Known()
        self.rollouts = False
        """The engine got generated answers since the last look began."""
        self.running: _Look | None = None
        self.closed = False

    def locked(self) -> threading.Lock:
        """A forked child has no thread of its parent's, and its parent's lock may be held for ever."""
        if os.getpid() != self._pid:
            self._begin()
        return self._lock

    def generated(self) -> None:
        """The engine got generated text: somebody trains."""
        self.rollouts = True

    def stop(self) -> None:
        """What is looked at now is about to change."""
        if self.running is not None:
            self.running.stopped = True

    def close(self) -> None:
        """Nothing is told from now on."""
        with self.locked():
            self.closed = True
            self.stop()


class Inspection:
    """The look at what one sync sends.

    Args:
        inspector: What is remembered from sync to sync.
        model: What is pushed, without what it is wrapped in; only a weak reference is kept.
    """

    def __init__(self, inspector: Inspector, model: Any) -> None:
        self._inspector = inspector
        self._model = _weak(model)
        self._look: _Look | None = None

    def saving(self) -> None:
        """A checkpoint is about to be written."""
        self._inspector.stop()
        self._look = None

    def sending(self, folder: str) -> None:
        """A request names a checkpoint; the first one after a save begins the look."""
        if self._look is not None:
            return
        try:
            inspector, changes = self._inspector, changes_of(self._model())
            with inspector.locked():
                if inspector.closed:
                    return
                inspector.stop()
                look = _Look(folder, inspector.known, rollouts=inspector.rollouts, changes=changes)
                self._look = inspector.running = look
                # Until this look has come to its end, nothing is known of the sync that is then the last one.
                inspector.known, inspector.rollouts = _Known(), False
            threading.Thread(target=self._run, args=(look,), name="sglang-telemetry-inspection", daemon=True).start()
        except Exception as error:  # no thread is to be had, say
            self._inspector.on_error(error)

    def ended(self, record: SyncRecord) -> None:
        """The record of the sync was told."""
        look = self._look
        if look is None:
            return
        look.alone.set()
        with self._inspector.locked():
            look.record = record
            found = look.found
        if found is not None:
            self._tell(look, found, record)

    def expected(self, folder: str) -> Expected:
        """What the checkpoint has to hold; never raises."""
        headers = headers_of(folder)
        return expected_of(self._model(), headers.tensors if headers is not None else ())

    def _run(self, look: _Look) -> None:
        try:
            found = self._find(look)
            if found is None:
                return
            with self._inspector.locked():
                if look.stopped:
                    return
                self._inspector.known = _Known(
                    content=found.content, wide=found.wide, model=self._model, changes=look.changes
                )
                look.found = found
                record = look.record
            if record is not None:  # told outside of the lock: a sink may do anything, and take its time
                self._tell(look, found, record)
        except Exception as error:
            if not look.stopped:
                self._inspector.on_error(error)

    def _find(self, look: _Look) -> _Found | None:
        """None when it was stopped, or when what it looked at changed meanwhile."""
        look.alone.wait(HEAD_START_SECONDS)
        clock = self._inspector.clock
        began = clock.monotonic_ns()
        if look.stamps is None:
            return None
        headers = headers_of(look.folder)
        tensors = headers.tensors if headers is not None else {}
        verdict = verdict_for(self._model(), look.folder, headers)
        try:
            content = fingerprint(look.folder, headers=headers, stop=lambda: look.stopped)
        except CheckpointError:  # the verdict says why
            content = None
        if look.stopped or _stamps(look.folder) != look.stamps:
            return None
        return _Found(
            verdict=verdict,
            content=content,
            wide=frozenset(name for name, spec in tensors.items() if spec.dtype in _WIDE),
            seconds=(clock.monotonic_ns() - began) / 1e9,
        )

    def _tell(self, look: _Look, found: _Found, record: SyncRecord) -> None:
        if self._inspector.closed:
            return
        content, before = found.content, look.before.content
        updates = [server_in(one.url) for one in record.exchanges if is_update(one.url)]
        self._inspector.emit(
            CheckpointInspected(
                identity=record.identity,
                sequence=record.sequence,
                at=self._inspector.clock.wall(),
                target=record.target,
                trace_id=record.trace_id,
                result=record.result,
                path=clean(os.path.abspath(look.folder)),
                fault=found.verdict.fault,
                # Of one update after the other to a server, each may hold a part.
                incomplete=bool(found.verdict.missing) and len(updates) == len(set(updates)),
                digest=content.digest if content is not None else None,
                sampled_bytes=content.sampled_bytes if content is not None else 0,
                same=None if content is None or before is None else content.digest == before.digest,
                changed=_changed(found, look.before),
                trained=self._trained(look),
                seconds=found.seconds,
            )
        )

    def _trained(self, look: _Look) -> bool | None:
        if look.rollouts:
            return True
        before, model = look.before, self._model()
        if before.model is None or model is None or before.model() is not model:
            return None
        return None if before.changes is None or look.changes is None else before.changes != look.changes


def _weak(model: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(model)
    except TypeError:  # nothing is known of what cannot be referred to weakly
        return _nothing


def _nothing() -> None:
    return None


def _changed(found: _Found, before: _Known) -> float | None:
    """Share of the tensors that are other ones than before; None where a server may keep less than what changed."""
    if found.content is None or before.content is None or found.wide or before.wide:
        return None
    now, then = found.content.tensors, before.content.tensors
    if now.keys() != then.keys() or not now:
        return None
    return sum(now[name] != then[name] for name in now) / len(now)


def _stamps(folder: str) -> frozenset[tuple[str, int, int]] | None:
    """Names, sizes and times of the files of weights; None when the folder cannot be read from here."""
    try:
        with os.scandir(folder) as entries:
            files = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith((*WEIGHTS, ".index.json"))]
    except OSError:
        return None
    return frozenset((name, there.st_size, there.st_mtime_ns) for name, there in files)
