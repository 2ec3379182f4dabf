"""What follows from looks at one server and from the syncs to it: was it restarted, and what do its runs know of it?

No clock, no thread, no network: what is fed is kept as plain values, which are saved over a restart of the exporter.

The one decision is what a restart is: it was seen up, then refused connections, then answered again; merely slow is not
gone. Or, seen up all the time, it went back to its start model, which it showed before the first sync that was seen,
with no sync of ours in between that can explain it. Not seen: a restart between two looks at a server that shows its
start model before and after; nor, where the tokenizer was given apart, any restart between two looks, since somebody
else's update could have done the same.

What a run's server shows is judged by :mod:`~sglang_telemetry.server_truth.synced`. A failure with
``weights_applied=unknown`` leaves a question open, which a later look may answer; until then nothing is known. After
one with ``no`` the last sync that was taken still counts, unless the bytes say otherwise.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from sglang_telemetry.events import CheckpointInspected, SyncRecord
from sglang_telemetry.names import Applied, Evidence
from sglang_telemetry.server_truth.client import Look, ModelInfo, Reach
from sglang_telemetry.server_truth.paused import Pauses
from sglang_telemetry.server_truth.synced import Bytes, Claim, Interval, Sighting, Synced, is_start, synced
from sglang_telemetry.tags import verifiable

_KEPT = 4
_VERSIONS_KEPT = 32
SOON_SECONDS = 60.0
"""How long after a sync a question that is open asks for the checksum with each look; later, only so often."""
OPEN_SECONDS = 3600.0
"""How long a question stays open: an update that was not applied by then is not waited for."""
DIFFERENT = 0.5
"""Share of the tensors that are other ones: a server may ignore some of them, as a value head."""
AGAIN_SECONDS = 300.0
"""How often the checksum is asked for when nothing is known to have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """It is known now whether a server took a sync."""

    claim: Claim
    ended_at: float
    applied: Applied
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """What one look tells beyond what it shows: a restart, an older version, and which syncs were taken or not.

    And the runs that have left it paused, of which that was not known before.
    """

    restarted: bool = False
    went_back: bool = False
    resolved: tuple[Resolved, ...] = ()
    left_paused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The sync that a weight version stands for."""

    run: str
    run_id: str
    sequence: int
    process: str = ""
    """Host and pid of the coordinator: a start that kept its run id counts from 1 again."""

    @property
    def start(self) -> tuple[str, str]:
        """What tells one start of the run from another."""
        return self.run_id, self.process


@dataclass(slots=True, kw_only=True)
class ServerState:
    """All that is known of one server.

    Args:
        server: ``host:port``.
        url: Where the last update was sent, without the route; None before one was seen.
        seen_up: It has answered.
        gone_at: It was seen up, and has refused connections since, the last time at this Unix time.
        version: SGLang's own.
        start: What it showed before the first sync that was seen in this life of it.
        sightings: The last few, the newest last.
        intervals: The last few syncs that may have changed its weights.
        ended: When the last such sync of each run ended, in Unix seconds.
        runs: The last sync of each run that it took.
        open: The last sync of each run of which it is not known yet whether it was taken, or not believed.
        loaded: The bytes that are loaded, as far as nothing has happened since that was seen.
        asked_at: When the checksum was seen last, in Unix seconds.
        wavering: With no sync in between it showed one thing, another, and the first again: several processes or
            workers answer by turns, so that neither names nor bytes are known of all of them.
        frontends: Processes that serve HTTP, each with names of its own; None is unknown.
        memory_saver: Its weights may be out of memory, and asking for their checksum may kill it; None is unknown.
        last: The last sync of each run that may have changed its weights.
        versions: The last few weight versions that were sent, and what they stand for.
        confirmed: By run, the last sync that the server was seen to run.
        confirmed_before: By run, the one before that, in case it turns out otherwise.
        paused: The pauses of its runs.
    """

    server: str
    url: str | None = None
    seen_up: bool = False
    gone_at: float | None = None
    version: str | None = None
    start: ModelInfo | None = None
    sightings: tuple[Sighting, ...] = ()
    intervals: tuple[Interval, ...] = ()
    ended: dict[str, float] = field(default_factory=dict)
    runs: dict[str, Synced] = field(default_factory=dict)
    open: dict[str, Synced] = field(default_factory=dict)
    loaded: Bytes | None = None
    asked_at: float = 0.0
    wavering: bool = False
    frontends: int | None = None
    memory_saver: bool | None = None
    last: dict[str, Version] = field(default_factory=dict)
    versions: dict[str, Version] = field(default_factory=dict)
    confirmed: dict[str, Version] = field(default_factory=dict)
    confirmed_before: dict[str, Version] = field(default_factory=dict)
    paused: Pauses = field(default_factory=Pauses)

    def note_sync(self, record: SyncRecord) -> None:
        """A coordinator's sync to this server has ended."""
        before = self._before(record.started_at)
        loaded = self.loaded if self.loaded is not None and self.loaded.at < record.started_at else None
        run, one = record.identity.run, synced(record, before, self.runs, loaded)
        if one.version is not None and verifiable(one.version):
            kept = list(self.versions.items())[1 - _VERSIONS_KEPT :]
            self.versions = {**dict(kept), one.version: _version(one.claim)}
        version = _version(one.claim)
        if record.weights_applied is Applied.NO:
            if loaded is not None and self._is_last(version, record.ended_at):
                self.open[run] = one
            return
        if self._disturbed(run, record.started_at, record.ended_at, version):
            (self.runs if record.weights_applied is Applied.YES else self.open)[run] = one

    def note_inspected(self, event: CheckpointInspected) -> bool:
        """What was sent was looked at; was it sent here?"""
        one = self.runs.get(event.identity.run)
        if one is None or _version(one.claim) != _version(event):
            return False
        one.differs = event.changed is not None and event.changed >= DIFFERENT
        one.mixed = event.mixed
        one.weigh()
        return True

    def wants_checksum(self, now: float, *, asking: bool = False) -> bool:
        """Is it time to ask which bytes are loaded, where that is safe?

        Args:
            now: Unix seconds.
            asking: Whether it is safe is asked with the same look.
        """
        safe = self.memory_saver is False or (self.memory_saver is None and asking)
        if self.wavering or not safe:
            return False
        if self.loaded is None:
            return True
        ended = [one.ended_at for one in self.open.values()]
        if any(now - at < SOON_SECONDS for at in ended):
            return True
        return now - self.asked_at >= (SOON_SECONDS if ended else AGAIN_SECONDS)

    def note_unknown(self, run: str, *, began_at: float, ended_at: float) -> None:
        """A sync of that run went here, and whether it was taken is unknown; Unix seconds."""
        self._before(began_at)
        self._disturbed(run, began_at, ended_at)

    def note_look(self, look: Look, *, began_at: float, ended_at: float, in_flight: Collection[float] = ()) -> Noticed:
        """Take in a look.

        Args:
            began_at: Unix seconds.
            ended_at: Unix seconds.
            in_flight: When the syncs to this server began that have not ended.
        """
        if look.reach is not Reach.ANSWERED:
            if self.seen_up and look.reach is Reach.REFUSED:
                self.gone_at = began_at
            return Noticed()
        resolved: list[Resolved] = []
        restarted, went_back = self.gone_at is not None, False
        if self.gone_at is not None:
            resolved += self._restarted(self.gone_at)
        self.seen_up, self.gone_at = True, None
        overlapped = any(began <= ended_at for began in in_flight) or any(
            one.began_at <= ended_at and began_at <= one.ended_at for one in self.intervals
        )
        if look.info is not None and not overlapped and self._went_back(look.info):
            restarted = True
            resolved += self._restarted(began_at)
        if look.started_with is not None:
            self.frontends = look.started_with.tokenizer_workers
            self.memory_saver = look.started_with.memory_saver
        if look.info is not None and not overlapped:
            checksum = look.checksum.engine if look.checksum is not None else None
            seen = Sighting(began_at=began_at, ended_at=ended_at, info=look.info, checksum=checksum)
            went_back = self._shows_an_older(seen.info)
            resolved += self._sighted(seen)
        self.version = look.version or (None if restarted else self.version)
        if restarted:
            self.paused.end()
        left = self.paused.looked(ready=look.ready, began_at=began_at)
        return Noticed(restarted=restarted, went_back=went_back, resolved=tuple(resolved), left_paused=left)

    def current(self) -> dict[str, bool]:
        """By run, does it show the weights that the run synced last; without the runs of which that is unknown."""
        if not self.sightings:
            return {}
        newest, checksum = self.sightings[-1].info, self.loaded.checksum if self.loaded is not None else None
        found = {run: one.current(newest, checksum, names=self.names_tell) for run, one in self.runs.items()}
        return {run: current for run, current in found.items() if current is not None}

    @property
    def names_tell(self) -> bool:
        """What ``/model_info`` shows is the same whoever answers."""
        return not self.wavering and self.frontends in {None, 1}

    def lasting(self) -> object:
        """What is worth saving when it changes; when it was looked at last is not."""
        gone = self.gone_at is not None
        known = (self.runs, self.open, self.versions, self.confirmed, self.wavering, self.memory_saver, self.paused)
        return (self.url, self.seen_up, gone, self.version, self.start, self.loaded, repr(known), dict(self.ended))

    def _sighted(self, seen: Sighting) -> Iterator[Resolved]:
        changed = bool(self.sightings) and self.sightings[-1].info != seen.info
        self.sightings = (*self.sightings[1 - _KEPT :], seen)
        self.wavering = self.wavering or self._wavers()
        if seen.checksum is not None:
            self.loaded, self.asked_at = Bytes(checksum=seen.checksum, at=seen.ended_at), seen.ended_at
        elif changed and self.names_tell:
            self.loaded = None
        if self.wavering:
            self.loaded = None
        for run, one in self.runs.items():
            if seen.began_at >= one.ended_at:
                others = [other for name, other in self.runs.items() if name != run]
                one.compare(seen, others, self.intervals, names=self.names_tell)
        for run, one in list(self.open.items()):
            if seen.began_at >= one.ended_at:
                yield from self._asked(run, one, seen)
        for one in self.runs.values():
            if one.means is not None and one.evidence is not None and not self.wavering:
                yield from self._told(one, Applied.YES if one.means else Applied.NO, one.evidence)

    def _asked(self, run: str, one: Synced, seen: Sighting) -> Iterator[Resolved]:
        """A sync that may have been taken, in the light of a look."""
        found = None if self.wavering else one.found(seen, self.intervals)
        if found is None:
            if seen.began_at - one.ended_at > OPEN_SECONDS:
                del self.open[run]
            return
        del self.open[run]
        applied, evidence = found
        if applied is one.claim.claimed:  # it was refused, and the bytes say so too
            return
        if applied is Applied.YES:
            one.take(seen, evidence)
            self.runs[run] = one
        yield from self._told(one, applied, evidence)

    def _told(self, one: Synced, applied: Applied, evidence: Evidence) -> Iterator[Resolved]:
        """Once, and again when it turns out otherwise."""
        if one.told is applied:
            return
        one.told = applied
        run, version = one.claim.identity.run, _version(one.claim)
        known = self.confirmed.get(run)
        if applied is Applied.YES:
            if known is not None and known != version:
                self.confirmed_before[run] = known
            self.confirmed[run] = version
        elif known == version:
            del self.confirmed[run]
            if run in self.confirmed_before:
                self.confirmed[run] = self.confirmed_before.pop(run)
        yield Resolved(claim=one.claim, ended_at=one.ended_at, applied=applied, evidence=evidence)

    def _wavers(self) -> bool:
        """Now, before, and before that: one thing, another, the first again, and no sync in between."""
        first, second, third = (None, None, None, *self.sightings)[-3:]
        if first is None or second is None or third is None:
            return False
        if any(one.ended_at >= first.began_at for one in self.intervals):
            return False
        sums = [one.checksum for one in (first, second, third)]
        names = self.frontends in {None, 1} and first.info == third.info != second.info
        return names or (None not in sums and sums[0] == sums[2] != sums[1])

    def _shows_an_older(self, info: ModelInfo) -> bool:
        """It shows the version of an earlier sync than the one it was seen to run, and did not before."""
        if not self.names_tell:
            return False
        shown = self.versions.get(info.weight_version or "")
        confirmed = self.confirmed.get(shown.run) if shown is not None else None
        if shown is None or confirmed is None or shown.start != confirmed.start:
            return False
        new = not self.sightings or self.sightings[-1].info.weight_version != info.weight_version
        return new and shown.sequence < confirmed.sequence

    def _before(self, at: float) -> Sighting | None:
        """The newest sighting before a sync that began at that time; before the first sync it is of the start."""
        found = next((one for one in reversed(self.sightings) if one.ended_at < at), None)
        if self.start is None and found is not None:
            self.start = found.info
        return found

    def _is_last(self, version: Version, ended_at: float) -> bool:
        """Is no later sync of its run known? Journals are read one after the other, and a clock may be set back."""
        known = self.last.get(version.run)
        if known is not None and known.start == version.start and known.sequence != version.sequence:
            return version.sequence > known.sequence
        return ended_at >= self.ended.get(version.run, ended_at)

    def _disturbed(self, run: str, began_at: float, ended_at: float, version: Version | None = None) -> bool:
        """A sync of ``run`` may have changed the weights, so that less is known of them; is it the run's last?"""
        later = ended_at >= self.ended.get(run, ended_at)
        last = later if version is None else self._is_last(version, ended_at)
        if last and not later:  # the clock was set back: what was seen is of another time
            self.intervals = self.sightings = ()
        self.intervals = (*self.intervals[1 - _KEPT :], Interval(run=run, began_at=began_at, ended_at=ended_at))
        self.loaded = None
        for other, one in self.runs.items():
            one.doubt = one.doubt or (other != run and ended_at > one.began_at)
        if not last:
            return False
        self.ended[run] = ended_at
        if version is not None:
            self.last[run] = version
        self.runs.pop(run, None)
        self.open.pop(run, None)
        return True

    def _went_back(self, info: ModelInfo) -> bool:
        if not self.sightings or info != self.start or self.sightings[-1].info == info or not self.names_tell:
            return False
        if info.tokenizer_path is not None and not is_start(info):
            return False
        return not any(one.ended_at >= self.sightings[-1].began_at for one in self.intervals)

    def _restarted(self, at: float) -> Iterator[Resolved]:
        """It was restarted after that Unix time; a sync that began later was taken by its new life."""
        self.start, self.sightings, self.loaded = None, (), None
        self.frontends = self.memory_saver = None
        for one in self.runs.values():
            if one.began_at < at:
                one.doubt, one.before, one.bytes_before = True, None, None
        for run, one in list(self.open.items()):
            if one.began_at < at:  # whatever it was doing with that update, it is gone
                del self.open[run]
                if one.claim.claimed is Applied.UNKNOWN:
                    yield from self._told(one, Applied.NO, Evidence.RESTART)


def _version(sync: Claim | CheckpointInspected) -> Version:
    who = sync.identity
    return Version(run=who.run, run_id=who.run_id, sequence=sync.sequence, process=f"{who.host}:{who.pid}")
