"""The exporter looks at a real SGLang: up, ready, its version, current, and a restart with its start weights."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import torch

import sglang_telemetry
from sglang_telemetry import JournalSink
from sglang_telemetry.server_truth.client import Look, ModelInfo, Reach, StartedWith, look
from sglang_telemetry.testing import FakeSGLang
from tests.demo.train import FromCheckpoint
from tests.harness.exporter import ExporterProcess
from tests.harness.minimind import SharedFolderEngine
from tests.harness.processes import wait_until
from tests.real_sglang.conftest import RealSGLangFactory
from tests.real_sglang.server import RealSGLang

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]

SESSION = requests.Session()
SESSION.trust_env = False


class Watched:
    """A trainer of one process, and the exporter beside it."""

    def __init__(self, server: RealSGLang, exporter: ExporterProcess, folder: Path) -> None:
        self.server, self.exporter = server, exporter
        self.engine = SharedFolderEngine(server.url, str(folder / "checkpoint"), timeout=60)
        self.engine.http = SESSION
        self.model = FromCheckpoint(server.model.parent / "v2_bin")
        self.telemetry = sglang_telemetry.instrument(self.engine, run="real", sinks=[JournalSink(folder / "journals")])

    def sync(self) -> None:
        """Other weights than before."""
        with torch.no_grad():
            self.model.layers[0].weight.mul_(1.5)
        assert self.engine.update_policy(self.model)

    def value(self, name: str, **labels: str) -> float | None:
        """What is said of the server."""
        return self.exporter.value(f"weight_sync_server_{name}", server=self.server.host_port, **labels)

    def until(self, name: str, value: float | None, **labels: str) -> None:
        """Wait until that is said."""
        wait_until(lambda: self.value(name, **labels) == value, f"{name} is {value}", timeout=60)


@pytest.fixture(scope="module")
def server(real_sglang: RealSGLangFactory) -> RealSGLang:
    """With its start weights."""
    one = real_sglang()
    one.restart()
    return one


@pytest.fixture
def watched(server: RealSGLang, tmp_path: Path) -> Iterator[Watched]:
    """A trainer and its exporter, with the interval that is the default."""
    with ExporterProcess(tmp_path / "journals") as exporter:
        one = Watched(server, exporter, tmp_path)
        yield one
        one.telemetry.uninstrument()


def test_look(server: RealSGLang) -> None:
    """Everything is there; what it says of its load has the fields that the stand-in has."""
    start = str(server.model)
    assert look(server.url, version=True) == Look(
        reach=Reach.ANSWERED,
        ready=True,
        info=ModelInfo(model_path=start, weight_version="default", tokenizer_path=start),
        version="0.5.23",
        started_with=StartedWith(tokenizer_workers=1, memory_saver=False),
        status=200,
        info_status=200,
    )
    real = SESSION.get(f"{server.url}/v1/loads?include=core", timeout=10)
    with FakeSGLang() as stand_in:
        fake = SESSION.get(f"{stand_in.url}/v1/loads?include=core", timeout=10)
    assert (real.status_code, real.headers["content-type"]) == (fake.status_code, fake.headers["content-type"])
    assert real.json().keys() == fake.json().keys()
    assert real.json()["loads"][0].keys() == fake.json()["loads"][0].keys()
    assert len(real.content) < 4096


def test_pause_sync_kill_and_sync_again(watched: Watched) -> None:
    """Each of these is seen, and nothing is said that is not known."""
    watched.until("up", 1.0)
    watched.until("ready", 1.0)
    assert watched.value("info", version="0.5.23") == 1.0
    assert (watched.value("restarts_total"), watched.value("current", run="real")) == (0.0, None)

    SESSION.post(f"{watched.server.url}/pause_generation", json={"mode": "retract"}, timeout=10).raise_for_status()
    watched.until("ready", 0.0)
    assert watched.value("up") == 1.0
    SESSION.post(f"{watched.server.url}/continue_generation", json={}, timeout=10).raise_for_status()
    watched.until("ready", 1.0)

    watched.sync()
    watched.until("current", 1.0, run="real")

    watched.server.kill()
    watched.until("up", 0.0)
    assert [watched.value("ready"), watched.value("current", run="real")] == [None, None]
    watched.server.start()
    watched.until("restarts_total", 1.0)
    watched.until("current", 0.0, run="real")
    assert watched.value("last_restart_timestamp_seconds") is not None

    watched.sync()
    watched.until("current", 1.0, run="real")
    assert watched.value("restarts_total") == 1.0


def test_restart_between_two_looks(watched: Watched) -> None:
    """Nobody looks while it is gone: its start model is what gives it away."""
    watched.sync()
    watched.until("current", 1.0, run="real")
    watched.exporter.process.send_signal(signal.SIGSTOP)  # a machine that is too busy to look
    try:
        watched.server.restart()
    finally:
        watched.exporter.process.send_signal(signal.SIGCONT)
    watched.until("current", 0.0, run="real")
