"""Two updates that change nothing: when they are sent, what they prove, and that the server is as it was."""

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import orjson
import pytest
import requests

from sglang_telemetry.preflight.dry_run import busy, resend, sees
from sglang_telemetry.preflight.findings import Check, Level
from sglang_telemetry.server_truth.client import StartedWith
from sglang_telemetry.server_truth.examine import examine
from sglang_telemetry.server_truth.facts import Label
from sglang_telemetry.server_truth.keys import NO_KEYS, Keys
from sglang_telemetry.testing import FakeSGLang, Fault
from tests.harness.answers import give
from tests.harness.processes import wait_until
from tests.preflight import posted
from tests.server_truth.sites import body, site
from tests.testing.checkpoints import tensors, truncate, write_folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """What the server runs."""
    return write_folder(tmp_path / "base", tensors(1))


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """What both sides share."""
    folder = tmp_path / "ckpt"
    folder.mkdir()
    return folder


def test_it_sees_the_folder(base: Path, shared: Path) -> None:
    """Its refusal says so; nothing is left, and it runs what it ran."""
    with FakeSGLang(base) as server:
        before = server.state()
        found, as_it_was = sees(server.url, str(shared), NO_KEYS)
        assert (found.level, found.reason, as_it_was) == (
            Level.OK,
            f"proved: the server sees a new folder in {shared}",
            True,
        )
        assert server.state() == before
        [update] = posted(server)
    sent = update.json()
    assert set(sent) == {"model_path"}
    assert Path(sent["model_path"]).parent == shared
    assert list(shared.iterdir()) == []


def test_it_does_not_see_the_folder(base: Path, shared: Path) -> None:
    """Another mount."""
    with FakeSGLang(base, faults=[Fault.PATH_NOT_VISIBLE]) as server:
        found, as_it_was = sees(server.url, str(shared), NO_KEYS)
    assert (found.name, found.level, found.fix, as_it_was) == (
        Check.VISIBILITY,
        Level.FAIL,
        "mount it at the same path on the server",
        True,
    )
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "as_it_was"),
    [
        (Fault.NOT_APPLIED, False),
        (Fault.UNAUTHORIZED, True),
        (Fault.PROXY_503_HTML, True),
        (Fault.CLOSED_WITHOUT_ANSWER, False),
        (Fault.NEVER_ANSWERS, False),
    ],
)
def test_odd_answers(fault: Fault, as_it_was: bool, base: Path, shared: Path) -> None:
    """Each is a failure, and after some nothing more is sent."""
    with FakeSGLang(base, faults=[fault]) as server:
        found, unchanged = sees(server.url, str(shared), NO_KEYS, seconds=0.5)
    assert (found.level, unchanged) == (Level.FAIL, as_it_was)
    assert list(shared.iterdir()) == []


def test_no_folder_can_be_made(base: Path, tmp_path: Path) -> None:
    """Then nothing is sent."""
    with FakeSGLang(base) as server:
        found, as_it_was = sees(server.url, str(tmp_path / "none"), NO_KEYS)
        assert posted(server) == []
    assert (found.level, as_it_was) == (Level.WARN, True)


def test_idle_or_not() -> None:
    """Nothing is sent while requests run, or where that is not told."""
    with FakeSGLang() as server:
        assert busy(server.url, NO_KEYS) is None
        sent = {"text": "x", "seconds": 30.0}
        thread = threading.Thread(target=_quietly(lambda: requests.post(f"{server.url}/generate", json=sent)))
        thread.start()
        wait_until(lambda: server.state().running == 1, "the request runs")
        found = busy(server.url, NO_KEYS)
        server._life.engine.abort_all()
        thread.join()
    assert found is not None
    assert (found.level, found.reason) == (
        Level.WARN,
        "not sent: 1 requests are running, for which an update waits",
    )
    with site({}) as old:
        unknown = busy(old.url, NO_KEYS)
    assert unknown is not None
    assert unknown.reason == "not sent: the server does not tell whether requests are running (/v1/loads)"


def test_own_weights_again(base: Path) -> None:
    """The same bytes and the same label, and how long it took."""
    with FakeSGLang(base) as server:
        requests.post(
            f"{server.url}/update_weights_from_disk", json={"model_path": str(base), "weight_version": "7"}, timeout=9
        )
        before = server.state()
        found = resend(server.url, replace_start(server, "7"), NO_KEYS)
        after = server.state()
        assert posted(server)[-1].json() == {"model_path": str(base)}
    assert after == replace(before, updates_applied=before.updates_applied + 1)
    assert (found.finding.level, found.finding.reason.endswith("; same checksum")) == (Level.OK, True)
    assert found.seconds is not None


def replace_start(server: FakeSGLang, version: str) -> Any:
    """As if the server had been started with that label."""
    facts = examine(server.url)
    assert facts.start is not None
    return replace(facts, start=replace(facts.start, weight_version=version))


def test_files_that_were_changed(base: Path, tmp_path: Path) -> None:
    """It says that it now runs others than before."""
    with FakeSGLang(base) as server:
        facts = examine(server.url)
        other = write_folder(tmp_path / "v2", tensors(2))
        (base / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
        found = resend(server.url, facts, NO_KEYS)
    assert found.finding.level is Level.FAIL
    assert found.finding.reason.startswith(f"it ran other weights than the files of {base} hold, and runs these now")


def test_torn_files(base: Path) -> None:
    """Sending them would kill the server: told, not done."""
    with FakeSGLang(base) as server:
        facts = examine(server.url)
        truncate(base / "model.safetensors")
        found = resend(server.url, facts, NO_KEYS)
        assert (posted(server), server.alive) == ([], True)
    assert (found.finding.level, "since that would kill it" in found.finding.reason) == (Level.FAIL, True)


def test_files_that_cannot_be_looked_at(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be torn: not sent, and not called broken."""

    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with FakeSGLang(base) as server:
        facts = examine(server.url)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", failing)
            found = resend(server.url, facts, NO_KEYS)
        assert posted(server) == []
    assert (found.finding.level, "Input/output error" in found.finding.reason) == (Level.WARN, True)


@pytest.mark.parametrize(
    ("label", "draft_model", "words"),
    [
        (Label(model_path="models/x/y", weight_version="default"), None, "would be looked up on a hub"),
        (Label(model_path="qwen/other", weight_version="default"), None, "would be looked up on a hub"),
        (Label(model_path="/models/start", weight_version="9"), None, "they came another way than by disk"),
        (Label(model_path="/models/start", weight_version="default"), "/d", "its draft model"),
    ],
)
def test_weights_that_are_not_sent(label: Label, draft_model: str | None, words: str) -> None:
    """Where it could change what the server runs."""
    with FakeSGLang("/models/start") as server:
        facts = replace(examine(server.url), draft_model=draft_model)
        assert facts.info is not None
        assert label.model_path is not None
        info = replace(facts.info, model_path=label.model_path, weight_version=label.weight_version)
        found = resend(server.url, replace(facts, live=(label,), info=info), NO_KEYS)
        unlike = resend(server.url, replace(facts, live=(replace(label, weight_version="x"),)), NO_KEYS)
        assert posted(server) == []
    assert (found.finding.level, words in found.finding.reason) == (Level.WARN, True)
    assert "its parts do not agree" in unlike.finding.reason


def test_weights_that_may_be_out_of_memory() -> None:
    """Reading them for their checksum could end the server."""
    with FakeSGLang("/models/start") as server:
        facts = replace(examine(server.url), started_with=StartedWith(memory_saver=True))
        found = resend(server.url, facts, NO_KEYS)
        assert posted(server) == []
        assert not [one for one in server.requests if one.path == "/weights_checker" and one.method == "GET"]
    assert (found.finding.level, "--enable-memory-saver" in found.finding.reason) == (Level.WARN, True)


def test_somebody_else_updates_it(base: Path, tmp_path: Path) -> None:
    """Sending what it ran a moment ago would undo that."""
    other = write_folder(tmp_path / "v2", tensors(2))
    with FakeSGLang(base) as server:
        facts = examine(server.url)
        requests.post(f"{server.url}/update_weights_from_disk", json={"model_path": str(other)}, timeout=9)
        found = resend(server.url, facts, NO_KEYS)
        assert len(posted(server)) == 1
    assert (found.finding.level, "somebody else updates this server" in found.finding.reason) == (Level.WARN, True)


def test_name_that_it_was_started_with() -> None:
    """A repository's name is what the server found its weights by."""
    with FakeSGLang("Qwen/Qwen3-0.6B") as server:
        found = resend(server.url, examine(server.url), NO_KEYS)
        assert posted(server)[0].json() == {"model_path": "Qwen/Qwen3-0.6B"}
    assert (found.finding.level, "was refused: 400" in found.finding.reason) == (Level.FAIL, True)


@pytest.mark.parametrize("fault", [Fault.DIES_WITHOUT_ANSWER, Fault.UNAUTHORIZED, Fault.SUCCESS_FALSE])
def test_update_that_fails(fault: Fault, base: Path) -> None:
    """The server's own weights are refused: so will the trainer's be."""
    with FakeSGLang(base, faults=[fault]) as server:
        found = resend(server.url, examine(server.url), NO_KEYS)
    assert (found.finding.name, found.finding.level, found.seconds) == (Check.DRY_RUN, Level.FAIL, None)


def test_without_a_checksum() -> None:
    """An older server does not tell which bytes are loaded."""

    def took(handler: BaseHTTPRequestHandler) -> None:
        give(handler, (200, orjson.dumps({"success": True, "message": "Succeeded to update model weights."})))

    state = {"model_path": "/w", "weight_version": "1"}
    answers: dict[str, Any] = {
        "/ready": (200, b""),
        "/model_info": body(**state),
        "/server_info": body(**state, internal_states=[state]),
        "/update_weights_from_disk": took,
    }
    with site(answers) as server:
        found = resend(server.url, examine(server.url), NO_KEYS)
    assert (found.finding.level, "which bytes are loaded it does not tell" in found.finding.reason) == (Level.OK, True)


def test_admin_key(base: Path, shared: Path) -> None:
    """It is sent where it is wanted, and is in no finding."""
    keys = Keys(admin_api_key="k-90ab-admin")
    with FakeSGLang(base, admin_api_key="k-90ab-admin") as server:
        seen, _ = sees(server.url, str(shared), keys)
        found = resend(server.url, examine(server.url, keys=keys), keys)
    assert (seen.level, found.finding.level) == (Level.OK, Level.OK)
    assert "k-90ab" not in repr((seen, found))


def _quietly(function: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        try:
            function()
        except requests.RequestException:
            return

    return run
