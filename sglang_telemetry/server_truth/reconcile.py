"""What follows from looks at one server and from the syncs to it: was it restarted, and what do its runs know of it?

No clock, no thread, no network: what is fed is kept as plain values, which are saved over a restart of the exporter.

The one decision is what a restart is: it was seen up, then refused connections, then answered again; merely slow is not
gone. Or, seen up all the time, it went back to its start model, which it showed before the first sync that was seen,
with no sync of ours in between that can explain it. Not seen: a restart between two looks at a server that shows its
start model before and after; nor, where the tokenizer was given apart, any restart between two looks, since somebody
else's update could have done the same.

What a run's server shows is judged by :mod:`~sglang_telemetry.server_truth.synced`. After a failure with
``weights_applied=unknown`` nothing is known until the next sync that is taken; after one with ``no`` the last sync that
was taken still counts.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from sglang_telemetry.events import SyncRecord
from sglang_telemetry.names import Applied
from sglang_telemetry.server_truth.client import Look, ModelInfo, Reach
from sglang_telemetry.server_truth.synced import Interval, Sighting, Synced, is_start, synced

_KEPT = 4


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

    def note_sync(self, record: SyncRecord) -> None:
        """A coordinator's sync to this server has ended."""
        before = self._before(record.started_at)
        if record.weights_applied is Applied.NO:
            return
        run, taken = record.identity.run, synced(record, before, self.runs)
        newest = self._disturbed(run, record.started_at, record.ended_at)
        if newest and record.weights_applied is Applied.YES:
            self.runs[run] = taken

    def note_unknown(self, run: str, *, began_at: float, ended_at: float) -> None:
        """A sync of that run went here, and whether it was taken is unknown; Unix seconds."""
        self._before(began_at)
        self._disturbed(run, began_at, ended_at)

    def note_look(self, look: Look, *, began_at: float, ended_at: float, in_flight: Collection[float] = ()) -> bool:
        """Take in a look.

        Args:
            began_at: Unix seconds.
            ended_at: Unix seconds.
            in_flight: When the syncs to this server began that have not ended.

        Returns:
            A restart is noticed with it.
        """
        if look.reach is not Reach.ANSWERED:
            if self.seen_up and look.reach is Reach.REFUSED:
                self.gone_at = began_at
            return False
        restarted = self.gone_at is not None
        if self.gone_at is not None:
            self._restarted(self.gone_at)
        self.seen_up, self.gone_at = True, None
        overlapped = any(began <= ended_at for began in in_flight) or any(
            one.began_at <= ended_at and began_at <= one.ended_at for one in self.intervals
        )
        if look.info is not None and not overlapped:
            if self._went_back(look.info):
                restarted = True
                self._restarted(began_at)
            self._sighted(Sighting(began_at=began_at, ended_at=ended_at, info=look.info))
        self.version = look.version or (None if restarted else self.version)
        return restarted

    def current(self) -> dict[str, bool]:
        """By run, does it show the weights that the run synced last; without the runs of which that is unknown."""
        if not self.sightings:
            return {}
        newest = self.sightings[-1].info
        found = {run: one.current(newest) for run, one in self.runs.items()}
        return {run: current for run, current in found.items() if current is not None}

    def lasting(self) -> object:
        """What is worth saving when it changes; when it was looked at last is not."""
        gone = self.gone_at is not None
        return (self.url, self.seen_up, gone, self.version, self.start, repr(self.runs), dict(self.ended))

    def _sighted(self, seen: Sighting) -> None:
        self.sightings = (*self.sightings[1 - _KEPT :], seen)
        for run, one in self.runs.items():
            if seen.began_at >= one.ended_at:
                one.compare(seen, [other for name, other in self.runs.items() if name != run], self.intervals)

    def _before(self, at: float) -> Sighting | None:
        """The newest sighting before a sync that began at that time; before the first sync it is of the start."""
        found = next((one for one in reversed(self.sightings) if one.ended_at < at), None)
        if self.start is None and found is not None:
            self.start = found.info
        return found

    def _disturbed(self, run: str, began_at: float, ended_at: float) -> bool:
        """A sync of ``run`` may have changed the weights, so that less is known of them; is it the run's last?

        Journals are read one after the other, so that an earlier sync may be told after a later one.
        """
        self.intervals = (*self.intervals[1 - _KEPT :], Interval(run=run, began_at=began_at, ended_at=ended_at))
        for other, one in self.runs.items():
            one.doubt = one.doubt or (other != run and ended_at > one.began_at)
        if ended_at < self.ended.get(run, ended_at):
            return False
        self.ended[run] = ended_at
        self.runs.pop(run, None)
        return True

    def _went_back(self, info: ModelInfo) -> bool:
        if not self.sightings or info != self.start or self.sightings[-1].info == info:
            return False
        if info.tokenizer_path is not None and not is_start(info):
            return False
        return not any(one.ended_at >= self.sightings[-1].began_at for one in self.intervals)

    def _restarted(self, at: float) -> None:
        """It was restarted after that Unix time; a sync that began later was taken by its new life."""
        self.start, self.sightings = None, ()
        for one in self.runs.values():
            if one.began_at < at:
                one.doubt, one.before = True, None
