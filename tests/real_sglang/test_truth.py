"""What a server really runs, found out after the sync by the exporter: on the real SGLang and on its stand-in."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
import requests
import torch
from torch import nn

import sglang_telemetry
from sglang_telemetry import JournalSink
from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import CheckpointInspected, SyncRecord
from sglang_telemetry.names import Applied, Result
from sglang_telemetry.testing import FakeSGLang, Fault, RecordingSink
from tests.harness.exporter import ExporterProcess
from tests.harness.minimind import SharedFolderEngine
from tests.harness.policy import NoTokenizer, Policy
from tests.harness.processes import wait_until
from tests.real_sglang.conftest import RealSGLangFactory
from tests.real_sglang.server import RealSGLang
from tests.testing.checkpoints import write_models

pytestmark = pytest.mark.timeout(400)

SESSION = requests.Session()
SESSION.trust_env = False
LATE_SECONDS = 3.0
RUN = "truth"


class Server(Protocol):
    """What both have."""

    @property
    def url(self) -> str: ...
    @property
    def host_port(self) -> str: ...
    def kill(self) -> None: ...
    def wait_dead(self) -> None: ...
    def restart(self) -> None: ...


class Site:
    """Servers of one kind, with the checkpoints that fit them."""

    def __init__(self, models: Path, make: Callable[[str], FakeSGLang | RealSGLang]) -> None:
        self.models, self._make = models, make

    def server(self, name: str = "one") -> FakeSGLang | RealSGLang:
        """A server with its start weights."""
        server = self._make(name)
        if isinstance(server, RealSGLang):
            server.restart()
        return server


class Training:
    """A trainer of one process that uses one folder again and again, and the exporter beside it."""

    def __init__(self, site: Site, folder: Path, exporter: ExporterProcess, engine: SharedFolderEngine) -> None:
        self.exporter, self.engine, self.sink = exporter, engine, RecordingSink()
        self.engine.tokenizer = NoTokenizer()  # type: ignore[assignment]
        self.engine.http = SESSION
        self.model = Policy(site.models)
        self.telemetry = sglang_telemetry.instrument(
            engine, run=RUN, sinks=[JournalSink(folder / "journals"), self.sink]
        )

    def sync(self, content: str) -> SyncRecord:
        """Train, and send that checkpoint."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.5)
        self.model.content = content
        try:
            self.engine.update_policy(self.model)
        except RuntimeError:
            assert self.sink.records[-1].result is Result.FAILURE
        else:
            assert self.sink.records[-1].result is Result.SUCCESS
        return self.sink.records[-1]

    def inspected(self) -> CheckpointInspected:
        """What was found in the checkpoint that was sent last."""
        sequence = self.sink.records[-1].sequence

        def found() -> list[CheckpointInspected]:
            events = [event for event in self.sink.events if isinstance(event, CheckpointInspected)]
            return [event for event in events if event.sequence == sequence]

        wait_until(lambda: bool(found()), "the checkpoint was looked at")
        return found()[0]

    def value(self, name: str, **labels: str) -> float | None:
        """One sample of a scrape."""
        return self.exporter.value(f"weight_sync_{name}", **labels)

    def until(self, expected: float | None, name: str, **labels: str) -> None:
        """Wait until that is said."""
        wait_until(lambda: self.value(name, **labels) == expected, f"{name}{labels} is {expected}", timeout=60)

    def until_current(self, expected: float | None, server: Server) -> None:
        """Wait until that is said of the server's weights."""
        self.until(expected, "server_current", run=RUN, server=server.host_port)

    def confirmed(self, server: Server) -> float | None:
        """The last sync that the server was seen to run."""
        return self.value("confirmed_version", run=RUN, server=server.host_port)

    def failures(self, cause: FailureCause, server: Server) -> float | None:
        """How many there were."""
        labels = {"run": RUN, "server": server.host_port, "transport": "disk", "cause": cause.value}
        return self.value("failures_total", **labels)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.sglang)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """The real server, or its stand-in."""
    if request.param == "real":
        factory: RealSGLangFactory = request.getfixturevalue("real_sglang")
        models: Path = request.getfixturevalue("tiny_models")
        yield Site(models, lambda name: factory(environment={"WHICH": name} if name != "one" else None))
        return
    models = write_models(tmp_path / "models")
    with ExitStack() as stack:
        yield Site(models, lambda _: stack.enter_context(FakeSGLang(models / "base")))


@pytest.fixture
def server(site: Site) -> FakeSGLang | RealSGLang:
    """With its start weights."""
    return site.server()


@pytest.fixture
def training(site: Site, server: Server, tmp_path: Path) -> Iterator[Training]:
    """With an exporter that looks as often as it does by default, and has seen the server before the first sync."""
    engine = SharedFolderEngine(server.url, str(tmp_path / "checkpoint"), timeout=60)
    with ExporterProcess(tmp_path / "journals") as exporter:
        one = Training(site, tmp_path, exporter, engine)
        one.until(1.0, "server_up", server=server.host_port)
        yield one
        one.telemetry.uninstrument()


def first(training: Training, server: Server) -> None:
    """A sync that is good, and seen to be."""
    assert training.sync("v2").weights_applied is Applied.YES
    training.until_current(1.0, server)
    training.until(1.0, "confirmed_version", run=RUN, server=server.host_port)


def test_tensor_that_is_missing(training: Training, server: Server) -> None:
    """200, and old and new weights are mixed: found in the checkpoint, and counted once."""
    first(training, server)
    record = training.sync("missing")
    assert (record.result, record.weights_applied) == (Result.SUCCESS, Applied.YES)
    found = training.inspected()
    assert found.mixed
    assert "model.layers.1.mlp.down_proj.weight" in (found.fault or "")
    training.until_current(0.0, server)
    training.until(
        1.0,
        "failures_total",
        run=RUN,
        server=server.host_port,
        transport="disk",
        cause=FailureCause.NOT_APPLIED.value,
    )
    assert training.sync("v3").result is Result.SUCCESS
    training.until_current(1.0, server)
    training.until(3.0, "confirmed_version", run=RUN, server=server.host_port)
    assert training.failures(FailureCause.NOT_APPLIED, server) == 1.0


def test_refused_and_applied_all_the_same(training: Training, server: Server) -> None:
    """Paused in place with a request that is not over: 400, and the weights are new."""
    first(training, server)
    body = {"text": "x", "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}, "seconds": 2.0}
    generating = threading.Thread(
        target=lambda: SESSION.post(f"{server.url}/generate", json=body, timeout=120), daemon=True
    )
    generating.start()
    wait_until(lambda: running(server) > 0, "the server generates")
    SESSION.post(f"{server.url}/pause_generation", json={"mode": "in_place"}, timeout=10).raise_for_status()
    record = training.sync("v3")
    assert (record.cause, record.weights_applied) == (FailureCause.SERVER_BUSY, Applied.YES)
    SESSION.post(f"{server.url}/continue_generation", json={}, timeout=10).raise_for_status()
    training.until(2.0, "confirmed_version", run=RUN, server=server.host_port)
    training.until_current(1.0, server)
    generating.join()


def running(server: Server) -> int:
    """Requests that it generates for."""
    loads: list[dict[str, Any]] = SESSION.get(f"{server.url}/v1/loads", timeout=10).json()["loads"]
    return sum(int(load["num_running_reqs"]) for load in loads)


def test_client_that_gave_up(training: Training, server: FakeSGLang | RealSGLang) -> None:
    """Unknown at first; when the server is done with it, it is known to be there, and how much later that was."""
    first(training, server)
    training.engine.timeout = 1
    if isinstance(server, FakeSGLang):
        server.inject(Fault.SLOW, seconds=LATE_SECONDS)
        record = training.sync("v3")
    else:
        server.stop_scheduler()
        try:
            record = training.sync("v3")
        finally:
            server.continue_scheduler()
    assert (record.cause, record.weights_applied) == (FailureCause.TIMEOUT, Applied.UNKNOWN)
    training.until(2.0, "confirmed_version", run=RUN, server=server.host_port)
    training.until_current(1.0, server)
    labels = {"run": RUN, "server": server.host_port, "claimed": "unknown", "applied": "yes"}
    assert training.value("confirmation_delay_seconds_count", **labels) == 1.0
    assert training.value("published_version", run=RUN, server=server.host_port) == 2.0


def test_file_that_kills_the_server(training: Training, server: Server) -> None:
    """The look at the files says why it died; back with its start weights, it is not current until the next sync."""
    first(training, server)
    record = training.sync("truncated")
    assert (record.cause, record.weights_applied) == (FailureCause.CHECKPOINT_INVALID, Applied.NO)
    assert record.exchange is not None
    assert record.exchange.status_code is None
    assert record.checkpoint is not None
    assert "model.safetensors" in (record.checkpoint.fault or "")
    server.wait_dead()
    training.until(0.0, "server_up", server=server.host_port)
    server.restart()
    training.until(1.0, "server_restarts_total", server=server.host_port)
    training.until_current(0.0, server)
    assert training.sync("v3").weights_applied is Applied.YES
    training.until_current(1.0, server)
    training.until(3.0, "confirmed_version", run=RUN, server=server.host_port)


class Both(SharedFolderEngine):
    """Sends to two servers."""

    other: str

    def update_policy(self, model: nn.Module) -> bool:
        """One after the other."""
        model.save_pretrained(self.shared_ckpt_path)  # type: ignore[operator]
        for url in (self.base_url, self.other):
            body = {"model_path": self.shared_ckpt_path}
            answer = self.http.post(f"{url}/update_weights_from_disk", json=body, timeout=self.timeout)
            if answer.status_code != 200:
                raise RuntimeError("SGLang update_policy failed")
        return True


def test_two_servers_of_which_one_restarts(site: Site, tmp_path: Path) -> None:
    """Each is known for itself."""
    stays, restarts = site.server("one"), site.server("two")
    engine = Both(stays.url, str(tmp_path / "checkpoint"), timeout=60)
    engine.other = restarts.url
    with ExporterProcess(tmp_path / "journals") as exporter:
        training = Training(site, tmp_path, exporter, engine)
        training.until(1.0, "server_up", server=stays.host_port)
        training.sync("v2")
        for server in (stays, restarts):
            training.until_current(1.0, server)
        restarts.kill()
        training.until(0.0, "server_up", server=restarts.host_port)
        restarts.restart()
        training.until_current(0.0, restarts)
        assert training.value("server_restarts_total", server=restarts.host_port) == 1.0
        assert training.value("server_restarts_total", server=stays.host_port) == 0.0
        training.until_current(1.0, stays)
        training.sync("v3")
        for server in (stays, restarts):
            training.until_current(1.0, server)
            training.until(2.0, "confirmed_version", run=RUN, server=server.host_port)
        training.telemetry.uninstrument()
