"""Does what the server shows mean that it runs what a run synced last? The rules for one run, as plain values.

The one decision: never a guess shown as knowledge. Evidence is ``/model_info``, whose ``model_path`` becomes the path
that a successful update named, and whose ``weight_version`` the version it named (SGLang 0.5.23, measured). So it shows
a *name*, not bytes: a checkpoint folder that is used again looks the same before and after a sync.

For a sync that the server took (``weights_applied=yes``), the first look that began after its end is the *reference*:

- It runs the weights when it shows the checkpoint's path, or a ``weight_version`` that became the sync's own; or when
  what it shows changed with this sync (a mount of another name): the looks before and after are close to it, and no
  other sync was in between.
- It does not when it shows what it showed before a sync that was a success, and that stands for something else: the
  start model, or the checkpoint of another sync (a router that did not pass it on). Nor when it shows the checkpoint of
  another run's later sync, or, with no look before, its start model.
- Unknown otherwise: the checkpoint's path is unknown or not absolute; nothing says what the name stands for; a 400
  after which the weights are new, since ``/model_info`` keeps the old path then (SGLang 0.5.23, measured: ``pause
  in_place``).

Later looks: the reference means what it meant; another path means that it does not run the weights, but start weights
or somebody else's. A ``weight_version`` alone that changed means so only where the version was the evidence, since
labels can be changed without weights. Where the same name may no longer stand for the same weights, showing it means
nothing until the next sync that is taken: after a restart that was seen, after another run's sync, after something else
was shown meanwhile.
"""

import os.path
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sglang_telemetry.events import SyncRecord
from sglang_telemetry.names import Result, Transport
from sglang_telemetry.server_truth.client import ModelInfo

NEAR_SECONDS = 60.0
"""What changed from one look to another is a sync's doing only if both are so close to it."""
START = ""
"""Stands for the start model where a checkpoint's path would stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What was shown, by a look from one Unix time to another that no sync overlapped."""

    began_at: float
    ended_at: float
    info: ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A sync to this server, from one Unix time to another, that may have changed its weights."""

    run: str
    began_at: float
    ended_at: float


@dataclass(slots=True, kw_only=True)
class Synced:
    """The last sync of a run that the server took, and what is known of it since.

    Args:
        began_at: Unix seconds.
        ended_at: Unix seconds.
        path: The checkpoint's where the server could show it: absolute, and of an update from disk.
        version: The sync's own.
        passed_on: Success was reported for an update from disk, after which the server must show the path.
        before: The newest sighting before it began.
        stood_for: The checkpoint path that the name in ``before`` stands for, or :data:`START`; None is unknown.
        reference: What the first look after it showed.
        means: Showing the reference means that it runs these weights, or that it does not; None is unknown.
        by_version: The version was the evidence.
        doubt: Something happened since, after which the same name may stand for other weights.
    """

    began_at: float
    ended_at: float
    path: str | None = None
    version: str | None = None
    passed_on: bool = False
    before: Sighting | None = None
    stood_for: str | None = None
    reference: ModelInfo | None = None
    means: bool | None = None
    by_version: bool = False
    doubt: bool = False

    def compare(self, seen: Sighting, others: "Iterable[Synced]", intervals: Iterable[Interval]) -> None:
        """Take in a look that began after its end.

        Args:
            others: The last syncs of the other runs.
            intervals: The last syncs to the server, this one among them.
        """
        info = seen.info
        if self.reference is None:
            self.reference = info
            self.by_version = self._tagged(info)
            if self.by_version or same(info.model_path, self.path):
                self.means = True
            elif self._overwritten(info, others):
                self.means = False
            else:
                self.means = self._beside(seen, intervals)
        elif info != self.reference:
            if self.means is not True and not self.doubt and same(info.model_path, self.path):
                self.reference, self.means = info, True  # passed on late
            else:
                self.doubt = True

    def current(self, info: ModelInfo) -> bool | None:
        """What showing this means: it runs these weights, it does not, or that cannot be told."""
        if self.reference is None:
            return None
        if _labels(info) == _labels(self.reference):
            return None if self.means and self.doubt else self.means
        return False if self.by_version or info.model_path != self.reference.model_path else None

    def _tagged(self, info: ModelInfo) -> bool:
        before = self.before.info.weight_version if self.before is not None else self.version
        return self.version is not None and info.weight_version == self.version != before

    def _overwritten(self, info: ModelInfo, others: "Iterable[Synced]") -> bool:
        later = [one for one in others if one.ended_at > self.ended_at and same(info.model_path, one.path)]
        return self.path is not None and bool(later)

    def _beside(self, seen: Sighting, intervals: Iterable[Interval]) -> bool | None:
        """What showing another name than the checkpoint's means, beside what was shown before the sync."""
        info, before = seen.info, self.before
        if before is None:
            return False if self.passed_on and self.path is not None and is_start(info) else None
        if _labels(info) != _labels(before.info):
            near = self.began_at - before.ended_at < NEAR_SECONDS and seen.began_at - self.ended_at < NEAR_SECONDS
            alone = sum(one.ended_at >= before.began_at for one in intervals) == 1
            return True if near and alone else None
        if self.stood_for is None or self.path is None:
            return None
        if same(self.stood_for, self.path):
            return True  # the other name of this folder, which is used again
        return False if self.passed_on else None


def stands_for(info: ModelInfo, runs: Mapping[str, Synced]) -> str | None:
    """The checkpoint path that this name is known to stand for, :data:`START`, or None."""
    for one in runs.values():
        if one.means and one.path is not None and one.reference and one.reference.model_path == info.model_path:
            return one.path
    return START if is_start(info) else None


def is_start(info: ModelInfo) -> bool:
    """It shows the model that it was started with; only where the tokenizer was not given apart is that known."""
    return info.model_path == info.tokenizer_path


def path_of(record: SyncRecord) -> str | None:
    """The checkpoint's path where the server could show it."""
    path = record.checkpoint.path if record.checkpoint is not None else ""
    return path if record.target.transport is Transport.DISK and os.path.isabs(path) else None


def synced(record: SyncRecord, before: Sighting | None, runs: Mapping[str, Synced]) -> Synced:
    """What is to be known of a sync that was taken.

    Args:
        before: The newest sighting before it began.
        runs: The last syncs of all runs before it.
    """
    return Synced(
        began_at=record.started_at,
        ended_at=record.ended_at,
        path=path_of(record),
        version=record.version,
        passed_on=record.result is Result.SUCCESS and record.target.transport is Transport.DISK,
        before=before,
        stood_for=stands_for(before.info, runs) if before is not None else None,
    )


def same(shown: str, path: str | None) -> bool:
    """One path, written in two ways; links are not resolved, since a mount that hangs would hold whoever asks."""
    return path is not None and os.path.isabs(shown) and os.path.normpath(shown) == os.path.normpath(path)


def _labels(info: ModelInfo) -> tuple[str, str | None]:
    return info.model_path, info.weight_version
