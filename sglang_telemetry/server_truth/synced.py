"""Does what the server shows mean that it runs what a run synced last? The rules for one run, as plain values.

The one decision: never a guess shown as knowledge. Bytes go before names. The checksum of ``/weights_checker`` is of
the bytes that are loaded (SGLang 0.5.23, measured): when it changed with the sync, the server took something; when it
did not, although the checkpoint's content did, it took nothing. Without a checksum the evidence is ``/model_info``,
whose ``model_path`` becomes the path that a successful update named, and whose ``weight_version`` the version it named
(SGLang 0.5.23, measured): a *name*, and a checkpoint folder that is used again looks the same before and after a sync.

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

from sglang_telemetry.events import Identity, SyncRecord, Target
from sglang_telemetry.names import Applied, Evidence, Result, Transport
from sglang_telemetry.server_truth.client import ModelInfo
from sglang_telemetry.tags import tag_of, verifiable

NEAR_SECONDS = 60.0
"""What changed from one look to another is a sync's doing only if both are so close to it."""
_OF_BYTES = frozenset({Evidence.CHECKSUM, Evidence.CHECKPOINT})
START = ""
"""Stands for the start model where a checkpoint's path would stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What was shown, by a look from one Unix time to another that no sync overlapped; the checksum where asked for."""

    began_at: float
    ended_at: float
    info: ModelInfo
    checksum: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """The checksum of what was loaded at a Unix time, at which no sync was under way."""

    checksum: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sync, and what its record says of it.

    Args:
        identity: The coordinator's.
        claimed: Did the server take the weights, by its own answer?
        answered: It did answer, so that nothing of this sync can still be under way.
    """

    identity: Identity
    sequence: int
    trace_id: str
    target: Target
    claimed: Applied
    answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A sync to this server, from one Unix time to another, that may have changed its weights."""

    run: str
    began_at: float
    ended_at: float


@dataclass(slots=True, kw_only=True)
class Synced:
    """The last sync of a run that the server took, or may have taken, and what is known of it since.

    Args:
        claim: Which sync, and what it claims.
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
        bytes_before: What was loaded before it began.
        bytes_after: The checksum that was seen first after it, with nothing in between.
        bytes_seen: The checksum that was seen last while it was open: workers behind a router may have others, so that
            it counts when it is seen twice.
        follows: What was loaded before it is the sync of this run right before it, and was seen to be.
        differs: So much of its checkpoint is other than in that sync that the server has to hold other bytes.
        mixed: Its checkpoint is not whole, and the server took it: old and new weights are mixed.
        evidence: What ``means`` is known by; None for a name alone that was shown before the sync as well.
        told: What was told of it last.
    """

    claim: Claim
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
    bytes_before: Bytes | None = None
    bytes_after: str | None = None
    bytes_seen: str | None = None
    follows: bool = False
    differs: bool = False
    mixed: bool = False
    evidence: Evidence | None = None
    told: Applied | None = None

    def leads_to(self, record: SyncRecord) -> bool:
        """The server was seen to run it, and that record is of the next sync of the same start."""
        mine, next_one = self.claim.identity, record.identity
        same_start = (mine.run_id, mine.host, mine.pid) == (next_one.run_id, next_one.host, next_one.pid)
        return same_start and self.claim.sequence + 1 == record.sequence and self.means is True and not self.doubt

    def compare(
        self, seen: Sighting, others: "Iterable[Synced]", intervals: Iterable[Interval], *, names: bool = True
    ) -> None:
        """Take in a look that began after its end.

        Args:
            others: The last syncs of the other runs.
            intervals: The last syncs to the server, this one among them.
            names: What is shown is the same whoever answers.
        """
        info = seen.info
        if not names:
            if self.evidence not in _OF_BYTES:
                self.means = self.evidence = None
            self.reference, self.by_version, self.doubt = info, False, False
        elif self.reference is None:
            self.reference = info
            self._by_name(seen, others, intervals)
        elif info != self.reference:
            late = same(info.model_path, self.path) and not self._of_another(info)
            if self.means is not True and not self.doubt and late:
                self.reference, self.means, self.evidence = info, True, Evidence.MODEL_PATH  # passed on late
            else:
                self.doubt = True
        if seen.checksum is not None and self.bytes_after is None and not self.doubt:
            self.bytes_after = seen.checksum if self._alone_since(self.began_at, intervals) else None
            if self.bytes_before is not None and not self._alone_since(self.bytes_before.at, intervals):
                self.bytes_before = None
        self.weigh()

    def weigh(self) -> None:
        """Let what is known of the bytes decide, where it does."""
        if self.mixed:
            self.means, self.evidence = False, Evidence.CHECKPOINT
        elif self.bytes_before is None or self.bytes_after is None:
            return
        elif self.bytes_after != self.bytes_before.checksum:
            self.means, self.evidence = True, Evidence.CHECKSUM
        elif self.follows and self.differs:
            self.means, self.evidence = False, Evidence.CHECKSUM

    def found(self, seen: Sighting, intervals: Iterable[Interval]) -> tuple[Applied, Evidence] | None:
        """Of a sync that is not said to have been taken: was it, after all? None is not to be told yet.

        An update whose client gave up is applied later (SGLang 0.5.23, measured): that it is not there is no evidence.
        """
        before = self.before
        if self.bytes_before is not None and seen.checksum is not None:
            twice, self.bytes_seen = seen.checksum == self.bytes_seen, seen.checksum
            if seen.checksum != self.bytes_before.checksum:
                alone = self._alone_since(self.bytes_before.at, intervals)
                return (Applied.YES, Evidence.CHECKSUM) if alone and twice else None
            if self.claim.answered:
                return Applied.NO, Evidence.CHECKSUM
        if self._tagged(seen.info):
            return Applied.YES, Evidence.WEIGHT_VERSION
        shown = same(seen.info.model_path, self.path)
        if shown and before is not None and not same(before.info.model_path, self.path):
            return Applied.YES, Evidence.MODEL_PATH
        return None

    def take(self, seen: Sighting, evidence: Evidence) -> None:
        """It was taken after all, and this is what the server shows of it."""
        self.reference, self.means, self.evidence = seen.info, True, evidence
        self.by_version, self.bytes_after = self._tagged(seen.info), seen.checksum

    def current(self, info: ModelInfo, checksum: str | None = None, *, names: bool = True) -> bool | None:
        """What showing this means: it runs these weights, it does not, or that cannot be told.

        Args:
            checksum: Of what is loaded now, where that is known.
            names: What is shown is the same whoever answers.
        """
        if self.mixed:
            return False
        if self.bytes_after is not None and checksum is not None:
            return self.means if checksum == self.bytes_after else False
        if self.reference is None or not names:
            return None
        if _labels(info) == _labels(self.reference):
            return None if self.means and self.doubt else self.means
        return False if self.by_version or info.model_path != self.reference.model_path else None

    def _by_name(self, seen: Sighting, others: "Iterable[Synced]", intervals: Iterable[Interval]) -> None:
        info = seen.info
        self.by_version = self._tagged(info)
        if self.by_version:
            self.means, self.evidence = True, Evidence.WEIGHT_VERSION
        elif self._not_tagged(info):
            self.means, self.evidence = False, Evidence.WEIGHT_VERSION
        elif same(info.model_path, self.path):
            new = self.before is not None and not same(self.before.info.model_path, self.path)
            self.means, self.evidence = True, Evidence.MODEL_PATH if new else None
        else:
            self.means = False if self._overwritten(info, others) else self._beside(seen, intervals)
            self.evidence = Evidence.MODEL_PATH if self.means is False else None

    def _alone_since(self, at: float, intervals: Iterable[Interval]) -> bool:
        """No other sync that may have changed the weights has ended since."""
        mine = (self.claim.identity.run, self.began_at)
        return not any(one.ended_at >= at and (one.run, one.began_at) != mine for one in intervals)

    def _not_tagged(self, info: ModelInfo) -> bool:
        """It was sent with our tag, the server said that it took it, and still shows another sync's version."""
        before = self.before.info.weight_version if self.before is not None else None
        sent = self.passed_on and self.version == tag_of(self.claim.identity, self.claim.sequence)
        return sent and verifiable(before) and info.weight_version == before != self.version

    def _of_another(self, info: ModelInfo) -> bool:
        """It shows a version that can only be another sync's."""
        return verifiable(self.version) and verifiable(info.weight_version) and info.weight_version != self.version

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


def synced(
    record: SyncRecord, before: Sighting | None, runs: Mapping[str, Synced], loaded: Bytes | None = None
) -> Synced:
    """What is to be known of a sync that has ended.

    Args:
        before: The newest sighting before it began.
        runs: The last syncs of all runs before it.
        loaded: What was loaded before it began.
    """
    exchange, previous = record.exchange, runs.get(record.identity.run)
    return Synced(
        claim=Claim(
            identity=record.identity,
            sequence=record.sequence,
            trace_id=record.trace_id,
            target=record.target,
            claimed=record.weights_applied,
            answered=exchange is not None and exchange.status_code is not None and exchange.status_code < 500,
        ),
        bytes_before=loaded,
        follows=previous is not None and loaded is not None and previous.leads_to(record),
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
