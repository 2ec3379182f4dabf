"""A server that the engine paused itself is its own to continue."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

import sglang_telemetry
from sglang_telemetry import Remedied, Remedies
from sglang_telemetry.instrument.own_pauses import OwnPauses
from sglang_telemetry.testing import FakeSGLang, RecordingSink
from tests.harness.minimind import SharedFolderEngine
from tests.harness.policy import Policy
from tests.harness.remedy_matrix import said

SERVER = "10.0.0.7:30000"
BASE = f"http://{SERVER}/v0"


class Pausing(SharedFolderEngine):
    """Sends a checkpoint twice, and pauses and continues when it is told to."""

    pauses = True

    def update_policy(self, model: Any) -> bool:
        """Two updates, with whatever around them."""
        model.save_pretrained(self.shared_ckpt_path)
        if self.pauses:
            self.pause_generation()
        for _ in range(2):
            assert self.ask("update_weights_from_disk", {"model_path": self.shared_ckpt_path}).status_code == 200
        if self.pauses:
            self.continue_generation()
        return True

    def pause_generation(self) -> None:
        """Its own."""
        self.ask("pause_generation", {})

    def continue_generation(self) -> None:
        """Its own."""
        self.ask("continue_generation", {})

    def ask(self, route: str, body: dict[str, Any]) -> requests.Response:
        """Send something."""
        return self.http.post(f"{self.base_url}/{route}", json=body, timeout=10)


def asked(server: FakeSGLang) -> list[str]:
    """The first word of each route that was posted to."""
    return [one.path[1:].partition("_")[0] for one in server.requests if one.method == "POST"]


def reasons(sink: RecordingSink) -> list[str]:
    """What remedies said."""
    return [one.remedy.detail for one in sink.events if isinstance(one, Remedied)]


def test_what_the_engine_pauses_is_not_continued_in_the_middle(models: Path, tmp_path: Path) -> None:
    """Between its pause and its continue nothing of ours is sent; from then on everything is."""
    sink = RecordingSink()
    with FakeSGLang(models / "base") as server:
        engine = Pausing(server.url, str(tmp_path / "checkpoint"))
        engine.http = requests.Session()
        with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(pause="retract")):
            assert engine.update_policy(Policy(models)) is True
            assert asked(server) == ["pause", "update", "update", "continue"]
            assert said(sink.events) == ["pause skipped", "pause skipped"]
            assert reasons(sink) == ["the engine has paused it itself"] * 2
            engine.pauses = False
            assert engine.update_policy(Policy(models)) is True
        assert asked(server)[4:] == ["pause", "update", "continue"] * 2
        assert said(sink.events)[2:] == ["pause done", "release done"] * 2
        assert server.state().paused is None


def test_a_pause_of_an_earlier_call_is_kept(models: Path, tmp_path: Path) -> None:
    """The engine pauses in one method, syncs in another, and continues in a third."""
    sink = RecordingSink()
    with FakeSGLang(models / "base") as server:
        engine = Pausing(server.url, str(tmp_path / "checkpoint"))
        engine.http, engine.pauses = requests.Session(), False
        with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(pause="retract")):
            engine.pause_generation()
            assert engine.update_policy(Policy(models)) is True
            assert server.state().paused == "abort"
            engine.continue_generation()
            assert engine.update_policy(Policy(models)) is True
    assert said(sink.events) == ["pause skipped"] * 2 + ["pause done", "release done"] * 2


def test_our_own_pause_is_not_the_engines(models: Path, tmp_path: Path) -> None:
    """What remedies send goes by the same client."""
    sink = RecordingSink()
    with FakeSGLang(models / "base") as server:
        engine = Pausing(server.url, str(tmp_path / "checkpoint"))
        engine.http, engine.pauses = requests.Session(), False
        with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(pause="retract")):
            engine.update_policy(Policy(models))
    assert said(sink.events) == ["pause done", "release done"] * 2


def send(pauses: OwnPauses, url: str, answer: Any, server: str = SERVER) -> Any:
    """As a sender does."""

    def sends(arguments: dict[str, Any]) -> Any:
        assert arguments == {"json": {}}
        if isinstance(answer, BaseException):
            raise answer
        return answer

    around = pauses.around(url, server)
    return sends({"json": {}}) if around is None else around(sends, {"json": {}})


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (SimpleNamespace(status_code=200), True),
        (SimpleNamespace(status_code=204), True),
        (SimpleNamespace(), True),  # a client that is not known
        (SimpleNamespace(status_code=401), False),
        (SimpleNamespace(status_code=503), False),
    ],
)
def test_only_a_pause_that_succeeded_counts(answer: Any, counts: bool) -> None:
    """The engine gets its answer, whatever that is."""
    pauses = OwnPauses()
    assert send(pauses, f"{BASE}/pause_generation?x=/y/", answer) is answer
    assert (SERVER in pauses) is counts


def test_a_pause_that_raised_does_not_count() -> None:
    """Nor is the exception touched."""
    pauses, error = OwnPauses(), requests.ConnectionError()
    with pytest.raises(requests.ConnectionError) as raised:
        send(pauses, f"{BASE}/pause_generation", error)
    assert raised.value is error
    assert SERVER not in pauses


@pytest.mark.parametrize("status", [200, 500])
def test_a_continue_ends_it(status: int) -> None:
    """Also one that failed: whoever asked for it does not want it to stay paused; of that server alone."""
    pauses, done = OwnPauses(), SimpleNamespace(status_code=200)
    send(pauses, f"{BASE}/pause_generation", done)
    send(pauses, "pause_generation", done, server="unknown")
    send(pauses, f"{BASE}/generate", done)
    send(pauses, f"{BASE}/continue_generation/", SimpleNamespace(status_code=status))
    assert SERVER not in pauses
    assert "unknown" in pauses
