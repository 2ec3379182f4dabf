"""Who is asked, when, and what the metrics then say: probes with a clock set by hand and servers that really answer."""

import functools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from prometheus_client import CollectorRegistry

from sglang_telemetry.events import (
    Checkpoint,
    Event,
    Exchange,
    ProcessLost,
    ServerSeen,
    SyncStarted,
    Target,
    TelemetryError,
)
from sglang_telemetry.exporter import app, snapshot
from sglang_telemetry.exporter.app import Exporter
from sglang_telemetry.exporter.probes import MAX_AT_ONCE, VERSION_SECONDS, InFlight, Probes, targets_of
from sglang_telemetry.exporter.settings import ExporterSettings
from sglang_telemetry.names import Action, Applied, Component, Exit, Result
from sglang_telemetry.server_truth.client import Checksum, Look, ModelInfo, Reach, StartedWith, look
from sglang_telemetry.server_truth.keys import Keys
from sglang_telemetry.server_truth.reconcile import ServerState
from sglang_telemetry.sinks.guard import Fanout
from sglang_telemetry.sinks.metrics import MetricsSink
from sglang_telemetry.testing import FakeSGLang, Fault, ManualClock, RecordingSink
from tests.exporter.test_follow import Trainer
from tests.harness.answers import SUCCESS, Answers, Held
from tests.harness.exporter import ExporterProcess
from tests.harness.processes import free_port, wait_until
from tests.sinks import ended, record, remedied, started, who
from tests.testing.checkpoints import tensors, write_folder

SECONDS = 5.0


class Stage:
    """An exporter without journals: its metrics and its probes, which a test lets look."""

    def __init__(self, states: list[ServerState] | None = None) -> None:
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        self.metrics, self.told = MetricsSink(self.registry), RecordingSink()
        self.errors: list[Exception] = []
        self.lasting = 0
        self.caught_up = 0
        self.later: list[Event] = []
        self.probes = Probes(
            self,
            seconds=SECONDS,
            states=states or (),
            now=self.clock.wall,
            clock=lambda: self.clock.monotonic_ns() / 1e9,
        )
        self._fanout = Fanout((self.metrics, self.told, self.probes), self.clock.wall)

    def targets(self) -> Mapping[str, InFlight]:
        """As the exporter's."""
        return targets_of(self.metrics.tally)

    def catch_up(self) -> None:
        """What the trainer wrote meanwhile."""
        self.caught_up += 1
        self.feed(*self.later)
        self.later.clear()

    def tell(self, event: Event, *, lasting: bool) -> None:
        """As the exporter's."""
        self.lasting += lasting
        self.feed(event)

    def failed(self, error: Exception) -> None:
        """As the exporter's."""
        self.errors.append(error)
        self._fanout.error(Component.EXPORTER, error)

    def feed(self, *events: Event) -> None:
        """Events that were read from journals."""
        for event in events:
            self._fanout.emit(event)

    def starts(self, server: str, run: str = "grpo") -> None:
        """A trainer that targets that server."""
        self.feed(started(who(run=run), at=self.clock.wall(), target=Target(server=server)))

    def round(self, seconds: float = SECONDS) -> list[str]:
        """Let time pass, then look at all that are due; who was."""
        self.clock.advance(seconds)
        due = self.probes.due()
        for server in due:
            self.probes.look_at(server)
        return due

    def begins(self, server: str, run: str = "grpo", sequence: int = 1) -> SyncStarted:
        """A sync begins."""
        begun = SyncStarted(
            identity=who(run=run),
            sequence=sequence,
            at=self.clock.wall(),
            coordinator=True,
            trace_id=f"{sequence:032x}",
            target=Target(server=server),
        )
        self.feed(begun)
        return begun

    def sync(
        self, server: FakeSGLang, path: Path, *, sent: Path | None = None, run: str = "grpo", look: bool = True
    ) -> None:
        """A sync of one second to the server, which is told ``sent``, and the look after it."""
        self.clock.advance(1)
        begun = self.begins(server.host_port, run)
        url = f"{server.url}/update_weights_from_disk"
        answer = requests.post(url, json={"model_path": str(sent or path)}, timeout=10)
        good = answer.status_code == 200 and answer.json()["success"]
        self.clock.advance(1)
        self.feed(
            record(
                who(run=run),
                at=begun.at,
                duration_ns=10**9,
                target=begun.target,
                checkpoint=Checkpoint(path=str(path)),
                result=Result.SUCCESS if good else Result.FAILURE,
                weights_applied=Applied.YES if good else Applied.NO,
                exchanges=(Exchange(method="POST", url=url, status_code=answer.status_code),),
                decisive=0,
            )
        )
        if look:
            assert self.round(0.5) == [server.host_port]

    def value(self, name: str, server: str, **labels: str) -> float | None:
        """One sample of a scrape."""
        return self.registry.get_sample_value(f"weight_sync_server_{name}", {"server": server, **labels})

    def current(self, server: FakeSGLang, run: str = "grpo") -> float | None:
        """Of one run."""
        return self.value("current", server.host_port, run=run)

    def restarts(self, server: FakeSGLang) -> float | None:
        """As counted."""
        return self.value("restarts_total", server.host_port)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``base``, ``w``, ``v``, and ``mount/w``, which is ``w`` under another name."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("base", "w", "v", "mount/w")):
        write_folder(folder / name, tensors(seed))
    return folder


@pytest.fixture
def servers(models: Path) -> Iterator[tuple[FakeSGLang, FakeSGLang]]:
    """Two that were started with ``base``."""
    with FakeSGLang(models / "base") as one, FakeSGLang(models / "base") as two:
        yield one, two


@pytest.fixture
def server(servers: tuple[FakeSGLang, FakeSGLang]) -> FakeSGLang:
    """The first of them."""
    return servers[0]


def test_nobody_is_asked_without_a_live_run(server: FakeSGLang) -> None:
    """No coordinator that lives and names a server: nothing is asked, no series is there."""
    stage = Stage()
    assert stage.round() == []
    stage.feed(started(who(1), target=Target(server=server.host_port)), started(who(0), target=Target()))
    assert stage.round() == []
    stage.probes.look_at(server.host_port)
    assert server.requests == ()
    assert stage.value("up", server.host_port) is None


def test_first_sight(server: FakeSGLang) -> None:
    """Up, ready, its version, no restart yet; whether it is current is unknown before the first sync."""
    stage = Stage()
    stage.starts(server.host_port)
    assert stage.round(0.25) == [server.host_port]
    where = server.host_port
    assert (stage.value("up", where), stage.value("ready", where)) == (1.0, 1.0)
    assert stage.value("info", where, version="0.5.23") == 1.0
    assert (stage.restarts(server), stage.current(server)) == (0.0, None)
    assert stage.value("last_restart_timestamp_seconds", where) is None


def test_how_often_and_what(server: FakeSGLang) -> None:
    """Each interval its state, the version rarely."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.round(0.25)
    assert stage.round(SECONDS - 1) == []
    assert stage.round(1) == [server.host_port]
    assert [one.path for one in server.requests] == [
        *("/ready", "/model_info", "/v1/loads?include=core", "/server_info", "/weights_checker"),
        *("/ready", "/model_info"),
    ]
    stage.round(VERSION_SECONDS)
    rarely = ["/ready", "/model_info", "/v1/loads?include=core", "/server_info", "/weights_checker"]
    assert [one.path for one in server.requests][7:] == rarely


def test_never_up(models: Path) -> None:
    """Down from the start is no restart, nor is its first coming up."""
    stage, port = Stage(), free_port()
    where = f"127.0.0.1:{port}"
    stage.starts(where)
    for _ in range(3):
        stage.round()
        assert (stage.value("up", where), stage.value("ready", where)) == (0.0, None)
        assert stage.value("restarts_total", where) == 0.0
    with FakeSGLang(models / "base", port=port):
        stage.round()
        assert (stage.value("up", where), stage.value("restarts_total", where)) == (1.0, 0.0)
        assert stage.value("info", where, version="0.5.23") == 1.0


def test_paused(server: FakeSGLang) -> None:
    """It answers, and is not ready."""
    stage = Stage()
    stage.starts(server.host_port)
    requests.post(f"{server.url}/pause_generation", json={}, timeout=5)
    stage.round()
    assert (stage.value("up", server.host_port), stage.value("ready", server.host_port)) == (1.0, 0.0)


def test_sync_restart_sync(server: FakeSGLang, models: Path) -> None:
    """Current, then gone and back with its start weights, then current again."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.round()
    stage.sync(server, models / "w")
    assert stage.current(server) == 1.0
    server.kill()
    stage.round()
    assert (stage.value("up", server.host_port), stage.current(server), stage.restarts(server)) == (0.0, None, 0.0)
    server.restart()
    stage.round()
    assert (stage.value("up", server.host_port), stage.current(server), stage.restarts(server)) == (1.0, 0.0, 1.0)
    assert stage.value("last_restart_timestamp_seconds", server.host_port) == stage.clock.wall()
    assert [one.path for one in server.requests][-4:] == [
        *("/model_info", "/v1/loads?include=core", "/server_info", "/weights_checker")
    ]
    stage.sync(server, models / "w")
    assert (stage.current(server), stage.restarts(server)) == (1.0, 1.0)


def test_restart_between_two_looks(server: FakeSGLang, models: Path) -> None:
    """Never seen gone, it went back to its start model; its version is asked for again, soon."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.round()
    stage.sync(server, models / "w")
    server.restart()
    stage.round()
    assert (stage.current(server), stage.restarts(server)) == (0.0, 1.0)
    assert stage.round(0.25) == [server.host_port]
    assert [one.path for one in server.requests][-3:] == ["/v1/loads?include=core", "/server_info", "/weights_checker"]
    assert (stage.current(server), stage.restarts(server)) == (0.0, 1.0)
    assert stage.round(0.25) == []


def test_restart_with_the_path_that_was_synced(models: Path) -> None:
    """Its start model is the checkpoint's folder: the bytes tell that it runs what was synced."""
    with FakeSGLang(models / "w") as server:
        stage = Stage()
        stage.starts(server.host_port)
        stage.round()
        stage.sync(server, models / "w")
        assert stage.current(server) == 1.0
        server.kill()
        stage.round()
        server.restart()
        stage.round()
        assert (stage.current(server), stage.restarts(server)) == (1.0, 1.0)


def test_mount_of_another_name(server: FakeSGLang, models: Path) -> None:
    """The server is told another path than the trainer's own."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.round()
    for _ in range(2):
        stage.sync(server, models / "w", sent=models / "mount/w")
        assert stage.current(server) == 1.0
    server.restart()
    stage.round()
    assert stage.current(server) == 0.0


def test_router_that_does_not_pass_it_on(server: FakeSGLang, models: Path) -> None:
    """200 and success, and nothing changed."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.round()
    server.inject(Fault.NOT_APPLIED)
    stage.sync(server, models / "w")
    assert stage.current(server) == 0.0
    stage.round()
    assert stage.current(server) == 0.0
    stage.sync(server, models / "w")
    assert stage.current(server) == 1.0


def test_busy_with_new_weights(server: FakeSGLang, models: Path) -> None:
    """400, the weights are new, and the path is the old one: not taken for old weights."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.round()
    begun = stage.begins(server.host_port)
    server.inject(Fault.BUSY_WEIGHTS_APPLIED)
    url = f"{server.url}/update_weights_from_disk"
    assert requests.post(url, json={"model_path": str(models / "w")}, timeout=5).status_code == 400
    stage.clock.advance(1)
    there = Checkpoint(path=str(models / "w"))
    end = {"at": begun.at, "duration_ns": 10**9, "target": begun.target, "checkpoint": there}
    stage.feed(record(who(), result=Result.FAILURE, weights_applied=Applied.YES, **end))
    assert stage.round(0.5) == [server.host_port]
    assert stage.current(server) is None


@pytest.mark.parametrize("how", ["record", "loss"])
def test_outcome_that_is_unknown(server: FakeSGLang, models: Path, how: str) -> None:
    """A time-out, or a trainer that vanished inside: nothing is known until the next sync that is taken."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.round()
    stage.sync(server, models / "w")
    begun = stage.begins(server.host_port)
    stage.clock.advance(1)
    if how == "record":
        stage.feed(
            record(
                who(),
                at=begun.at,
                target=begun.target,
                duration_ns=10**9,
                result=Result.FAILURE,
                weights_applied=Applied.UNKNOWN,
            )
        )
    else:
        stage.feed(ProcessLost(identity=who(), at=stage.clock.wall(), how=Exit.LOST, result=Result.FAILURE, sync=begun))
        stage.feed(started(who(pid=7, run_id="two"), at=stage.clock.wall(), target=begun.target))
    assert stage.round(0.5) == [server.host_port]
    assert stage.current(server) is None
    stage.sync(server, models / "w")
    assert stage.current(server) == 1.0


def test_second_trainers_update(server: FakeSGLang, models: Path) -> None:
    """Of a trainer that is not ours, and of one that is."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.starts(server.host_port, run="ppo")
    stage.round()
    stage.sync(server, models / "w")
    url = f"{server.url}/update_weights_from_disk"
    requests.post(url, json={"model_path": str(models / "v")}, timeout=5)
    stage.round()
    assert (stage.current(server), stage.restarts(server)) == (0.0, 0.0)
    stage.sync(server, models / "w", run="ppo")
    assert (stage.current(server), stage.current(server, "ppo")) == (1.0, 1.0)  # the same bytes again


def test_two_runs_and_two_servers(servers: tuple[FakeSGLang, FakeSGLang], models: Path) -> None:
    """Each server has its own state; of two runs on one, the later sync counts."""
    one, two = servers
    stage = Stage()
    stage.starts(one.host_port)
    stage.starts(two.host_port, run="ppo")
    stage.starts(one.host_port, run="dpo")
    assert sorted(stage.round()) == sorted([one.host_port, two.host_port])
    stage.sync(one, models / "w")
    stage.sync(two, models / "w", run="ppo")
    stage.sync(one, models / "v", run="dpo")
    assert (stage.current(one), stage.current(one, "dpo"), stage.current(two, "ppo")) == (0.0, 1.0, 1.0)
    two.kill()
    stage.round()
    assert (stage.value("up", one.host_port), stage.value("up", two.host_port)) == (1.0, 0.0)
    assert (stage.current(one, "dpo"), stage.current(two, "ppo")) == (1.0, None)


def test_during_a_sync_only_what_costs_nothing(server: FakeSGLang, models: Path) -> None:
    """``/ready`` alone; the rest stays as it was."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.round()
    stage.sync(server, models / "w")
    stage.begins(server.host_port)
    asked = len(server.requests)
    stage.round(VERSION_SECONDS)
    assert [one.path for one in server.requests][asked:] == ["/ready"]
    assert (stage.current(server), stage.value("info", server.host_port, version="0.5.23")) == (1.0, 1.0)


def test_sync_that_is_read_after_the_look_that_saw_it(server: FakeSGLang, models: Path) -> None:
    """The journal is read before a look is judged: what changed is the sync's doing, not a stranger's."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.round()
    stage.sync(server, models / "w")
    stage.clock.advance(1)
    url = f"{server.url}/update_weights_from_disk"
    requests.post(url, json={"model_path": str(models / "v")}, timeout=5)
    at = stage.clock.wall()
    stage.clock.advance(1)
    there = Checkpoint(path=str(models / "v"))
    target = Target(server=server.host_port)
    stage.later.append(record(who(), 2, at=at, duration_ns=10**9 // 2, target=target, checkpoint=there))
    assert stage.round() == [server.host_port]
    assert stage.current(server) == 1.0


def test_where_the_routes_are(models: Path) -> None:
    """The last update's URL says so: below a path, say; that is saved, too."""
    stage = Stage()
    looked: list[str] = []

    def looking(url: str, *, info: bool, version: bool, checksum: bool, keys: Keys) -> Look:
        looked.append(url)
        return Look(reach=Reach.ANSWERED)

    stage.probes._looking = looking
    stage.starts("router:443")
    stage.round()
    exchange = Exchange(method="POST", url="https://router/pool/a/update_weights_from_disk", status_code=200)
    target = Target(server="router:443")
    stage.feed(record(who(), at=stage.clock.wall(), target=target, exchanges=(exchange,), decisive=0))
    stage.round()
    assert looked == ["http://router:443", "https://router/pool/a"]
    assert [state.url for state in stage.probes.saved()] == ["https://router/pool/a"]


SLOW, FAST = Checksum(engine="a" * 16, seconds=3.0), Checksum(engine="a" * 16, seconds=0.01)


@pytest.mark.parametrize(
    ("answers", "asked_at"),
    [
        ([(None, None)] * 4, [0, 10, 30, 70]),
        ([(SLOW, 200)] * 9, [0, 300, 600, 900, 1200, 1500, 1820, 2460, 3740]),
        ([(None, None), (FAST, 200), (None, None)], [0, 10, 310]),
        ([(None, 401), (None, 404)], [0, 3600]),
    ],
    ids=["no answer in time", "slow", "fast again", "none to be had"],
)
def test_when_a_checksum_is_asked_for_again(
    answers: list[tuple[Checksum | None, int | None]], asked_at: list[int]
) -> None:
    """Later and later where it holds the scheduler up: a load that is over is seen, and a big model is let be."""
    stage = Stage()
    asked: list[float] = []
    start = stage.clock.wall()

    def looking(url: str, *, info: bool, version: bool, checksum: bool, keys: Keys) -> Look:
        shown = ModelInfo(model_path="/m") if info else None
        started_with = StartedWith(memory_saver=False) if version else None
        if not checksum:
            return Look(reach=Reach.ANSWERED, info=shown, started_with=started_with)
        asked.append(stage.clock.wall() - start)
        found, status = answers[min(len(asked), len(answers)) - 1]
        return Look(reach=Reach.ANSWERED, info=shown, started_with=started_with, checksum=found, checksum_status=status)

    stage.probes._looking = looking
    stage.starts("s:1")
    stage.round(0)
    for _ in range(round(asked_at[-1] / SECONDS)):
        stage.round(SECONDS)
    assert asked == asked_at


def test_end_of_the_run_removes_the_series(server: FakeSGLang, models: Path) -> None:
    """A gauge for something that is over disappears; the count goes with the last run that used the server."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.starts(server.host_port, run="ppo")
    stage.round()
    stage.sync(server, models / "w")
    stage.feed(ended(who(), at=stage.clock.wall()))
    where = server.host_port
    assert (stage.value("up", where), stage.current(server)) == (1.0, None)
    stage.feed(ended(who(run="ppo"), at=stage.clock.wall()))
    assert stage.round() == []
    assert [stage.value(name, where) for name in ("up", "ready", "restarts_total")] == [None, None, 0.0]
    assert stage.value("info", where, version="0.5.23") is None
    tally = stage.metrics.tally
    assert tally.forget(ended_before=stage.clock.wall() + 1)
    stage.probes.forget(but=set())
    assert (stage.restarts(server), tally.servers, stage.probes.saved()) == (None, {}, [])


def test_a_new_process_shows_nothing_of_before_it(server: FakeSGLang) -> None:
    """What was seen while the last trainer lived is old when the next one starts."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.round()
    stage.feed(ended(who(), at=stage.clock.wall()))
    stage.clock.advance(1000)
    stage.feed(started(who(pid=9), at=stage.clock.wall(), target=Target(server=server.host_port)))
    assert stage.value("up", server.host_port) is None
    stage.round(0.25)
    assert stage.value("up", server.host_port) == 1.0


def test_state_outlives_the_exporter(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """Saved and loaded, it still knows what was synced, and notices what happened meanwhile."""
    stage = Stage()
    stage.starts(server.host_port)
    stage.round()
    stage.sync(server, models / "w")
    saved = stage.lasting
    stage.round()
    assert stage.lasting == saved, "a look at which nothing is new is nothing to save"
    snapshot.save(tmp_path, stage.metrics.tally, {}, stage.probes.saved())
    tally, _, states = snapshot.load(tmp_path)
    assert states == stage.probes.saved()
    server.restart()
    again = Stage(states)
    again.clock.set_wall(stage.clock.wall() + 10)
    again.metrics.tally = tally
    again.round()
    assert (again.current(server), again.restarts(server)) == (0.0, 1.0)


def test_snapshot_of_an_earlier_version(tmp_path: Path) -> None:
    """It has no servers."""
    stage = Stage()
    snapshot.save(tmp_path, stage.metrics.tally, {})
    path = tmp_path / snapshot.FILE_NAME
    content = json.loads(path.read_bytes())
    del content["servers"]
    path.write_text(json.dumps(content))
    assert snapshot.load(tmp_path)[2] == []


def test_an_error_of_ours_is_counted_once(server: FakeSGLang) -> None:
    """It would come with each look; the other servers are looked at all the same."""
    stage = Stage()

    def looking(url: str, *, info: bool, version: bool, checksum: bool, keys: Keys) -> Look:
        if url == "http://10.0.0.9:1":
            raise RuntimeError("ours")
        return look(url, info=info, version=version)

    stage.probes._looking = looking
    stage.starts("10.0.0.9:1")
    stage.starts(server.host_port, run="ppo")
    for _ in range(3):
        stage.clock.advance(SECONDS)
        stage.probes._begin()
        wait_until(lambda: not stage.probes._busy, "all looks are over")
    assert [str(error) for error in stage.errors] == ["ours"]
    told = [event for event in stage.told.events if isinstance(event, TelemetryError)]
    assert [(one.component, one.text) for one in told] == [(Component.EXPORTER, "RuntimeError: ours")]
    assert stage.value("up", server.host_port) == 1.0


def test_black_holes_delay_nobody(server: FakeSGLang) -> None:
    """Three that never answer, and one that does, which is looked at again and again meanwhile."""
    release = threading.Event()
    stage = Stage()

    def looking(url: str, *, info: bool, version: bool, checksum: bool, keys: Keys) -> Look:
        if "10.0.0." in url:
            release.wait(60)
            return Look(reach=Reach.SILENT)
        return look(url, info=info, version=version)

    stage.probes._looking = looking
    for number in range(3):
        stage.starts(f"10.0.0.{number}:1", run=f"r{number}")
    stage.starts(server.host_port)
    try:
        for _ in range(3):
            stage.clock.advance(SECONDS)
            stage.probes._begin()
            seen = len(stage.told.events)
            wait_until(lambda: any(isinstance(one, ServerSeen) for one in stage.told.events[seen:]), "it is looked at")  # noqa: B023
        assert {one.server for one in stage.told.events if isinstance(one, ServerSeen)} == {server.host_port}
        assert len(stage.probes._busy) == 3
    finally:
        release.set()
    wait_until(lambda: not stage.probes._busy, "all looks are over")
    assert stage.value("up", "10.0.0.2:1") == 0.0


def test_at_most_so_many_at_once() -> None:
    """A fleet does not become as many threads."""
    release = threading.Event()
    stage = Stage()

    def looking(url: str, *, info: bool, version: bool, checksum: bool, keys: Keys) -> Look:
        release.wait(60)
        return Look(reach=Reach.SILENT)

    stage.probes._looking = looking
    for number in range(3 * MAX_AT_ONCE):
        stage.starts(f"10.0.0.{number}:1", run=f"r{number}")
    stage.clock.advance(SECONDS)
    stage.probes._begin()
    assert len(stage.probes._busy) == MAX_AT_ONCE
    release.set()
    wait_until(lambda: not stage.probes._busy, "all looks are over")


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    """A process that writes a journal; it has yet to say whom it targets."""
    one = Trainer(tmp_path / "j")
    yield one
    one.close()


def targets(trainer: Trainer, server: str) -> Trainer:
    """Let it start with that server."""
    return trainer.do(f"from sglang_telemetry.events import Target; head(target=Target(server={server!r}))")


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The exporter of this test looks at servers that never answer, and never gives up; set when it has begun."""
    began, release = threading.Event(), threading.Event()

    def looking(url: str, *, info: bool, version: bool, checksum: bool, keys: Keys) -> Look:
        began.set()
        release.wait(60)
        return Look(reach=Reach.SILENT)

    monkeypatch.setattr(app, "Probes", functools.partial(Probes, looking=looking))
    yield began
    release.set()
    wait_until(lambda: not any(one.name.startswith("probe") for one in threading.enumerate()), "its threads end")


def test_scrape_and_end_do_not_wait_for_a_black_hole(
    trainer: Trainer, tmp_path: Path, blocked: threading.Event
) -> None:
    """The look goes on when all pages have been served and the exporter has been closed; it then tells nothing."""
    targets(trainer, "10.0.0.7:30000")
    exporter = Exporter(ExporterSettings(folder=tmp_path / "j", port=0))
    exporter.start()
    assert blocked.wait(30)
    assert b"weight_sync_process_up" in exporter.metrics("")[0]
    assert exporter.health()[1]["servers"] == {}
    assert "None was looked at" in exporter.page()
    exporter.close()
    assert any(one.name == "probe 10.0.0.7:30000" for one in threading.enumerate())


def test_end_of_the_command_with_a_black_hole(trainer: Trainer, tmp_path: Path) -> None:
    """A socket that takes connections and never reads: the exporter says so, and ends with 0 when told to."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        where = f"127.0.0.1:{hole.getsockname()[1]}"
        targets(trainer, where)
        with ExporterProcess(tmp_path / "j", "--probe-interval", "250ms") as exporter:
            wait_until(lambda: exporter.value("weight_sync_server_up", server=where) == 0.0, "it is down")
            assert exporter.close() == 0


def test_the_command(trainer: Trainer, tmp_path: Path, models: Path) -> None:
    """``sglang-telemetry exporter`` looks by itself; /healthz and the page say the same as the metrics."""
    with FakeSGLang(models / "base") as server:
        targets(trainer, server.host_port)
        with ExporterProcess(tmp_path / "j") as exporter:
            name = "weight_sync_server_ready"
            wait_until(lambda: exporter.value(name, server=server.host_port) == 1.0, "it is ready")
            [(where, told)] = json.loads(exporter.get("/healthz"))["servers"].items()
            page = exporter.get("/")
        del told["seen_at"]
        assert (where, told) == (
            server.host_port,
            {"up": True, "ready": True, "version": "0.5.23", "current": {}, "confirmed": {}, "restarts": 0},
        )
        assert f"<td class=n>{server.host_port}<td class=n>yes<td class=n>yes<td class=n>0.5.23" in page


def test_switched_off(trainer: Trainer, tmp_path: Path, models: Path) -> None:
    """``--probe-interval 0``: nobody is asked anything."""
    with FakeSGLang(models / "base") as server:
        targets(trainer, server.host_port)
        with ExporterProcess(tmp_path / "j", "--probe-interval", "0") as exporter:
            wait_until(lambda: exporter.total("weight_sync_process_up") == 1, "the trainer is seen")
            trainer.do("sink.emit(begun(me)); sink.emit(record(me))")
            wait_until(lambda: exporter.total("weight_sync_attempts_total") == 1, "the sync is counted")
            assert exporter.total("weight_sync_server_up") == 0
        assert server.requests == ()


def test_a_real_sync_is_followed_by_a_look(tmp_path: Path) -> None:
    """Instrumented engine, journal, exporter: during the request only /ready is asked, and then at once the rest."""
    code = (
        "import sys, sglang_telemetry; from tests.harness.dying_trainer import TinyEngine; "
        "e = TinyEngine(sys.argv[1], 'raise'); "
        "sglang_telemetry.instrument(e, run='r', sinks=[sglang_telemetry.JournalSink(sys.argv[2])]); "
        "e.update_policy(None); print('synced', flush=True); sys.stdin.read()"
    )
    with ExitStack() as stack:
        held = stack.enter_context(Held(SUCCESS))
        server = stack.enter_context(Answers(held))
        exporter = stack.enter_context(ExporterProcess(tmp_path / "j", "--probe-interval", "1h"))
        process = subprocess.Popen(
            [sys.executable, "-c", code, server.url, str(tmp_path / "j")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
        )
        stack.callback(process.communicate)
        wait_until(lambda: exporter.value("weight_sync_server_up", server=server.server) == 1.0, "it is looked at")
        assert held.asked.wait(30)
        before = exporter.get("/healthz")
        held.release()
        assert process.stdout is not None
        assert process.stdout.readline() == "synced\n"
        at = json.loads(before)["servers"][server.server]["seen_at"]
        wait_until(
            lambda: json.loads(exporter.get("/healthz"))["servers"][server.server]["seen_at"] > at,
            "it is looked at again, long before the hour is over",
        )
        assert [path for path, _, _ in server.requests if "update" in path] == ["/update_weights_from_disk"]


def test_a_server_that_was_left_paused_is_looked_at_until_it_is_ready(tmp_path: Path) -> None:
    """Its trainer is gone, and so is nobody else's interest in it; a restart of the exporter forgets nothing."""
    with FakeSGLang() as server:
        target = Target(server=server.host_port)
        stage = Stage()
        stage.feed(
            started(who(), target=target),
            replace(remedied(who(), Action.PAUSE), target=target, at=stage.clock.wall()),
        )
        assert requests.post(f"{server.url}/pause_generation", json={}, timeout=10).status_code == 200
        stage.clock.advance(1.0)
        stage.probes.look_at(server.host_port)
        assert stage.probes.left_paused() == []
        stage.feed(ended(who(), how=Exit.FAILED))
        assert stage.probes.left_paused() == [server.host_port]
        again = Stage(stage.probes.saved())
        again.clock.advance(2.0)
        again.probes._host = Kept(again, server.host_port)
        again.probes.look_at(server.host_port)
        seen = [event for event in again.told.events if isinstance(event, ServerSeen)]
        assert (seen[0].ready, seen[0].left_paused, seen[0].newly_left_paused) == (False, ("grpo",), ("grpo",))
        again.clock.advance(2.0)
        again.probes.look_at(server.host_port)
        assert requests.post(f"{server.url}/continue_generation", json={}, timeout=10).status_code == 200
        again.clock.advance(2.0)
        again.probes.look_at(server.host_port)
        seen = [event for event in again.told.events if isinstance(event, ServerSeen)]
        assert [(one.left_paused, one.newly_left_paused) for one in seen[1:]] == [(("grpo",), ()), ((), ())]
        assert again.probes.left_paused() == []


class Kept:
    """A host that lets one server be looked at, as the exporter does with those that were left paused."""

    def __init__(self, stage: Stage, server: str) -> None:
        self._stage, self._server = stage, server

    def targets(self) -> Mapping[str, InFlight]:
        """That one."""
        return {self._server: ()}

    def __getattr__(self, name: str) -> object:
        return getattr(self._stage, name)
