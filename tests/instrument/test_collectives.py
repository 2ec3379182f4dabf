"""How long the other ranks wait bounds what remedies may add, and the store tells them what was decided."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import sglang_telemetry
from sglang_telemetry import FailureCause, Remedied, Remedies
from sglang_telemetry.instrument import collectives
from sglang_telemetry.testing import FakeSGLang, Fault, RecordingSink
from tests.harness.policy import Policy, policy_engine


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank whose collectives wait for 77 s."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=77))
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_the_time_out_of_a_group() -> None:
    """As the trainer has set it."""
    assert collectives.time_out_seconds() == 77.0


def test_without_a_group_nobody_waits() -> None:
    """Then the deadline alone counts."""
    assert collectives.time_out_seconds() is None
    assert collectives.agreed("key") is False
    assert collectives.agree("key", True) is True


class Ranks:
    """Two of them, as far as the store is concerned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = dist.HashStore()
        monkeypatch.setattr(collectives, "_store", lambda: self.store)


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_ranks_agree(goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others do what the coordinator says."""
    Ranks(monkeypatch)
    assert collectives.agree("key", goes_on) is goes_on
    assert collectives.agreed("key") is goes_on


def test_a_coordinator_that_comes_late_does_what_the_others_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked at a checkpoint for longer than they waited: all of them raise."""
    Ranks(monkeypatch)
    monkeypatch.setattr(collectives, "AGREE_SECONDS", 0.05)
    assert collectives.agreed("key") is False
    assert collectives.agree("key", True) is False
    assert collectives.agreed("key") is False


def test_a_store_that_is_gone_lets_nobody_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its rank."""

    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("Broken pipe")

    monkeypatch.setattr(collectives, "_store", Gone)
    assert collectives.agree("key", True) is False
    assert collectives.agreed("key") is False


def test_a_chosen_time_out_ends_before_the_ranks_give_up(models: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """It may be shorter than the floor then, and says why."""
    sink = RecordingSink()
    with FakeSGLang(models / "base") as server:
        engine = policy_engine(server.url, tmp_path)
        with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(timeout="auto")):
            engine.update_policy(Policy(models))
            monkeypatch.setattr(collectives, "time_out_seconds", lambda: 3.0)
            server.inject(Fault.NEVER_ANSWERS)
            with pytest.raises(RuntimeError):
                engine.update_policy(Policy(models))
    chosen = [one.remedy.detail for one in sink.events if isinstance(one, Remedied)][1]
    assert chosen.endswith(", as long as the other ranks wait")
    assert sink.records[1].cause is FailureCause.TIMEOUT
    assert sink.records[1].target.timeout_seconds is not None
    assert 1.0 <= sink.records[1].target.timeout_seconds < 2.7
