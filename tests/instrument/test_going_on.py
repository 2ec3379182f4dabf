"""A run goes on after a failed sync only while each server says that it runs weights of this run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import sglang_telemetry
from sglang_telemetry import Remedied, Remedies, Telemetry
from sglang_telemetry.instrument import collectives
from sglang_telemetry.names import Action, Outcome
from sglang_telemetry.testing import FakeSGLang, Fault, RecordingSink
from tests.harness.minimind import ManyServersEngine, SharedFolderEngine
from tests.harness.policy import Policy, policy_engine
from tests.harness.processes import wait_until

GOES_ON = Remedies(on_failure="continue_stale", stale_syncs=5)


class Trainer:
    """Syncs with one server, or with several."""

    def __init__(self, engine: SharedFolderEngine, models: Path, **named: Any) -> None:
        self.engine, self.policy, self.sink = engine, Policy(models), RecordingSink()
        named = {"remedies": GOES_ON} | named
        self.telemetry: Telemetry = sglang_telemetry.instrument(engine, sinks=[self.sink], **named)

    def sync(self) -> bool | None:
        """What is returned; None for an exception."""
        try:
            return self.engine.update_policy(self.policy)
        except RuntimeError:
            return None

    @property
    def why(self) -> str:
        """The last decision, in words."""
        told = [one.remedy for one in self.sink.events if isinstance(one, Remedied)]
        decision = [one for one in told if one.action is Action.CONTINUE_STALE][-1]
        return f"{'goes on' if decision.outcome is Outcome.DONE else 'ends'}: {decision.detail}"


@pytest.fixture
def server(models: Path) -> Iterator[FakeSGLang]:
    """A server with its start weights."""
    with FakeSGLang(models / "base") as server:
        yield server


@pytest.fixture
def trainer(server: FakeSGLang, models: Path, tmp_path: Path) -> Iterator[Trainer]:
    """One whose first sync has succeeded."""
    trainer = Trainer(policy_engine(server.url, tmp_path), models)
    assert trainer.sync() is True
    yield trainer
    trainer.telemetry.uninstrument()


def restart(server: FakeSGLang) -> None:
    """It dies and comes back, with its start weights."""
    server.kill()
    server.restart()


def kill(server: FakeSGLang) -> None:
    """It dies."""
    server.kill()


def test_while_it_says_so(server: FakeSGLang, trainer: Trainer) -> None:
    """A refusal changes nothing."""
    server.inject(Fault.OUT_OF_MEMORY)
    assert trainer.sync() is False
    assert trainer.why.startswith("goes on: training goes on with stale weights: 1 of 5 syncs")


@pytest.mark.parametrize("content", ["v2", "noweights"])
def test_not_over_a_server_that_was_restarted_between_two_syncs(
    content: str, server: FakeSGLang, trainer: Trainer
) -> None:
    """Nobody has seen it; also when the next sync fails before anything is sent."""
    restart(server)
    server.inject(Fault.OUT_OF_MEMORY)
    trainer.policy.content = content
    assert trainer.sync() is None
    assert trainer.why.startswith(f"ends: {server.host_port} runs ")
    assert "(weight_version default), and not what the last good sync left there" in trainer.why


def test_not_over_a_server_that_is_gone(server: FakeSGLang, trainer: Trainer) -> None:
    """The sync failed before it was asked."""

    def fails(*args: object, **named: object) -> None:
        kill(server)
        raise OSError(28, "No space left on device")

    trainer.policy.save_pretrained = fails  # type: ignore[method-assign]
    assert trainer.sync() is None
    assert trainer.why.startswith(f"ends: {server.host_port} does not say in /model_info what it runs")


def test_over_one_that_took_the_update_after_the_time_out(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """It has another weight version than before: that of the sync that failed."""
    trainer = Trainer(policy_engine(server.url, tmp_path, timeout=1), models, tag_weights=True)
    assert trainer.sync() is True
    server.inject(Fault.SLOW, seconds=1.5)
    assert trainer.sync() is False
    wait_until(lambda: server.state().updates_applied == 2, "it has taken the update that was given up")
    server.inject(Fault.OUT_OF_MEMORY)
    assert trainer.sync() is False
    assert trainer.why.startswith("goes on: training goes on with stale weights: 2 of 5 syncs")


def test_each_of_several_servers(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """One that was not there before, or that another trainer uses, ends the run."""
    with FakeSGLang(models / "base") as second, FakeSGLang(models / "base") as third:
        engine = ManyServersEngine([server.url, second.url], str(tmp_path / "checkpoint"))
        trainer = Trainer(engine, models)
        assert trainer.sync() is True
        second.inject(Fault.OUT_OF_MEMORY)
        assert trainer.sync() is False
        engine.urls.append(third.url)
        third.inject(Fault.OUT_OF_MEMORY)
        assert trainer.sync() is None
        assert trainer.why == f"ends: no sync to {third.host_port} has succeeded: it has its START weights"
        restart(server)
        engine.urls.pop()
        second.inject(Fault.OUT_OF_MEMORY)
        assert trainer.sync() is False  # the first one has taken this very sync
        restart(server)
        server.inject(Fault.OUT_OF_MEMORY)
        assert trainer.sync() is None
        assert trainer.why.startswith(f"ends: {server.host_port} runs ")


def test_an_engine_of_coroutines_cannot_ask() -> None:
    """So it is refused, as for all that goes with the request."""

    class Async:
        async def update_policy(self, model: Any) -> None:
            """Nothing."""

    with pytest.raises(ValueError, match=r"on_failure: Async.update_policy is a coroutine function"):
        sglang_telemetry.instrument(Async(), sinks=[], remedies=GOES_ON)


def test_not_when_no_update_was_seen(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """The engine sends in its own way: what its server runs is not known."""

    class Own(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            try:
                model.save_pretrained(self.shared_ckpt_path)
            except OSError as error:
                raise RuntimeError("SGLang update_policy failed") from error
            return True

    def fails(*args: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    engine = Own(server.url, str(tmp_path / "checkpoint"))
    trainer = Trainer(engine, models)
    assert trainer.sync() is True
    trainer.policy.save_pretrained = fails  # type: ignore[method-assign]
    assert trainer.sync() is None
    assert trainer.why.startswith("ends: no update that succeeded went through engine.http")


def test_two_engines_of_one_job_decide_each_for_itself(
    server: FakeSGLang, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their syncs have the same numbers, and their runs the same id."""
    store = dist.HashStore()
    monkeypatch.setattr(collectives, "_store", lambda: store)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        trainer = Trainer(policy_engine(server.url, tmp_path / name), models, run="grpo", run_id="one")
        if name == "first":
            server.inject(Fault.OUT_OF_MEMORY)
            assert trainer.sync() is None
            server.inject(Fault.OUT_OF_MEMORY)
            assert trainer.sync() is None
        else:
            assert trainer.sync() is True
            server.inject(Fault.OUT_OF_MEMORY)
            assert trainer.sync() is False
        trainer.telemetry.uninstrument()
