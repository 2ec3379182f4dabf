"""What is found out about made-up servers: whether they run what was sent, and which weights made their answers.

The one decision: only servers and trainers are made up. Whether a server runs a sync is judged by the exporter's own
probes, and what an answer is counted as by the trainer's own counting.
"""

import json
import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import CheckpointInspected, Event, SyncRecord, SyncStarted
from sglang_telemetry.exporter.probes import InFlight, Probes, targets_of
from sglang_telemetry.identity import IdentitySource
from sglang_telemetry.instrument.rollouts import Rollouts
from sglang_telemetry.names import Applied, Result
from sglang_telemetry.server_truth.client import Checksum, Look, ModelInfo, Reach, StartedWith
from sglang_telemetry.server_truth.keys import Keys
from sglang_telemetry.sinks.tally import Tally
from sglang_telemetry.tags import tag_of
from sglang_telemetry.testing import ManualClock
from tests.harness.simulation import SCRAPE, Life, Timed

LATE_SECONDS = 10.0
"""How long after its client has given up an update is applied."""
_LOOK_EVERY = 5
_LOOK_SECONDS = 0.01
_INSPECTED_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Trained(Life):
    """A life whose syncs name their version, and whose checkpoints are looked at.

    Args:
        frozen: From when to when each sync sends the content of the one before, although the model is trained.
        aborts: How many answers are cut off before each sync.
    """

    frozen: tuple[float, float] = (math.inf, math.inf)
    aborts: int = 0

    def events(self) -> Iterator[Timed]:
        """All events of all ranks, and what is told of each checkpoint after its sync."""
        content: str | None = None
        for at, event in super().events():
            if not isinstance(event, SyncRecord):
                yield at, event
                continue
            tag = tag_of(event.identity, event.sequence)
            assert event.checkpoint is not None
            yield at, replace(event, version=tag, checkpoint=replace(event.checkpoint, free_inodes=13_000_000))
            if event.coordinator:
                before = content
                if content is None or not self.frozen[0] <= event.started_at < self.frozen[1]:
                    content = tag
                yield at + _INSPECTED_SECONDS, self._inspected(event, at + _INSPECTED_SECONDS, content, before)

    def _inspected(self, record: SyncRecord, at: float, content: str, before: str | None) -> CheckpointInspected:
        assert record.checkpoint is not None
        return CheckpointInspected(
            identity=record.identity,
            sequence=record.sequence,
            at=at,
            target=record.target,
            trace_id=record.trace_id,
            result=record.result,
            path=record.checkpoint.path,
            digest=content,
            same=None if before is None else content == before,
            changed=None if before is None else float(content != before),
            trained=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What is loaded.

    Args:
        version: The label that answers have.
        path: Where it was read from.
        content: Stands for the bytes.
        mixing: It was loaded while requests ran, so that those have two versions.
    """

    version: str
    path: str
    content: str
    mixing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that is made up.

    Args:
        address: ``host:port``.
        model: Its start model.
        load: How many requests run at once.
        downs: From when to when it refuses connections; it comes back with its start weights.
        replicas: From when to when an old replica answers in its place: it has the weights of half an hour before,
            says yes to each update, and loads none.
    """

    address: str
    model: str
    load: float
    downs: tuple[tuple[float, float], ...] = ()
    replicas: tuple[tuple[float, float], ...] = ()

    def is_down(self, at: float) -> bool:
        """Does it refuse connections?"""
        return any(begin <= at < end for begin, end in self.downs)


class Loaded:
    """What a server has loaded at each time.

    Args:
        server: Which one.
        lives: The lives that may sync to it.
    """

    def __init__(self, server: Server, lives: Iterable[Trained]) -> None:
        start = Weights(version="default", path=server.model, content=server.model)
        found = [(-math.inf, start), *((end, start) for _, end in server.downs)]
        for life in lives:
            found += self._updates(life) if life.server == server.address else ()
        self._set(found)
        for begin, end in server.replicas:
            inside = self.at(begin - 1800), self.at(begin)
            kept = [one for one in found if not begin <= one[0] < end]
            self._set([*kept, (begin, inside[0]), (end, inside[1])])

    def at(self, when: float) -> Weights:
        """What is loaded then."""
        return self._changes[bisect_right(self._times, when) - 1][1]

    def _set(self, changes: list[tuple[float, Weights]]) -> None:
        self._changes = sorted(changes, key=lambda change: change[0])
        self._times = [at for at, _ in self._changes]

    def _updates(self, life: Trained) -> Iterator[tuple[float, Weights]]:
        records: dict[int, SyncRecord] = {}
        for _, event in life.events():
            match event:
                case SyncRecord(coordinator=True):
                    records[event.sequence] = event
                case CheckpointInspected():
                    record = records[event.sequence]
                    late = record.cause is FailureCause.TIMEOUT
                    if record.result is Result.SUCCESS or late:
                        version, content = record.version or "", event.digest or ""
                        weights = Weights(version=version, path=event.path, content=content, mixing=late)
                        yield record.ended_at + LATE_SECONDS * late, weights


class _Exporter:
    """The exporter as its probes need it, with a clock that is set."""

    def __init__(self, servers: Iterable[Server], lives: Iterable[Trained]) -> None:
        lives = list(lives)
        self.now = 0.0
        self.told: list[Timed] = []
        self._tally = Tally()
        self._servers = {f"http://{one.address}": (one, Loaded(one, lives)) for one in servers}
        self.probes = Probes(self, seconds=_LOOK_EVERY - 0.5, now=self._clock, clock=self._clock, looking=self._look)

    def learn(self, event: Event) -> None:
        """Something was read from a journal."""
        self._tally.add(event)
        self.probes.emit(event)

    def look(self) -> None:
        """Look at whom it is time to look at."""
        for server in self.probes.due():
            self.probes.look_at(server)

    def targets(self) -> Mapping[str, InFlight]:
        """For the probes."""
        return targets_of(self._tally)

    def catch_up(self) -> None:
        """For the probes; nothing comes while they look."""

    def tell(self, event: Event, *, lasting: bool) -> None:
        """For the probes."""
        self._tally.add(event)
        self.told.append((self.now, event))

    def failed(self, error: Exception) -> None:
        """For the probes."""
        raise error

    def _clock(self) -> float:
        return self.now

    def _look(self, url: str, *, info: bool, version: bool, checksum: bool, keys: Keys) -> Look:
        server, loaded = self._servers[url]
        if server.is_down(self.now):
            return Look(reach=Reach.REFUSED)
        weights = loaded.at(self.now)
        self.now += _LOOK_SECONDS
        shown = ModelInfo(model_path=weights.path, weight_version=weights.version, tokenizer_path=server.model)
        return Look(
            reach=Reach.ANSWERED,
            ready=True,
            info=shown if info else None,
            version="0.5.23" if version else None,
            started_with=StartedWith(tokenizer_workers=1, memory_saver=False) if version else None,
            checksum=Checksum(engine=weights.content) if checksum else None,
        )


def found_out(lives: Iterable[Trained], servers: Iterable[Server], *, begin: float, end: float) -> list[Timed]:
    """All that the exporter's probes tell.

    Args:
        lives: The runs.
        servers: All that they sync to.
        begin: Unix time of the first look.
        end: Unix time of the last.
    """
    lives, chance = list(lives), random.Random("looks")
    moments: list[tuple[float, Event | None]] = [(float(at), None) for at in range(int(begin), int(end), _LOOK_EVERY)]
    for life in lives:
        for at, event in _of_the_coordinator(life):
            moments.append((at, event))
            if isinstance(event, SyncRecord):  # the journal is read within half a second
                moments.append((at + chance.uniform(0.1, 0.7), None))
    exporter = _Exporter(servers, lives)
    for exporter.now, event in sorted(moments, key=lambda moment: moment[0]):
        if event is None:
            exporter.look()
        else:
            exporter.learn(event)
    return exporter.told


def _of_the_coordinator(life: Life) -> Iterator[Timed]:
    return (timed for timed in life.events() if timed[1].identity.rank == 0)  # type: ignore[union-attr]


def rollouts(life: Trained, server: Server, lives: Iterable[Trained]) -> Iterator[Timed]:
    """What the answers to a run say of their weights: one report each 15 s in which it is in no sync.

    Args:
        life: The run.
        server: Where it generates.
        lives: All that may sync to it.
    """
    chance, loaded = random.Random(f"rollouts {life.run}{life.start}"), Loaded(server, lives)
    counting = _Counting(life)
    steps: list[tuple[float, Event | None]] = [
        *_of_the_coordinator(life),
        *((life.start + at, None) for at in range(30, int(life.end - life.start), SCRAPE)),
    ]
    syncing = False
    for at, event in sorted(steps, key=lambda step: step[0]):
        match event:
            case SyncStarted():
                syncing = True
                yield from counting.answers(at, [_answer(loaded.at(at), aborted=True)] * life.aborts)
                counting.sent(event)
            case SyncRecord():
                syncing = False
                counting.ended(event)
            case None if not syncing and not server.is_down(at):
                before, now = loaded.at(at - SCRAPE), loaded.at(at)
                running = round(server.load * chance.uniform(0.7, 1.1))
                mixed = running if now.mixing and now is not before else 0
                alone = [_answer(now)] * (round(1.5 * running) - mixed)
                yield from counting.answers(at, [_answer(before, now)] * mixed + alone)


def _answer(*weights: Weights, aborted: bool = False) -> dict[str, object]:
    """As SGLang 0.5.23 answers ``/generate``, made by these weights."""
    meta = {
        "finish_reason": {"type": "abort" if aborted else "stop"},
        "weight_version": weights[-1].version,
        "weight_versions": [{"version": one.version, "start": 0, "end": 1} for one in weights],
    }
    return {"text": "", "meta_info": meta}


class _Counting:
    """The counting of one trainer, with a clock that is set."""

    def __init__(self, life: Life) -> None:
        self._clock, self._told = ManualClock(wall=life.start), list[Event]()
        identity = IdentitySource(run=life.run, run_id=f"{life.start}", rank=0, world_size=life.ranks)
        self._rollouts = Rollouts(identity, self._told.append, self._clock)
        self._sequence = 0

    def sent(self, sync: SyncStarted) -> None:
        """Weights are sent."""
        self._sequence = sync.sequence
        self._rollouts.sent(tag_of(sync.identity, sync.sequence), sync.sequence)

    def ended(self, record: SyncRecord) -> None:
        """They were taken, by the server's own word, or were not."""
        if record.weights_applied is Applied.YES:
            self._rollouts.taken(record.version, record.sequence)

    def answers(self, at: float, answers: Sequence[object]) -> Iterator[Timed]:
        """These have come."""
        self._clock.advance(at - self._clock.wall())
        self._told.clear()
        if answers:
            self._rollouts.saw(json.dumps(answers).encode(), self._sequence)
        yield from ((at, event) for event in self._told)
