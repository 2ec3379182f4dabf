"""SGLang's own metrics, which our dashboards show beside ours: from a real server, and as Prometheus stores them."""

import json
import threading
from pathlib import Path

import pytest
import requests

from tests.harness.processes import wait_until
from tests.harness.prometheus import Prometheus
from tests.real_sglang.conftest import RealSGLangFactory
from tests.real_sglang.record_metrics import ACCEPT, FLAGS, RECORDED, SESSION, USED, Sample, play, scrape, used
from tests.real_sglang.scenarios import UPDATE
from tests.real_sglang.server import RealSGLang

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

recorded = json.loads(RECORDED.read_text())
LOAD = "sglang:weight_load_duration_seconds"


@pytest.fixture(scope="module")
def server(real_sglang: RealSGLangFactory) -> RealSGLang:
    """One that tells of itself."""
    return real_sglang(flags=FLAGS)


@pytest.fixture(scope="module")
def played(server: RealSGLang) -> dict[str, dict[str, str]]:
    """What it has after the requests that the recording was made with."""
    return play(server, server.model.parent)


def send_update(server: RealSGLang, folder: str) -> requests.Response:
    """Ask it to load one of the checkpoints; the answer knows how long it took."""
    body = {"model_path": str(server.model.with_name(folder))}
    return SESSION.post(server.url + UPDATE, json=body, timeout=60)


def find(server: RealSGLang, name: str, **labels: str) -> list[Sample]:
    """The samples of that name that have those labels."""
    return [one for one in scrape(server) if one.name == name and labels.items() <= one.labels.items()]


def load_seconds(server: RealSGLang) -> float:
    """How long the last load took, by the one sample that says so."""
    (sample,) = find(server, LOAD)
    return sample.value


def responses(server: RealSGLang, status: int) -> float:
    """How many updates were answered so."""
    labels = {"endpoint": UPDATE, "method": "POST", "status_code": str(status)}
    return sum(one.value for one in find(server, "sglang:http_responses_total", **labels))


@pytest.mark.parametrize("kind", ACCEPT)
def test_the_real_server_still_has_them(played: dict[str, dict[str, str]], kind: str) -> None:
    """What our dashboards show has the names, types and labels of ``metrics.json``; others may have come or gone."""
    assert used(played[kind]) == used(recorded[kind])
    assert len(used(played[kind])) == len(USED)


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize(("folder", "status"), [("v2", 200), ("nope", 400), ("emptydir", 400)])
def test_an_update_is_counted_by_its_status_and_timed(server: RealSGLang, folder: str, status: int) -> None:
    """The load's time is a part of the request's, also of a failed one; the model's name is that of the start."""
    counted, seconds = responses(server, status), load_seconds(server)
    answer = send_update(server, folder)
    assert answer.status_code == status
    assert responses(server, status) == counted + 1
    (sample,) = find(server, LOAD)
    assert sample.labels == {
        "engine_type": "unified",
        "model_name": str(server.model),
        "moe_ep_rank": "0",
        "pp_rank": "0",
        "source": "disk",
        "tp_rank": "0",
    }
    assert sample.value != seconds
    assert 0 < sample.value < answer.elapsed.total_seconds()


@pytest.mark.usefixtures("played")
def test_the_wait_for_a_running_request_is_no_part_of_the_load(server: RealSGLang) -> None:
    """The update is an active request while it waits; afterwards the load is said to have been short."""
    body = {"text": "x", "sampling_params": {"max_new_tokens": 600, "ignore_eos": True}}
    answers: list[requests.Response] = []

    def generate() -> None:
        SESSION.post(f"{server.url}/generate", json=body, timeout=60).raise_for_status()

    def update() -> None:
        answers.append(send_update(server, "v3"))

    def value(name: str, **labels: str) -> float:
        return sum(one.value for one in find(server, name, **labels))

    threads = [threading.Thread(target=generate), threading.Thread(target=update)]
    threads[0].start()
    wait_until(lambda: value("sglang:num_running_reqs") == 1, "the server generates")
    threads[1].start()
    wait_until(lambda: value("sglang:http_requests_active", endpoint=UPDATE) == 1, "the update waits")
    for thread in threads:
        thread.join()
    assert answers[0].status_code == 200
    assert load_seconds(server) < 0.5 * answers[0].elapsed.total_seconds()
    assert value("sglang:http_requests_active", endpoint=UPDATE) == 0


@pytest.mark.usefixtures("played")
def test_prometheus_stores_the_names_with_an_underscore(server: RealSGLang, tmp_path: Path) -> None:
    """It asks for OpenMetrics first, and is answered in it."""
    with Prometheus(tmp_path, {"sglang": server.host_port}) as prometheus:
        prometheus.wait_for_target_up("sglang")
        assert prometheus.query('{__name__=~"sglang:.*"}') == []
        stored = {one["metric"]["__name__"]: one["metric"] for one in prometheus.query('{__name__=~"sglang_.*"}')}
        assert {f"sglang_{name}" for name in USED} <= stored.keys()
        assert stored["sglang_num_running_reqs"] == {
            "__name__": "sglang_num_running_reqs",
            "engine_type": "unified",
            "instance": server.host_port,
            "job": "sglang",
            "model_name": str(server.model),
            "moe_ep_rank": "0",
            "pp_rank": "0",
            "tp_rank": "0",
        }
        failed = f'sglang_http_responses_total{{endpoint="{UPDATE}",status_code="400"}}'
        assert prometheus.value(failed) == responses(server, 400)
