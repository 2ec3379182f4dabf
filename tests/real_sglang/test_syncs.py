"""Syncs of two real gloo ranks into the real server: what is recorded, and what the server then really runs."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import SyncRecord
from sglang_telemetry.journal.reader import SegmentReader
from sglang_telemetry.names import Applied, Phase, Result
from tests.harness.processes import wait_until
from tests.real_sglang.conftest import RealSGLangFactory
from tests.real_sglang.server import RealSGLang

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
SESSION = requests.Session()
SESSION.trust_env = False


class Trainer:
    """The two ranks, told what to do one sync at a time.

    Args:
        folder: For journals, checkpoint, orders and output.
        server: The real one.
    """

    def __init__(self, folder: Path, server: RealSGLang) -> None:
        self.journals, self._orders, self._step = folder / "journals", folder / "orders", 0
        self._orders.mkdir()
        self._log = (folder / "trainer.log").open("wb")
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
        start = server.model.parent / "v2_bin"
        arguments = (server.url, str(folder / "checkpoint"), str(self._orders), str(start))
        self.process = subprocess.Popen(
            [sys.executable, *torchrun, "-m", "tests.real_sglang.trainer", *arguments],
            cwd=ROOT,
            env=os.environ
            | {"SGLANG_TELEMETRY_DIR": str(self.journals), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdout=self._log,
            stderr=self._log,
        )

    def start(self, what: str) -> None:
        """Let both ranks begin a sync."""
        self._step += 1
        path = self._orders / f"step-{self._step}"
        path.with_suffix(".new").write_text(what)
        path.with_suffix(".new").rename(path)

    def records(self) -> list[SyncRecord]:
        """What both ranks recorded of the sync that was started last; empty until both have."""
        found = []
        for journal in sorted(self.journals.glob("real-*.jsonl")):
            reader = SegmentReader(journal)
            found += [e for e in reader.events() if isinstance(e, SyncRecord) and e.sequence == self._step]
            reader.close()
        return sorted(found, key=lambda record: record.identity.rank) if len(found) == 2 else []

    def sync(self, what: str) -> SyncRecord:
        """One sync from begin to end; rank 0's record, after rank 1's was looked at."""
        self.start(what)
        return self.ended()

    def ended(self) -> SyncRecord:
        """Wait for the end of the sync that was started."""
        wait_until(lambda: self.records() or self.process.poll() is not None, "both ranks have recorded", timeout=120)
        first, second = self.records()
        expected = (Result.SUCCESS, None) if first.result is Result.SUCCESS else (Result.FAILURE, FailureCause.PEER)
        assert (second.result, second.cause, second.trace_id) == (*expected, first.trace_id)
        return first

    def close(self) -> None:
        """End it."""
        self.start("stop")
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)
        self._log.close()


def checksum(server: RealSGLang) -> str:
    """Of the bytes that the server has loaded: the one proof."""
    answer = SESSION.post(f"{server.url}/weights_checker", json={"action": "checksum"}, timeout=30).json()
    return str(answer["per_engine_checksum"])


@pytest.fixture(scope="module")
def server(real_sglang: RealSGLangFactory) -> RealSGLang:
    """One server for all tests of this file."""
    return real_sglang()


@pytest.fixture(scope="module")
def trainer(server: RealSGLang, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """Two ranks that live through all tests of this file."""
    one = Trainer(tmp_path_factory.mktemp("trainer"), server)
    yield one
    one.close()


def test_good_sync_changes_the_weights(server: RealSGLang, trainer: Trainer) -> None:
    """The checksum is another afterwards; path, size and phases are in the record."""
    before = checksum(server)
    record = trainer.sync("good")
    assert (record.result, record.weights_applied, record.cause) == (Result.SUCCESS, Applied.YES, None)
    assert checksum(server) != before
    assert record.checkpoint is not None
    assert record.checkpoint.bytes is not None
    assert record.checkpoint.bytes > 100_000
    order = [span.phase for span in record.phases if span.phase is not Phase.OTHER]
    assert order == [Phase.SETUP, Phase.STATE_DICT, Phase.SAVE, Phase.REQUEST, Phase.BROADCAST, Phase.BARRIER]


@pytest.mark.parametrize(
    ("what", "text", "fault"),
    [
        ("missing_folder", "Repo id must be in the form", "No such file or directory"),
        ("empty_folder", "Cannot find any model weights with", "no weight files"),
    ],
)
def test_nothing_to_load(server: RealSGLang, trainer: Trainer, what: str, text: str, fault: str) -> None:
    """Answered 400, and the files are not here either: the checkpoint is to blame, not the mount."""
    before = checksum(server)
    record = trainer.sync(what)
    assert (record.cause, record.weights_applied) == (FailureCause.CHECKPOINT_INVALID, Applied.NO)
    assert record.exchange is not None
    assert record.exchange.status_code == 400
    assert text in (record.exchange.response_text or "")
    assert record.checkpoint is not None
    assert record.checkpoint.fault == fault
    assert checksum(server) == before


def test_update_while_a_request_runs_waits_for_it(server: RealSGLang, trainer: Trainer) -> None:
    """By default the server lets running requests end first: the request phase takes as long as they do."""
    body = {"text": "x", "sampling_params": {"max_new_tokens": 600, "ignore_eos": True}}
    took: list[float] = []

    def generate() -> None:
        start = time.monotonic()
        SESSION.post(f"{server.url}/generate", json=body, timeout=120)
        took.append(time.monotonic() - start)

    thread = threading.Thread(target=generate)
    thread.start()
    wait_until(
        lambda: any(
            load["num_running_reqs"] for load in requests.get(f"{server.url}/v1/loads", timeout=5).json()["loads"]
        ),
        "the server generates",
    )
    record = trainer.sync("good")
    thread.join()
    assert record.result is Result.SUCCESS
    assert record.phase_seconds()[Phase.REQUEST] > 0.1 * took[0]


def test_time_out_shorter_than_the_load(server: RealSGLang, trainer: Trainer) -> None:
    """The client gives up while the scheduler stands still; the server applies the update all the same, later."""
    before = checksum(server)
    server.stop_scheduler()
    try:
        record = trainer.sync("timeout")
    finally:
        server.continue_scheduler()
    assert (record.cause, record.weights_applied) == (FailureCause.TIMEOUT, Applied.UNKNOWN)
    assert record.target.timeout_seconds == 2.0
    assert record.error_type == "ReadTimeout"
    wait_until(lambda: checksum(server) != before, "the update is applied after all", timeout=60)


def test_wrong_shape_kills_the_server_which_comes_back_with_its_start_weights(
    server: RealSGLang, trainer: Trainer
) -> None:
    """No answer, a dead process, and after the restart the start weights with the label ``default``: nobody is told."""
    server.restart()
    start = checksum(server)
    trainer.sync("good")
    assert checksum(server) != start
    record = trainer.sync("wrong_shape")
    assert (record.cause, record.weights_applied) == (FailureCause.SERVER_DIED, Applied.NO)
    assert record.exchange is not None
    assert record.exchange.status_code is None
    server.wait_dead()
    server.restart()
    assert checksum(server) == start
    info = SESSION.get(f"{server.url}/model_info", timeout=10).json()
    assert (info["weight_version"], info["model_path"]) == ("default", str(server.model))
    assert trainer.sync("good").result is Result.SUCCESS
    assert checksum(server) != start
