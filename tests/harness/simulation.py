"""A day of runs in simulated time: events, through the exporter's own metrics, to what each scrape would have read.

Nothing of a metric is written by hand here: what a rule or a dashboard sees is what the exporter would have served.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.metrics_core import Metric as Family

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    Checkpoint,
    Event,
    Identity,
    PhaseSpan,
    PhaseStarted,
    ProcessEnded,
    ProcessLost,
    ProcessStarted,
    SyncRecord,
    SyncStarted,
    Target,
)
from sglang_telemetry.names import Applied, Exit, Phase, Result
from sglang_telemetry.sinks.metrics import MetricsSink
from tests.harness import remedies

SCRAPE = 15
Timed = tuple[float, Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One start of a run: ranks, the seconds between two syncs, of each phase of one, and bytes of its checkpoint.

    Args:
        how: How all of its ranks end; ``LOST`` is told by the exporter, and a sync that is open then has failed.
        odd: Number of a sync to how many times as long it takes.
        pauses: Number of a sync to seconds that pass before it, such as an evaluation.
        fails: Number of a sync to the cause of its failure; the run goes on.
        pinned: Unix time to the cause of a failure or None: the sync that is due nearest begins then, and ends so.
        rests: From when to when no sync begins; the one that is due begins at the end.
        stuck: Unix time at which the sync that is due nearest begins, and its request has no end: rank 0 stays in it
            and the others in their broadcast, until the end of this life.
        late: Rank to the seconds by which it comes later than the others to each sync.
        remedies: Names of the remedies that it uses.
    """

    run: str
    server: str
    start: float
    end: float
    ranks: int = 8
    interval: float = 300.0
    save: float = 6.0
    request: float = 12.0
    timeout: float = 120.0
    payload: int = 15 << 30
    how: Exit = Exit.CLEAN
    odd: dict[int, float] = field(default_factory=dict)
    pauses: dict[int, float] = field(default_factory=dict)
    fails: dict[int, FailureCause] = field(default_factory=dict)
    pinned: dict[float, FailureCause | None] = field(default_factory=dict)
    rests: tuple[tuple[float, float], ...] = ()
    stuck: float | None = None
    late: dict[int, float] = field(default_factory=dict)
    remedies: tuple[str, ...] = ()

    def events(self) -> Iterator[Timed]:
        """All events of all ranks, each with the Unix time at which it happens."""
        chance = random.Random(f"{self.run}{self.start}")
        target = Target(server=self.server, timeout_seconds=self.timeout)
        who = [
            Identity(
                run=self.run, run_id=f"{self.start}", rank=rank, world_size=self.ranks, host="node", pid=100 + rank
            )
            for rank in range(self.ranks)
        ]
        for one in who:
            at = self.start + chance.uniform(0, 3)
            yield (
                at,
                ProcessStarted(
                    identity=one,
                    at=at,
                    engine="Engine",
                    target=target,
                    coordinator=one.rank == 0,
                    remedies=self.remedies,
                ),
            )
        at, number, pinned = self.start + 60, 0, sorted([*self.pinned, *([] if self.stuck is None else [self.stuck])])
        open_syncs: list[SyncStarted] = []
        while True:
            number += 1
            at += self.interval * chance.uniform(0.85, 1.15) + self.pauses.get(number, 0.0)
            at = next((end for begin, end in self.rests if begin <= at < end), at)
            # Not nearer to the one before than half of what is usual, and never two at once.
            if pinned and at > pinned[0] - self.interval / 2:
                at = pinned.pop(0)
            times = chance.uniform(0.8, 1.3) * self.odd.get(number, 1.0)
            if at == self.stuck:
                for timed in self._stuck(who, number, at, times, target):
                    if isinstance(timed[1], SyncStarted):
                        open_syncs.append(timed[1])
                    yield timed
                break
            if at + times * (self.save + self.request) > self.end - 5:
                break
            yield from self._sync(who, number, at, times, target, self.fails.get(number) or self.pinned.get(at))
        for one in who:
            yield self.end, self._ended(one, next((sync for sync in open_syncs if sync.identity == one), None))

    def _ended(self, one: Identity, sync: SyncStarted | None) -> Event:
        if self.how is not Exit.LOST:
            return ProcessEnded(identity=one, at=self.end, how=self.how)
        result = None if sync is None else Result.FAILURE
        return ProcessLost(identity=one, at=self.end, how=self.how, result=result, sync=sync)

    def _sync(
        self,
        who: list[Identity],
        number: int,
        at: float,
        times: float,
        target: Target,
        cause: FailureCause | None,
    ) -> Iterator[Timed]:
        applied = {None: Applied.YES, FailureCause.TIMEOUT: Applied.UNKNOWN}.get(cause, Applied.NO)
        steps = self._steps(times, cause)
        led = self._late(who[0]) + sum(nanoseconds for _, nanoseconds in steps)
        # Rank 0 tells the others how it went; the barrier is over when the last one has come to it.
        met = max(led, *(self._late(one) for one in who)) + 2 * _MOMENT
        for one in who:
            leads, late = one.rank == 0, self._late(one)
            began = at + late / 1e9
            yield began, self._started(one, number, began, target)
            offset, spans = 0, []
            told = max(led, late + _MOMENT) + _MOMENT - late  # the end of the broadcast
            before = steps if leads else [(Phase.SETUP, _MOMENT)]
            mine = [*before, (Phase.BROADCAST, told - sum(duration for _, duration in before))]
            for phase, duration in [*mine, (Phase.BARRIER, met + _MOMENT - late - told)]:
                yield began + offset / 1e9, PhaseStarted(identity=one, sequence=number, phase=phase, offset_ns=offset)
                spans.append(PhaseSpan(phase=phase, offset_ns=offset, duration_ns=duration))
                offset += duration
            record = SyncRecord(
                identity=one,
                sequence=number,
                started_at=began,
                duration_ns=offset,
                phases=tuple(spans),
                result=Result.FAILURE if cause else Result.SUCCESS,
                cause=cause,
                coordinator=leads,
                trace_id=f"{number:032x}",
                span_id=f"{number:016x}",
                target=target,
                weights_applied=applied,
                checkpoint=Checkpoint(path="/shared/policy", files=1, bytes=self.payload, free_bytes=200 << 30),
                remedies=tuple(remedies.in_sync(self.remedies, spans, cause)) if leads else (),
            )
            yield from remedies.told(record, record.remedies)
            yield began + offset / 1e9, record
            if leads:
                yield from remedies.told(record, tuple(remedies.after(self.remedies, record)))

    def _stuck(self, who: list[Identity], number: int, at: float, times: float, target: Target) -> Iterator[Timed]:
        for one in who:
            began, offset = at + self._late(one) / 1e9, 0
            yield began, self._started(one, number, began, target)
            for phase, duration in self._steps(times, None) if one.rank == 0 else [(Phase.SETUP, _MOMENT)]:
                yield began + offset / 1e9, PhaseStarted(identity=one, sequence=number, phase=phase, offset_ns=offset)
                offset += duration
                if phase is Phase.REQUEST:
                    break
            else:
                after = PhaseStarted(identity=one, sequence=number, phase=Phase.BROADCAST, offset_ns=offset)
                yield began + offset / 1e9, after

    def _started(self, one: Identity, number: int, at: float, target: Target) -> SyncStarted:
        return SyncStarted(
            identity=one, sequence=number, at=at, coordinator=one.rank == 0, trace_id=f"{number:032x}", target=target
        )

    def _steps(self, times: float, cause: FailureCause | None) -> list[tuple[Phase, int]]:
        """What rank 0 does before it tells the others, in nanoseconds; a refusal comes at once, a time-out late."""
        waited = remedies.WAITED / 1e9 if "retry" in self.remedies else 0.0
        known = {FailureCause.TIMEOUT: self.timeout, FailureCause.SERVER_BUSY: 0.05 + waited}
        seconds = self.request * times if cause is None else known.get(cause, self.request * times)
        return [
            (Phase.SETUP, _MOMENT),
            (Phase.STATE_DICT, round(0.15 * self.save * times * 1e9)),
            (Phase.SAVE, round(self.save * times * 1e9)),
            (Phase.REQUEST, round(seconds * 1e9)),
            (Phase.OTHER, _MOMENT),
        ]

    def _late(self, one: Identity) -> int:
        return round(self.late.get(one.rank, 0.0) * 1e9)


_MOMENT = 5_000_000
"""Nanoseconds of what takes no time to speak of."""


def scrapes(
    lives: Iterable[Life],
    *,
    seconds: float,
    begin: float = 0.0,
    gaps: Iterable[tuple[float, float]] = (),
    extra: Iterable[Timed] = (),
) -> Iterator[tuple[int, Sequence[Family]]]:
    """What each scrape reads, one each 15 s: seconds from the beginning, and the families; none in a gap.

    Args:
        lives: What happens.
        seconds: How long it goes on.
        begin: Unix time of the first scrape.
        gaps: From when to when, in Unix time, the exporter cannot be scraped.
        extra: More events.
    """
    events = iter(sorted([*(timed for life in lives for timed in life.events()), *extra], key=lambda timed: timed[0]))
    sink, gaps, event = MetricsSink(), list(gaps), next(events, None)
    for offset in range(0, int(seconds) // SCRAPE * SCRAPE, SCRAPE):
        now = begin + offset
        while event is not None and event[0] <= now:
            sink.emit(event[1])
            event = next(events, None)
        yield offset, [] if any(start <= now < end for start, end in gaps) else list(sink.collect())


def series(
    lives: Iterable[Life],
    *,
    seconds: float,
    gaps: Iterable[tuple[float, float]] = (),
    extra: Iterable[Timed] = (),
    used: frozenset[str],
) -> list[dict[str, str]]:
    """``input_series`` of a promtool test, one sample each 15 s.

    Args:
        lives: What happens.
        seconds: How long it goes on.
        gaps: From when to when the exporter cannot be scraped; as in life, its series go stale at once.
        extra: More events.
        used: Metrics that are of interest.
    """
    values: dict[tuple[Any, ...], dict[int, float]] = {}
    for offset, families in scrapes(lives, seconds=seconds, gaps=gaps, extra=extra):
        for family in families:
            for sample in family.samples:
                if sample.name in used:
                    name = (sample.name, *sorted(sample.labels.items()))
                    values.setdefault(name, {})[offset // SCRAPE] = float(sample.value)
    count = int(seconds) // SCRAPE
    return [{"series": _shown(name), "values": _notation(samples, count)} for name, samples in sorted(values.items())]


def _shown(name: tuple[Any, ...]) -> str:
    labels = ",".join(f'{label}="{value}"' for label, value in (*name[1:], ("instance", "node:9464"), ("job", "rl")))
    return f"{name[0]}{{{labels}}}"


def _notation(samples: dict[int, float], count: int) -> str:
    """promtool's: ``VxN`` is V and N more of it, ``_xN`` N times nothing; what ends is marked stale, as in life."""
    parts: list[str] = []
    index = 0
    while index < count:
        value = samples.get(index)
        length = 1
        while index + length < count and samples.get(index + length) == value:
            length += 1
        if value is not None:
            parts.append(f"{value!r}x{length - 1}")
        elif index == 0:
            parts.append(f"_x{length}")
        else:
            parts.append("stale" if length == 1 else f"stale _x{length - 1}")
        index += length
    return " ".join(parts)
