"""A day of runs in simulated time: events, through the exporter's own metrics, into the series of a promtool test.

Nothing of a metric is written by hand here: what a rule sees is what the exporter would have served.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    Checkpoint,
    Event,
    Identity,
    PhaseSpan,
    PhaseStarted,
    ProcessEnded,
    ProcessStarted,
    SyncRecord,
    SyncStarted,
    Target,
)
from sglang_telemetry.names import Applied, Exit, Phase, Result
from sglang_telemetry.sinks.metrics import MetricsSink

SCRAPE = 15
Timed = tuple[float, Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One start of a run: ranks, the seconds between two syncs of each phase of one, and bytes of its checkpoint.

    Args:
        odd: Number of a sync to how many times as long it takes.
        pauses: Number of a sync to seconds that pass before it, such as an evaluation.
        fails: Number of a sync to the cause of its failure; the run goes on.
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
            yield at, ProcessStarted(identity=one, at=at, engine="Engine", target=target, coordinator=one.rank == 0)
        at, number = self.start + 60, 0
        while True:
            number += 1
            at += self.interval * chance.uniform(0.85, 1.15) + self.pauses.get(number, 0.0)
            times = chance.uniform(0.8, 1.3) * self.odd.get(number, 1.0)
            if at + times * (self.save + self.request) > self.end - 5:
                break
            yield from self._sync(who, number, at, times, target)
        for one in who:
            yield self.end, ProcessEnded(identity=one, at=self.end, how=self.how)

    def _sync(self, who: list[Identity], number: int, at: float, times: float, target: Target) -> Iterator[Timed]:
        save, request = round(self.save * times * 1e9), round(self.request * times * 1e9)
        cause = self.fails.get(number)
        for one in who:
            leads = one.rank == 0
            yield (
                at,
                SyncStarted(
                    identity=one, sequence=number, at=at, coordinator=leads, trace_id=f"{number:032x}", target=target
                ),
            )
            steps = [(Phase.SAVE, save), (Phase.REQUEST, request)] if leads else [(Phase.BROADCAST, save + request)]
            offset, spans = 0, []
            for phase, duration in [*steps, (Phase.BARRIER, 10**7)]:
                yield at + offset / 1e9, PhaseStarted(identity=one, sequence=number, phase=phase, offset_ns=offset)
                spans.append(PhaseSpan(phase=phase, offset_ns=offset, duration_ns=duration))
                offset += duration
            yield (
                at + offset / 1e9,
                SyncRecord(
                    identity=one,
                    sequence=number,
                    started_at=at,
                    duration_ns=offset,
                    phases=tuple(spans),
                    result=Result.FAILURE if cause else Result.SUCCESS,
                    cause=cause,
                    coordinator=leads,
                    trace_id=f"{number:032x}",
                    span_id=f"{number:016x}",
                    target=target,
                    weights_applied=Applied.NO if cause else Applied.YES,
                    checkpoint=Checkpoint(path="/shared/policy", files=1, bytes=self.payload, free_bytes=200 << 30),
                ),
            )


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
    events = sorted([*(timed for life in lives for timed in life.events()), *extra], key=lambda timed: timed[0])
    sink, values, count = MetricsSink(), {}, int(seconds) // SCRAPE  # type: ignore[var-annotated]
    gaps = list(gaps)
    for index in range(count):
        now = index * SCRAPE
        while events and events[0][0] <= now:
            sink.emit(events.pop(0)[1])
        if any(begin <= now < end for begin, end in gaps):
            continue
        for family in sink.collect():
            for sample in family.samples:
                if sample.name in used:
                    name = (sample.name, *sorted(sample.labels.items()))
                    values.setdefault(name, {})[index] = float(sample.value)
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
