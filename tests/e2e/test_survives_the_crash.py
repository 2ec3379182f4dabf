"""What a process wrote before it died, however it died, is in the metrics after the next scrape; counters only grow."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.answers import BUSY, Answers
from tests.harness.exporter import ExporterProcess
from tests.harness.processes import wait_until

COUNT = 20


@pytest.fixture
def server() -> Iterator[Answers]:
    with Answers(BUSY) as one:
        yield one


def die(folder: Path, how: str, count: int, url: str, run: str = "dying") -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.harness.dying_trainer", str(folder), how, str(count), url],
        check=False,
        timeout=60,
        env=os.environ | {"DYING_RUN": run},
    )


@pytest.mark.parametrize("how", ["raise", "_exit", "kill"])
def test_a_failure_is_seen_after_the_next_scrape(tmp_path: Path, how: str, server: Answers) -> None:
    """Twenty processes fail and are gone at once, each is counted at the one scrape that follows it."""
    with ExporterProcess(tmp_path) as exporter:
        seen = []
        for _ in range(COUNT):
            die(tmp_path, how, 1, server.url)
            seen.append(exporter.value("weight_sync_failures_total", **_labels(server)))
        assert seen == [float(n) for n in range(1, COUNT + 1)]
        assert exporter.total("weight_sync_process_exits_total", how="failed") == COUNT


def test_killed_in_the_middle_is_trainer_lost(tmp_path: Path, server: Answers) -> None:
    """SIGKILL while the request is out: nobody in the process could say so, the exporter does."""
    with ExporterProcess(tmp_path) as exporter:
        die(tmp_path, "kill_in_request", COUNT, server.url)
        assert exporter.value("weight_sync_failures_total", **_labels(server, "trainer_lost")) == COUNT
        assert exporter.total("weight_sync_process_exits_total", how="lost") == COUNT
        assert exporter.value("weight_sync_process_up", run="dying", rank="0") == 0.0


def test_exporter_that_comes_late_counts_once(tmp_path: Path, server: Answers) -> None:
    """Started after all have died: each is counted, and a second scrape adds nothing."""
    die(tmp_path, "raise", 3, server.url)
    die(tmp_path, "kill_in_request", 2, server.url)
    with ExporterProcess(tmp_path) as exporter:
        for _ in range(2):
            assert exporter.total("weight_sync_failures_total") == 5.0


@pytest.mark.parametrize("gently", [True, False])
def test_counts_survive_the_exporters_restart(tmp_path: Path, gently: bool, server: Answers) -> None:
    """Stopped or killed, the next exporter goes on where it was; journals may even be gone by then."""
    first = ExporterProcess(tmp_path)
    die(tmp_path, "raise", 2, server.url)
    assert first.total("weight_sync_failures_total") == 2.0
    first.close() if gently else first.kill()
    die(tmp_path, "raise", 1, server.url)
    with ExporterProcess(tmp_path) as second:
        assert second.total("weight_sync_failures_total") == 3.0
    for journal in tmp_path.glob("*.jsonl"):
        journal.unlink()
    with ExporterProcess(tmp_path) as third:
        assert third.total("weight_sync_failures_total") == 3.0


def test_retention_removes_files_and_keeps_counts(tmp_path: Path, server: Answers) -> None:
    """A size limit of nothing: counted journals of dead trainers go, their counts stay."""
    with ExporterProcess(tmp_path, "--max-size", "0") as exporter:
        die(tmp_path, "raise", 3, server.url)
        wait_until(lambda: not list(tmp_path.glob("*.jsonl")), "the counted journals are removed", timeout=30)
        assert exporter.total("weight_sync_failures_total") == 3.0
    with ExporterProcess(tmp_path) as exporter:
        assert exporter.total("weight_sync_failures_total") == 3.0


def test_runs_that_ended_drop_out(tmp_path: Path, server: Answers) -> None:
    """After the retention a run is gone from the metrics, and its journal from the disk."""
    with ExporterProcess(tmp_path, "--retention", "1s") as exporter:
        die(tmp_path, "raise", 1, server.url)
        wait_until(
            lambda: exporter.value("weight_sync_failures_total", **_labels(server)) is None,
            "the run has dropped out",
            timeout=30,
        )
        assert not list(tmp_path.glob("*.jsonl"))


def test_stopped_trainer_is_not_lost(tmp_path: Path) -> None:
    """SIGSTOP in a sync: alive, active, with its phase; SIGKILL then makes it lost."""
    with Answers(lambda handler: handler.rfile.read()) as server, ExporterProcess(tmp_path) as exporter:
        trainer = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.dying_trainer", str(tmp_path), "raise", "1", server.url]
        )
        wait_until(
            lambda: exporter.value("weight_sync_active_phase", run="dying", rank="0", phase="request") == 1.0,
            "the request is out",
        )
        [journal] = tmp_path.glob("dying-*.jsonl")
        pid = int(journal.name.split("-")[2])
        os.kill(pid, signal.SIGSTOP)
        assert exporter.value("weight_sync_process_up", run="dying", rank="0") == 1.0
        assert exporter.value("weight_sync_active", run="dying", rank="0") == 1.0
        os.kill(pid, signal.SIGKILL)
        trainer.wait(10)
        assert exporter.value("weight_sync_process_up", run="dying", rank="0") == 0.0
        assert exporter.value("weight_sync_active", run="dying", rank="0") is None
        assert exporter.value("weight_sync_active_phase", run="dying", rank="0", phase="request") is None


def _labels(server: Answers, cause: str = "server_busy") -> dict[str, str]:
    return {"run": "dying", "server": server.server, "transport": "disk", "cause": cause}
