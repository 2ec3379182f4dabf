"""What remedies buy on the real SGLang: the rows of the matrix that it can be made to go through, and a pause."""

import threading
from pathlib import Path
from typing import Any

import pytest
import requests

import sglang_telemetry
from sglang_telemetry import Remedies
from sglang_telemetry.preflight import release
from sglang_telemetry.testing import RecordingSink
from tests.harness.policy import Policy, policy_engine
from tests.harness.processes import wait_until
from tests.harness.remedy_matrix import MATRIX, Ends, Row, said
from tests.real_sglang.conftest import RealSGLangFactory
from tests.real_sglang.server import RealSGLang

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]

SESSION = requests.Session()
SESSION.trust_env = False


def checksum(server: RealSGLang) -> Any:
    """Of the bytes that it has loaded."""
    return SESSION.get(f"{server.url}/weights_checker", timeout=20).json()["ranks"][0]["checksums"]


def loaded(server: RealSGLang, checkpoint: Path) -> Any:
    """The checksum that the server shows with that checkpoint."""
    body = {"model_path": str(checkpoint)}
    assert SESSION.post(f"{server.url}/update_weights_from_disk", json=body, timeout=60).status_code == 200
    return checksum(server)


def ends(server: RealSGLang, models: Path, folder: Path, row: Row, remedies: Remedies) -> tuple[Ends, tuple[str, ...]]:
    """Sync once well, then once with the fault: how that ends, and what the remedies said."""
    known = {str(loaded(server, models / name)): kind for name, kind in (("base", "start"), ("v2", "new"))}
    engine, sink, policy = policy_engine(server.url, folder, timeout=60, http=SESSION), RecordingSink(), Policy(models)
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies):
        policy.content = "v3"
        engine.update_policy(policy)
        known[str(checksum(server))] = "old"
        before = len(sink.events)
        policy.content = row.content
        try:
            run = "goes on" if engine.update_policy(policy) is not None else ""
        except RuntimeError:
            run = "ends"
    if run == "ends" and sink.records[-1].exchange is not None:
        server.wait_dead()
    told = tuple(said(sink.events[before:]))
    if not server.alive:
        return Ends(run=run, server="died", weights=None), told
    return Ends(run=run, weights=known.get(str(checksum(server)), "mixed")), told


REAL = [row for row in MATRIX if row.real]


@pytest.mark.parametrize("row", REAL, ids=lambda row: row.name)
def test_with(row: Row, real_sglang: RealSGLangFactory, tiny_models: Path, tmp_path: Path) -> None:
    """The server lives on."""
    assert ends(real_sglang(), tiny_models, tmp_path, row, row.remedies) == (row.remedied, row.said)


@pytest.mark.parametrize("row", [REAL[2], REAL[0]], ids=lambda row: row.name)
def test_without(row: Row, real_sglang: RealSGLangFactory, tiny_models: Path, tmp_path: Path) -> None:
    """What it does else; a wrong shape, which kills it in the same way, is in the tests of causes."""
    assert ends(real_sglang(), tiny_models, tmp_path, row, Remedies()) == (row.without, ())


def test_all_of_them_at_once(real_sglang: RealSGLangFactory, tiny_models: Path, tmp_path: Path) -> None:
    """While a request runs: it is retracted, the weights are new, generation goes on, nothing is left on the disk."""
    server = real_sglang()
    remedies = Remedies(
        validate=True,
        publish_atomically=True,
        retry=True,
        timeout="auto",
        pause="retract",
        serialize=True,
        tag_weights=True,
    )
    engine, sink, policy = (
        policy_engine(server.url, tmp_path, timeout=60, http=SESSION),
        RecordingSink(),
        Policy(tiny_models),
    )
    wanted = loaded(server, tiny_models / "v2")
    answers: list[Any] = []
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
    thread = threading.Thread(
        target=lambda: answers.append(SESSION.post(f"{server.url}/generate", json=body, timeout=120).json())
    )
    with sglang_telemetry.instrument(engine, run="remedied", sinks=[sink], remedies=remedies):
        policy.content = "v3"
        assert engine.update_policy(policy) is True
        assert checksum(server) != wanted
        thread.start()
        wait_until(lambda: _running(server) > 0, "it is being generated", timeout=60)
        policy.content = "v2"
        assert engine.update_policy(policy) is True
        assert checksum(server) == wanted
    thread.join(120)
    assert answers[0]["meta_info"]["finish_reason"]["type"] == "length"
    assert len(answers[0]["meta_info"]["weight_versions"]) == 2
    assert SESSION.get(f"{server.url}/ready", timeout=20).status_code == 200
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]
    did = [f"{one.action} {one.outcome}" for one in sink.records[1].remedies]
    assert did == ["validate done", "publish done", "serialize done", "timeout done", "pause done", "release done"]


def test_a_server_that_was_left_paused_is_released(real_sglang: RealSGLangFactory) -> None:
    """As ``sglang-telemetry check --release`` does."""
    server = real_sglang()
    assert SESSION.post(f"{server.url}/pause_generation", json={"mode": "retract"}, timeout=20).status_code == 200
    assert SESSION.get(f"{server.url}/ready", timeout=20).status_code == 503
    assert [one.reason for one in release([server.url]).findings] == ["released: generation goes on"]
    assert SESSION.get(f"{server.url}/ready", timeout=20).status_code == 200
    assert [one.reason for one in release([server.url]).findings] == ["it was not paused: /ready answers 200"]


def _running(server: RealSGLang) -> int:
    loads = SESSION.get(f"{server.url}/v1/loads?include=core", timeout=20).json()["loads"]
    return int(sum(one.get("num_running_reqs", 0) for one in loads))
