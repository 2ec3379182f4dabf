"""Every metric and label that rules, annotations and dashboards ask for is in a real scrape of a real exporter."""

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
import torch

import sglang_telemetry
from sglang_telemetry.events import Target
from sglang_telemetry.names import Action, Exit
from sglang_telemetry.testing import FakeSGLang, Fault
from tests.dashboards import board as dashboards
from tests.e2e.test_survives_the_crash import die
from tests.harness.assets import recorded, rules
from tests.harness.exporter import ExporterProcess
from tests.harness.processes import wait_until
from tests.harness.promql import asked_for, queries_in
from tests.sinks import ended, remedied, started, who
from tests.testing.checkpoints import write_folder

GIVEN_BY_PROMETHEUS = {"ALERTS"}


class Engine:
    """Writes a checkpoint and posts, in one process."""

    def __init__(self, url: str, folder: Path) -> None:
        self.base_url, self.timeout, self.folder, self.http = url, 60, folder, requests

    def update_policy(self, model: Any) -> bool:
        """Push the folder; False when the server says no."""
        body = {"model_path": str(self.folder)}
        answer = self.http.post(f"{self.base_url}/update_weights_from_disk", json=body, timeout=self.timeout)
        return answer.status_code == 200

    def rollout(self) -> str:
        """Generate."""
        return str(self.http.post(f"{self.base_url}/generate", json={"text": "x"}, timeout=self.timeout).text)


def leave_paused(journals: Path, server: FakeSGLang) -> None:
    """What a trainer does that is ended between a pause and its end."""
    assert requests.post(f"{server.url}/pause_generation", json={}, timeout=10).status_code == 200
    target = Target(server=server.host_port)
    sink = sglang_telemetry.JournalSink(journals)
    for event in (
        started(who(run="gone"), at=time.time()),
        replace(remedied(who(run="gone"), Action.PAUSE), target=target, at=time.time()),
        ended(who(run="gone"), at=time.time(), how=Exit.FAILED),
    ):
        sink.emit(event)
    sink.close()


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """Name of a sample to its labels, gathered while a run lives that has seen everything that rules speak of."""
    folder = tmp_path_factory.mktemp("scrape")
    seen: dict[str, set[str]] = {}
    with (
        FakeSGLang() as server,
        ExporterProcess(folder / "j", "--probe-interval", "100ms") as exporter,
    ):

        def take() -> dict[str, set[str]]:
            for name, labels in exporter.samples():
                seen.setdefault(name, set()).update(label for label, _ in labels)
            return seen

        checkpoint = write_folder(folder / "policy", {"weight": torch.zeros(4, dtype=torch.half)})
        engine = Engine(server.url, checkpoint)
        sinks = [sglang_telemetry.JournalSink(folder / "j")]
        remedies = sglang_telemetry.Remedies(validate=True, on_failure="continue_stale", stale_syncs=3)
        handle = sglang_telemetry.instrument(
            engine, run="live", sinks=sinks, expected_interval_seconds=60, remedies=remedies
        )
        wait_until(lambda: "weight_sync_server_up" in take(), "the server was looked at before it was synced")
        assert engine.update_policy(None)
        wait_until(lambda: "weight_sync_confirmed_version" in take(), "it was seen to run that sync")
        assert engine.rollout()
        server.inject(Fault.SERVICE_UNAVAILABLE)
        assert not engine.update_policy(None)
        assert engine.update_policy(None)
        wait_until(lambda: "weight_sync_server_current" in take(), "the server was asked what it runs")
        leave_paused(folder / "j", server)
        wait_until(lambda: "weight_sync_server_left_paused" in take(), "it was left paused by another trainer")
        assert requests.post(f"{server.url}/continue_generation", json={}, timeout=10).status_code == 200
        assert engine.update_policy(None)
        wait_until(lambda: "weight_sync_unchanged_syncs" in take(), "the same bytes were sent again")
        die(folder / "j", "kill_in_request", 1, server.url, run="lost")
        (folder / "j" / "broken-r0-1-00000000.000001.jsonl").write_text("{nonsense}\n")
        server.inject(Fault.SLOW, seconds=3.0)
        syncing = threading.Thread(target=engine.update_policy, args=(None,))
        syncing.start()
        wait_until(lambda: "weight_sync_active_phase" in take(), "a sync runs")
        syncing.join()

        def restarted() -> bool:
            """Killed in the middle of a look it is merely not up: gone is what refuses connections."""
            for act, up in ((server.kill, 0), (server.restart, 1)):
                act()
                wait_until(lambda up=up: exporter.value("weight_sync_server_up", server=server.host_port) == up, "seen")
            return "weight_sync_server_last_restart_timestamp_seconds" in take()

        wait_until(restarted, "the restart was noticed")
        take()
        handle.uninstrument()
        yield seen


def asked() -> list[Any]:
    """One parameter a rule: all PromQL in it."""
    found = []
    for rule in rules():
        texts = [rule["expr"], *(text for one in rule.get("annotations", {}).values() for text in queries_in(one))]
        found.append(pytest.param(texts, id=rule.get("alert") or rule["record"]))
    return found


def on_dashboards() -> list[Any]:
    """The same of each query of the dashboards; SGLang's own metrics are met in ``tests/real_sglang``."""
    ours = [one for one in dashboards.asked() if "sglang[:_]" not in one.expr]
    return [pytest.param([dashboards.filled(one)], id=f"{one.board}: {one.place}") for one in ours]


@pytest.mark.parametrize("texts", [*asked(), *on_dashboards()])
def test_metrics_and_labels_exist(texts: list[str], scrape: dict[str, set[str]]) -> None:
    """Of a recorded series only the name is looked at: its labels are in its own rule."""
    known = recorded() | GIVEN_BY_PROMETHEUS
    for text in texts:
        made = set(re.findall(r'label_(?:join|replace)\(.*?\), "(\w+)"', text, re.S))
        for metric, labels in asked_for(text).items():
            if metric not in known:
                assert metric in scrape, text
                assert labels <= scrape[metric] | made, (metric, text)
