"""Remedies and real ranks: all agree on how a sync ended, and whoever dies in one leaves nothing behind.

The bound that is stated: a rank that is left waits no longer than the collective's own time-out.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sglang_telemetry
from sglang_telemetry import Remedies
from sglang_telemetry.events import Remedied
from sglang_telemetry.names import Action, Outcome
from sglang_telemetry.testing import FakeSGLang, Fault
from tests.harness.exporter import ExporterProcess
from tests.harness.policy import Policy, policy_engine
from tests.harness.processes import wait_until
from tests.harness.remedied_ranks import COLLECTIVE_SECONDS
from tests.harness.training import events

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """One that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def ranks(
    server: FakeSGLang, models: Path, folder: Path, contents: str, remedies: str, *, kill: str = "", count: int = 2
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many ranks, each a process of its own."""
    environment = os.environ | {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "SGLANG_TELEMETRY_DIR": str(folder / "journals"),
        "SGLANG_TELEMETRY_REMEDIES": remedies,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    arguments = [server.url, str(models), str(folder / "shared"), str(folder / "report"), contents, kill]
    (folder / "shared").mkdir()
    with (folder / "ranks.log").open("wb") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, str(ROOT / "tests/harness/remedied_ranks.py"), *arguments],
                env=environment | {"RANK": str(rank)},
                stdout=log,
                stderr=log,
            )
            for rank in range(count)
        ]
        try:
            yield processes
        finally:
            for one in processes:
                one.kill()
                one.wait(20)
            print((folder / "ranks.log").read_text(errors="replace")[-3000:])


def reports(folder: Path, count: int = 2) -> list[list[str]]:
    """How the syncs of each rank ended."""
    return [(folder / f"report.{rank}").read_text().split() for rank in range(count)]


@pytest.mark.timeout(150)
def test_all_ranks_go_on_or_none(models: Path, tmp_path: Path) -> None:
    """A failed sync over which the run goes on is False everywhere; the one that is too many raises everywhere."""
    remedies = "validate,on_failure=continue_stale,stale_syncs=1"
    contents = "v3,truncated,missing,v2,missing"
    with (
        FakeSGLang(models / "base") as server,
        ranks(server, models, tmp_path, contents, remedies, count=3) as processes,
    ):
        assert [one.wait(90) for one in processes] == [0, 0, 0]
        assert len(server.updates) == 2
    assert reports(tmp_path, 3) == [["True", "False", "RuntimeError", "True", "False"]] * 3
    decisions = [
        one.remedy.outcome
        for one in events(tmp_path / "journals")
        if isinstance(one, Remedied) and one.remedy.action is Action.CONTINUE_STALE
    ]
    assert decisions == [Outcome.DONE, Outcome.REFUSED, Outcome.DONE]


@pytest.mark.timeout(150)
def test_no_run_goes_on_after_its_first_sync_failed(models: Path, tmp_path: Path) -> None:
    """Nobody waits for anybody: all raise."""
    remedies = "on_failure=continue_stale,stale_syncs=5"
    with FakeSGLang(models / "base") as server:
        server.inject(Fault.OUT_OF_MEMORY)
        with ranks(server, models, tmp_path, "v3,v2", remedies) as processes:
            assert [one.wait(90) for one in processes] == [0, 0]
    assert reports(tmp_path) == [["RuntimeError", "True"]] * 2


@pytest.mark.timeout(150)
def test_a_retry_is_one_outcome_for_all(models: Path, tmp_path: Path) -> None:
    """The other ranks wait in the broadcast, and learn how the last attempt ended."""
    with FakeSGLang(models / "base") as server:
        server.inject(Fault.RATE_LIMITED)
        with ranks(server, models, tmp_path, "v3,v2", "retry,pause=abort") as processes:
            assert [one.wait(90) for one in processes] == [0, 0]
        assert len(server.updates) == 3
    assert reports(tmp_path) == [["True", "True"]] * 2


EVERYTHING = "validate,publish_atomically,retry,timeout=auto,pause=retract,serialize"
STEPS = ("phase:save", "validate", "publish", "serialize", "timeout", "pause", "phase:request", "flush", "release")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kill", [*(f"0:{step}" for step in STEPS), "1:phase:broadcast", "1:phase:barrier"])
def test_a_rank_that_is_killed_leaves_nothing_behind(kill: str, models: Path, tmp_path: Path) -> None:
    """The other rank ends within its own time-out; the next start removes folders and releases the server."""
    with FakeSGLang(models / "base") as server:
        if kill == "0:flush":  # which comes after a refusal only
            server.inject(Fault.NOT_APPLIED)
            server.inject(Fault.RATE_LIMITED)
        with ranks(server, models, tmp_path, "v3,v2", EVERYTHING, kill=kill) as processes:
            codes = [one.wait(60 + COLLECTIVE_SECONDS) for one in processes]
        assert codes[int(kill[0])] == -9
        shared = tmp_path / "shared"
        engine = policy_engine(server.url, shared)
        remedies = Remedies(
            validate=True, publish_atomically=True, retry=True, timeout="auto", pause="retract", serialize=True
        )
        with sglang_telemetry.instrument(engine, sinks=[], remedies=remedies):
            assert [one.name for one in shared.iterdir() if one.name != "checkpoint"] == []
            assert engine.update_policy(Policy(models)) is True
        assert [one.name for one in shared.iterdir()] == ["checkpoint"]
        assert server.state().paused is None
        with FakeSGLang(models / "v2") as wanted:
            assert server.state().checksum == wanted.state().checksum


@pytest.mark.timeout(150)
def test_a_server_that_was_left_paused_is_found_and_released(models: Path, tmp_path: Path) -> None:
    """The exporter says so after the trainer's death, until somebody releases it."""
    journals = tmp_path / "journals"
    with (
        FakeSGLang(models / "base") as server,
        ExporterProcess(journals, "--probe-interval", "0.2s") as exporter,
    ):
        labels = {"run": "ranks", "server": server.host_port}
        with ranks(server, models, tmp_path, "v3,v2", "pause=abort", kill="0:pause") as processes:
            assert processes[0].wait(60) == -9

            def left() -> float | None:
                return exporter.value("weight_sync_server_left_paused", **labels)

            wait_until(lambda: left() == 1.0, "it is told", timeout=30)
            assert exporter.value("weight_sync_remedies_total", run="ranks", action="pause", outcome="done") == 2.0
            assert exporter.value("weight_sync_remedies_total", run="ranks", action="release", outcome="done") == 1.0
        command = [sys.executable, "-m", "sglang_telemetry", "check", "--server", server.url, "--release"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "released: generation goes on" in done.stdout) == (0, True)
        wait_until(lambda: left() == 0.0, "it is over", timeout=30)
        exporter.process.terminate()
        assert exporter.process.stderr is not None
        assert exporter.process.stderr.read().count("sglang_server.left_paused") == 1
