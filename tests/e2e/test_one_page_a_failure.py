"""One failure is one notification, however many ranks it hits; and how many seconds it takes.

The one decision: that nothing more is sent is known by a witness, an alert of another run that came later and whose
group has been looked at again by now, and never by waiting for a time.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_telemetry.testing import FakeSGLang, Fault
from tests.harness.answers import BUSY, Answers
from tests.harness.assets import impatient
from tests.harness.processes import wait_until
from tests.harness.scene import Scene
from tests.harness.stack import Stack, running_stack
from tests.harness.training import ended, training

FOR_SECONDS = 5
FAILURES = 10
RANKS = 8
STAMP = "weight_sync_last_failure_timestamp_seconds"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with running_stack(tmp_path, rule_files=impatient(tmp_path / "rules", FOR_SECONDS)) as one:
        yield one


def wait_for_group_interval(stack: Stack) -> None:
    """Until every group that has been sent by now was looked at again, by two alerts of a run that is none."""
    for name in ("FirstWitness", "SecondWitness"):
        stack.alertmanager.post({"labels": {"alertname": name, "severity": "warning", "run": "witness"}})
        stack.chat.wait_for("firing", alertname=name)


@pytest.mark.timeout(240)
def test_eight_ranks_one_notification(stack: Stack, tmp_path: Path) -> None:
    """Eight real torch ranks raise, and torchrun ends what is left of them: one notification, with one alert."""
    with Answers(BUSY) as server:
        with training(tmp_path / "j", server.url, "1", str(tmp_path / "c"), ranks=RANKS) as process:
            assert ended(process, tmp_path, seconds=120) != 0
        page = stack.page.wait_for("firing")
        wait_until(lambda: stack.exporter.total("weight_sync_process_exits_total") == RANKS, "all ranks are gone")
    stack.prometheus.wait_for_evaluations(FOR_SECONDS + 3)
    wait_for_group_interval(stack)
    assert stack.page.pages == [page]
    assert page.labels["cause"] == "server_busy"
    assert stack.page.notifications == 1
    assert {told.labels["run"] for told in stack.chat.pages} == {"witness"}


def test_seconds_from_failure_to_page(stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not asserted, from the end of the failed sync; each is one notification.

    Each fails in another tenth of a second, so that all places between two scrapes are met alike.
    """
    took = []
    with Scene(tmp_path / "scene", tmp_path / "j", stack.prometheus) as scene, FakeSGLang() as server:
        server.inject(Fault.BUSY_WEIGHTS_APPLIED, times=FAILURES)
        trainers = {f"run-{number}": scene.trainer(f"run-{number}", server.url) for number in range(FAILURES)}
        stack.prometheus.wait_for(f"count(weight_sync_process_up == 1) == {FAILURES}")
        for number, (run, trainer) in enumerate(trainers.items()):
            wait_until(lambda n=number: int(time.time() * FAILURES) % FAILURES == n, "its tenth")  # type: ignore[misc]
            trainer.sync()
            page = stack.page.wait_for("firing", run=run)
            took.append(page.at - (stack.prometheus.value(f'{STAMP}{{run="{run}"}}') or float("nan")))
    assert stack.page.notifications == FAILURES
    fastest, median, worst = min(took), statistics.median(took), max(took)
    with capsys.disabled():
        print(f" [failure to page, 1 s scrape and evaluation: median {median:.2f} s, worst {worst:.2f} s;", end="")
        # A failure waits for a scrape for up to one interval, and that for the evaluation for up to another.
        print(f" 15 s each: {15 + fastest:.0f} s on average, {30 + fastest:.0f} s at most]", end="")
