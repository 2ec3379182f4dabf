"""FakeSGLang: it answers like an SGLang server, fails as it is told to, and leaves nothing behind."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import torch

from sglang_telemetry.testing.fake_faults import Fault
from sglang_telemetry.testing.fake_process import FakeSGLangProcess
from sglang_telemetry.testing.fake_sglang import FakeSGLang
from sglang_telemetry.testing.fake_state import ServerState
from tests.harness.processes import wait_until
from tests.testing.checkpoints import tensors, write_bin

UPDATE = "/update_weights_from_disk"
SUCCESS = {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
KEY = "k-3f9a-do-not-show"

Server = FakeSGLang | FakeSGLangProcess


@pytest.fixture
def server(models: Path) -> Iterator[FakeSGLang]:
    """A server in this process."""
    with FakeSGLang(models / "base") as started:
        yield started


def update(server: Server, path: Path | str, timeout: float = 20.0, **fields: object) -> requests.Response:
    """Send an update as an engine does."""
    body = {"model_path": str(path), **fields}
    return requests.post(server.url + UPDATE, json=body, timeout=timeout, allow_redirects=False)


def get(server: Server, path: str) -> requests.Response:
    """Ask for something."""
    return requests.get(server.url + path, timeout=20)


def checksum(server: Server) -> str:
    """What ``/weights_checker`` says is loaded."""
    return str(get(server, "/weights_checker").json()["per_engine_checksum"])


def in_background(call: Any) -> tuple[threading.Thread, list[Any]]:
    """Run a call in a thread; its result or exception lands in the list."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def refused(server: Server) -> bool:
    """Whether connections are refused."""
    try:
        get(server, "/ready")
    except requests.ConnectionError as error:
        return "refused" in str(error)
    return False


def test_an_update_changes_what_the_server_holds(server: FakeSGLang, models: Path) -> None:
    """Path, version, checksum and count, as ``state()`` and as the routes show them."""
    before = server.state()
    assert update(server, models / "v2", weight_version="7").json() == SUCCESS | {
        "message": "Succeeded to update model weights. Weight version updated to 7."
    }
    after = server.state()
    assert after == ServerState(
        model_path=str(models / "v2"),
        weight_version="7",
        scheduler_weight_version="7",
        checksum=checksum(server),
        updates_applied=1,
        paused=None,
        running=0,
        pending_faults=(),
    )
    assert after.checksum != before.checksum
    assert get(server, "/model_info").json()["weight_version"] == "7"
    info = get(server, "/server_info").json()
    assert (info["weight_version"], info["internal_states"][0]["weight_version"]) == ("default", "7")
    loads = get(server, "/v1/loads?include=core").json()
    assert (loads["version"], loads["loads"][0]["num_running_reqs"]) == (info["version"], 0)


def test_bin_files_of_half_precision_parameters_are_read(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """A ``pytorch_model.bin`` with Parameters, views and shared storages is the twin of its safetensors file."""
    assert update(server, models / "v2").json() == SUCCESS
    expected = checksum(server)
    two = {name: torch.nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors(2).items()}
    shared = torch.cat([tensor.flatten() for tensor in two.values()])
    views, start = {}, 0
    for name, tensor in two.items():
        views[name] = shared[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()
    for name, content in (("parameters", two), ("views", views)):
        assert update(server, models / "v3").json() == SUCCESS
        assert checksum(server) != expected
        assert update(server, write_bin(tmp_path / name, content)).json() == SUCCESS
        assert checksum(server) == expected


@pytest.mark.parametrize("broken", ["truncated", "truncated_bin", "zerolen", "halfbad", "wrongshape", "lateshape"])
def test_it_dies_of_a_broken_checkpoint_and_comes_back_with_its_start_weights(models: Path, broken: str) -> None:
    """No answer, then refused connections; after a restart the old port, the start weights, not paused."""
    with FakeSGLang(models / "base") as server:
        at_start = server.state()
        assert update(server, models / "v2", weight_version="41").ok
        with pytest.raises(requests.ConnectionError, match="without response"):
            update(server, models / broken)
        server.wait_dead()
        assert refused(server)
        assert not server.alive
        server.restart()
        assert server.state() == at_start
        assert update(server, models / "v3").json() == SUCCESS


ANSWERED = {
    Fault.BUSY_WEIGHTS_APPLIED: (400, "cache was not flushed", True),
    Fault.NOT_APPLIED: (200, "Succeeded to update model weights.", False),
    Fault.LABEL_WITHOUT_WEIGHTS: (200, "Weight version updated to 5.", False),
    Fault.ROLLBACK_TEXT: (400, "Rolling back to original weights.", True),
    Fault.SUCCESS_FALSE: (200, '"success":false', False),
    Fault.STAYS_PAUSED: (400, "Failed to get weights iterator", False),
    Fault.OUT_OF_MEMORY: (400, "CUDA out of memory", False),
    Fault.SLOW: (200, "Succeeded to update model weights.", True),
    Fault.UNAUTHORIZED: (401, '{"error":"Unauthorized"}', False),
    Fault.FORBIDDEN: (403, '{"error":"Forbidden"}', False),
    Fault.NOT_FOUND: (404, '{"detail":"Not Found"}', False),
    Fault.METHOD_NOT_ALLOWED: (405, '{"detail":"Method Not Allowed"}', False),
    Fault.VALIDATION_ERROR: (400, "validation error", False),
    Fault.PATH_NOT_VISIBLE: (400, "Repo id must be", False),
    Fault.INCOMPLETE_SHARDS: (400, "incomplete download?", False),
    Fault.UPDATE_IN_PROGRESS: (409, "already in progress", False),
    Fault.RATE_LIMITED: (429, "Too Many Requests", False),
    Fault.REDIRECTED: (307, "", False),
    Fault.SERVICE_UNAVAILABLE: (503, "", False),
    Fault.PROXY_503_HTML: (503, "<html>", False),
    Fault.GATEWAY_TIMEOUT_HTML: (504, "<html>", True),
    Fault.WRONG_PROGRAM: (200, "<html>", False),
    Fault.EMPTY_SUCCESS: (200, "", False),
}
UNANSWERED = {
    Fault.DIES_WITHOUT_ANSWER,
    Fault.INTERNAL_ERROR_THEN_DEAD,
    Fault.CLOSED_WITHOUT_ANSWER,
    Fault.NEVER_ANSWERS,
}


def test_every_fault_has_a_test() -> None:
    """A new fault is named in one of the two tables."""
    assert set(ANSWERED) | UNANSWERED == set(Fault)


@pytest.mark.parametrize("fault", ANSWERED, ids=str)
def test_a_fault_that_answers(server: FakeSGLang, models: Path, fault: Fault) -> None:
    """Its status and text, whether the weights are new, and a server that is itself again afterwards."""
    status, text, applied = ANSWERED[fault]
    before = server.state()
    server.inject(fault, seconds=0.01)
    answer = update(server, models / "v2", weight_version="5")
    assert (answer.status_code, text in answer.text) == (status, True)
    assert (server.state().checksum != before.checksum) is applied
    requests.post(server.url + "/continue_generation", json={}, timeout=20)
    assert update(server, models / "v3").json() == SUCCESS


def test_labels_lie_as_the_real_ones_do(server: FakeSGLang, models: Path) -> None:
    """After each lie: what ``/model_info`` says, what the scheduler says, and whether the bytes are new."""
    base = server.state().checksum
    seen = {}
    for fault in (Fault.BUSY_WEIGHTS_APPLIED, Fault.ROLLBACK_TEXT, Fault.LABEL_WITHOUT_WEIGHTS, Fault.NOT_APPLIED):
        server.restart()
        server.inject(fault)
        update(server, models / "v2", weight_version="5")
        state = server.state()
        seen[fault] = (state.weight_version, state.scheduler_weight_version, state.checksum != base)
    assert seen == {
        Fault.BUSY_WEIGHTS_APPLIED: ("default", "5", True),
        Fault.ROLLBACK_TEXT: ("default", "default", True),
        Fault.LABEL_WITHOUT_WEIGHTS: ("5", "5", False),
        Fault.NOT_APPLIED: ("default", "default", False),
    }


def test_faults_are_a_queue(models: Path) -> None:
    """Those of the constructor come first, each as often as it was injected, and then it is itself again."""
    with FakeSGLang(models / "base", faults=[Fault.NOT_FOUND]) as server:
        server.inject(Fault.RATE_LIMITED, times=2)
        assert server.state().pending_faults == (Fault.NOT_FOUND, Fault.RATE_LIMITED, Fault.RATE_LIMITED)
        assert [update(server, models / "v2").status_code for _ in range(4)] == [404, 429, 429, 200]


def test_closed_without_an_answer_is_not_dead(server: FakeSGLang, models: Path) -> None:
    """The client sees the same as of a death, but the server goes on."""
    server.inject(Fault.CLOSED_WITHOUT_ANSWER)
    with pytest.raises(requests.ConnectionError, match="without response"):
        update(server, models / "v2")
    assert update(server, models / "v2").json() == SUCCESS


def test_an_internal_error_and_then_it_is_gone(server: FakeSGLang, models: Path) -> None:
    """The 500 arrives; whoever has read it is refused afterwards."""
    server.inject(Fault.INTERNAL_ERROR_THEN_DEAD)
    answer = update(server, models / "v2")
    assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    assert refused(server)


def test_a_slow_update_is_applied_after_the_client_gave_up(server: FakeSGLang, models: Path) -> None:
    """A time-out says nothing about the weights."""
    before = server.state().checksum
    server.inject(Fault.SLOW, seconds=0.3)
    with pytest.raises(requests.ReadTimeout):
        update(server, models / "v2", timeout=0.05)
    assert server.state().checksum == before
    wait_until(lambda: server.state().checksum != before, "the update is applied")


def test_close_ends_a_request_that_is_never_answered(models: Path) -> None:
    """The waiting client is hung up on, and no thread of the server is left."""
    threads = set(threading.enumerate())
    with FakeSGLang(models / "base", faults=[Fault.NEVER_ANSWERS]) as server:
        client, results = in_background(lambda: update(server, models / "v2"))
        wait_until(lambda: server.updates, "the request is read")
        started = time.monotonic()
    client.join()
    assert time.monotonic() - started < 2
    assert isinstance(results[0], requests.ConnectionError)
    assert set(threading.enumerate()) == threads


def test_many_requests_that_kill_it_at_once(server: FakeSGLang, models: Path) -> None:
    """It dies once, quickly, and comes back."""
    server.inject(Fault.DIES_WITHOUT_ANSWER, times=8)
    started = time.monotonic()
    clients = [in_background(lambda: update(server, models / "v2")) for _ in range(8)]
    for client, _ in clients:
        client.join()
    server.close()
    assert time.monotonic() - started < 2
    assert all(isinstance(results[0], requests.ConnectionError) for _, results in clients)
    server.restart()
    assert get(server, "/ready").ok


def test_an_update_waits_for_running_requests_and_a_pause_lets_it_through(server: FakeSGLang, models: Path) -> None:
    """Without a pause it comes after them; retracted requests see both versions; in place they keep the cache busy."""
    seen = {}
    for mode in (None, "retract", "in_place"):
        body = {"text": "the fox", "sampling_params": {"max_new_tokens": 100}, "seconds": 0.3}
        client, results = in_background(
            lambda body=body: requests.post(f"{server.url}/generate", json=body, timeout=20)
        )
        wait_until(lambda: server.state().running, "it generates")
        if mode is not None:
            requests.post(f"{server.url}/pause_generation", json={"mode": mode}, timeout=20)
        status = update(server, models / "v2", weight_version=str(mode)).status_code
        was_running = server.state().running
        requests.post(f"{server.url}/continue_generation", json={}, timeout=20)
        client.join()
        spans = results[0].json()["meta_info"]["weight_versions"]
        seen[mode] = (status, was_running, [span["version"] for span in spans], spans[-1]["end"])
        server.restart()
    assert seen == {
        None: (200, 0, ["default"], 100),
        "retract": (200, 1, ["default", "retract"], 100),
        "in_place": (400, 1, ["default", "in_place"], 100),
    }


def test_an_unhealthy_probe_keeps_it_unready(server: FakeSGLang) -> None:
    """A ``/health`` during a pause answers 503 and ``/ready`` with it, until the next good ``/health``."""
    requests.post(f"{server.url}/pause_generation", json={}, timeout=20)
    assert get(server, "/health").status_code == 503
    requests.post(f"{server.url}/continue_generation", json={}, timeout=20)
    assert get(server, "/ready").status_code == 503
    assert [get(server, path).status_code for path in ("/health", "/ready")] == [200, 200]


def test_the_admin_key_guards_and_is_shown_nowhere(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """401 without it, 200 with it; it is in no repr, no recorded request, no state and no output."""
    for make in (FakeSGLang, FakeSGLang.spawn):
        with make(models / "base", admin_api_key=KEY) as server:
            bearer = {"Authorization": f"Bearer {KEY}"}
            body = {"model_path": str(models / "v2")}
            assert update(server, models / "v2").status_code == 401
            assert requests.post(server.url + UPDATE, json=body, headers=bearer, timeout=20).json() == SUCCESS
            assert get(server, "/model_info").ok
            assert [request.headers.get("authorization") for request in server.updates] == [None, "Bearer ***"]
            shown = f"{server!r} {server.requests!r} {server.state()!r} {vars(server)!r}"
            shown += get(server, "/server_info").text
            assert KEY not in shown
    assert KEY not in "".join(capfd.readouterr())


def test_requests_are_recorded(server: FakeSGLang, models: Path) -> None:
    """Method, path, headers and body, in order."""
    path = str(models / "v2")
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    requests.post(server.url + UPDATE, json={"model_path": path}, headers=trace, timeout=20)
    get(server, "/flush_cache?timeout=0")
    assert [(request.method, request.path) for request in server.requests] == [
        ("POST", UPDATE),
        ("GET", "/flush_cache?timeout=0"),
    ]
    first = server.requests[0]
    assert (first.json(), first.headers["traceparent"]) == ({"model_path": path}, trace["traceparent"])


def test_a_spawned_server_is_controlled_like_the_other_and_really_dies(models: Path) -> None:
    """Its process is gone after a broken checkpoint; a new one on the same port has the start weights."""
    with FakeSGLang.spawn(models / "base", faults=[Fault.NOT_FOUND]) as server:
        at_start = server.state()
        assert at_start.pending_faults == (Fault.NOT_FOUND,)
        assert [update(server, models / "v2", weight_version="3").status_code for _ in range(2)] == [404, 200]
        assert [request.json()["weight_version"] for request in server.updates] == ["3", "3"]
        assert server.state().weight_version == "3"
        pid, url = server.pid, server.url
        with pytest.raises(requests.ConnectionError, match="without response"):
            update(server, models / "truncated")
        server.wait_dead()
        assert refused(server)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(RuntimeError, match="is dead; call restart"):
            server.state()
        server.restart()
        assert server.url == url
        assert server.pid != pid
        state = server.state()
        assert (state.checksum, state.weight_version, state.pending_faults) == (at_start.checksum, "default", ())
        server.inject(Fault.INTERNAL_ERROR_THEN_DEAD)
        assert update(server, models / "v2").status_code == 500
        server.wait_dead()
    assert not server.alive


def test_a_spawned_server_goes_with_its_parent(tmp_path: Path) -> None:
    """A test that is killed leaves no server behind."""
    script = (
        "import os; from sglang_telemetry.testing.fake_sglang import FakeSGLang\n"
        "server = FakeSGLang.spawn(); print(server.pid, server.port, flush=True); os._exit(1)"
    )
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    pid, port = map(int, ended.stdout.split())
    assert ended.returncode == 1

    def gone() -> bool:
        try:
            requests.get(f"http://127.0.0.1:{port}/ready", timeout=2)
        except requests.ConnectionError:
            return True
        return False

    wait_until(gone, f"the server {pid} has ended")


def test_as_a_command_it_prints_its_address(models: Path, tmp_path: Path) -> None:
    """``python -m``, one line with the URL, and the key from a file."""
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    module = "sglang_telemetry.testing.fake_sglang"
    command = [sys.executable, "-m", module, "--model-path", str(models / "base"), "--admin-api-key-file", str(key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            body = {"model_path": str(models / "v2")}
            bearer = {"Authorization": f"Bearer {KEY}"}
            assert requests.post(url + UPDATE, json=body, timeout=20).status_code == 401
            assert requests.post(url + UPDATE, json=body, headers=bearer, timeout=20).json() == SUCCESS
        finally:
            process.kill()


def test_a_pickle_that_wants_to_run_code_is_not_obeyed(tmp_path: Path, models: Path) -> None:
    """A ``.bin`` names a function: it is not called, and the server dies of the file as of a broken one."""
    import pickle
    import zipfile

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    folder = tmp_path / "evil"
    folder.mkdir()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"model.norm.weight": Evil()}))
    with FakeSGLang(models / "base") as server:
        with pytest.raises(requests.ConnectionError, match="without response"):
            update(server, folder)
    assert not (tmp_path / "ran").exists()
