"""What is looked at beside a sync: whole or not, another content than before or not, and never in the trainer's way."""

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sglang_telemetry
from sglang_telemetry.events import CheckpointInspected, SyncRecord
from sglang_telemetry.instrument.model import changes_of, tensors_of
from sglang_telemetry.names import Result
from sglang_telemetry.testing import FakeSGLang, Fault, RecordingSink
from tests.harness.minimind import SavableModel, SharedFolderEngine
from tests.harness.processes import wait_until


class Trainer:
    """A real model, a real engine and the stand-in for the server."""

    def __init__(self, folder: Path, server: FakeSGLang, **how: Any) -> None:
        self.sink = RecordingSink()
        self.model = SavableModel(width=8, layers=3)
        self.engine = SharedFolderEngine(server.url, str(folder / "checkpoint"), timeout=10)
        self.telemetry = sglang_telemetry.instrument(self.engine, sinks=[self.sink], run="r", **how)

    def train(self) -> None:
        """One step of an optimizer."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.25)

    def sync(self) -> CheckpointInspected:
        """Push, and wait for what was found."""
        before = len(self.inspected)
        self.engine.update_policy(self.model)
        wait_until(lambda: len(self.inspected) > before, "the checkpoint was looked at")
        return self.inspected[-1]

    @property
    def inspected(self) -> list[CheckpointInspected]:
        """All that was told so far."""
        return [event for event in self.sink.events if isinstance(event, CheckpointInspected)]


@pytest.fixture
def server() -> Iterator[FakeSGLang]:
    """Takes whatever is whole."""
    with FakeSGLang() as one:
        yield one


@pytest.fixture
def trainer(tmp_path: Path, server: FakeSGLang) -> Iterator[Trainer]:
    """Its engine is instrumented."""
    one = Trainer(tmp_path, server)
    yield one
    one.telemetry.uninstrument()


def test_good_syncs(trainer: Trainer) -> None:
    """Told after the record; another content each time, and nothing is wrong."""
    first = trainer.sync()
    assert (first.sequence, first.fault, first.same, first.result) == (1, None, None, Result.SUCCESS)
    assert first.sampled_bytes == 3 * 8 * 8 * 2
    trainer.train()
    second = trainer.sync()
    assert (second.sequence, second.fault, second.same, second.trained) == (2, None, False, True)
    order = [type(event) for event in trainer.sink.events if isinstance(event, SyncRecord | CheckpointInspected)]
    assert order == [SyncRecord, CheckpointInspected] * 2


def test_same_bytes_without_a_training_in_between(trainer: Trainer) -> None:
    """As before the first step: no reason to tell anybody."""
    trainer.sync()
    again = trainer.sync()
    assert (again.same, again.trained, again.unchanged) == (True, False, False)


def test_frozen_weights_are_reported(trainer: Trainer) -> None:
    """The optimizer steps on one model, and another is pushed: rollouts show that training goes on."""
    trainer.sync()
    trainer.engine.rollout = lambda: None  # type: ignore[attr-defined]
    trainer.telemetry._instrument.generated(None)  # type: ignore[union-attr]
    again = trainer.sync()
    assert (again.same, again.trained, again.unchanged) == (True, True, True)


def test_weights_that_the_engine_does_not_send(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is trained, and an old file is sent each time."""
    trainer.sync()
    monkeypatch.setattr(SavableModel, "save_pretrained", lambda *_, **__: None)
    trainer.train()
    again = trainer.sync()
    assert (again.same, again.trained, again.unchanged) == (True, True, True)


def test_tensor_that_is_missing_although_the_server_says_success(trainer: Trainer) -> None:
    """The one that its other layers have: the server has mixed old and new weights."""
    save = SavableModel.save_pretrained

    def without_one(model: SavableModel, path: str, state_dict: dict[str, torch.Tensor], **_: Any) -> None:
        save(model, path, state_dict={name: one for name, one in state_dict.items() if "layers.1." not in name})

    trainer.model.save_pretrained = without_one.__get__(trainer.model)  # type: ignore[method-assign]
    found = trainer.sync()
    assert found.result is Result.SUCCESS
    assert found.mixed
    assert "layers.1.weight" in (found.fault or "")


def test_value_head_that_stays_with_the_trainer_is_not_missing(tmp_path: Path, server: FakeSGLang) -> None:
    """What was never sent, and is of no layer that is there, may be meant to stay."""
    trainer = Trainer(tmp_path, server)
    trainer.model.v_head = nn.Linear(8, 1)
    save = SavableModel.save_pretrained

    def without_head(model: SavableModel, path: str, state_dict: dict[str, torch.Tensor], **_: Any) -> None:
        save(model, path, state_dict={name: one for name, one in state_dict.items() if "v_head" not in name})

    trainer.model.save_pretrained = without_head.__get__(trainer.model)  # type: ignore[method-assign]
    assert trainer.sync().fault is None
    trainer.telemetry.uninstrument()


def test_failed_sync(trainer: Trainer, server: FakeSGLang) -> None:
    """Told all the same, and no mix: nothing was taken."""
    server.inject(Fault.PATH_NOT_VISIBLE)
    with pytest.raises(RuntimeError):
        trainer.engine.update_policy(trainer.model)
    wait_until(lambda: bool(trainer.inspected), "it was looked at")
    assert (trainer.inspected[0].result, trainer.inspected[0].mixed) == (Result.FAILURE, False)


def test_switched_off(tmp_path: Path, server: FakeSGLang) -> None:
    """No thread, nothing told."""
    trainer = Trainer(tmp_path, server, inspect_checkpoints=False)
    trainer.engine.update_policy(trainer.model)
    trainer.telemetry.uninstrument()
    assert trainer.inspected == []


def test_the_model_is_not_kept_alive(trainer: Trainer) -> None:
    """Neither by the thread nor by what it found."""
    trainer.sync()
    gone = weakref.ref(trainer.model)
    trainer.model = SavableModel(width=8)
    gc.collect()
    assert gone() is None


def tied() -> nn.Module:
    """Two names, one storage."""
    model = nn.ModuleDict({"embed": nn.Embedding(4, 2), "head": nn.Linear(2, 4, bias=False)})
    model["head"].weight = model["embed"].weight
    return model


def test_tensors_of_tied_weights() -> None:
    """Both names are known, and that they are one."""
    specs, ties = tensors_of(tied())
    assert (set(specs), ties) == ({"embed.weight", "head.weight"}, (frozenset({"embed.weight", "head.weight"}),))


class Odd(nn.Parameter):
    """A parameter of another kind, as quantised and sharded ones are."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(2, 2, device="meta"),
        lambda: nn.ParameterList([Odd(torch.zeros(2))]),
        lambda: nn.ParameterList([nn.Parameter(torch.zeros(0))]),
        lambda: nn.ParameterList([nn.Parameter(torch.zeros(2, dtype=torch.complex64))]),
        object,
        lambda: None,
    ],
)
def test_models_of_which_nothing_is_known(make: Callable[[], Any]) -> None:
    """No expectation rather than a false alarm."""
    assert tensors_of(make()) == ({}, ())


def test_buffers_that_a_state_dict_leaves_out() -> None:
    """Only persistent ones are expected in a checkpoint."""
    model = nn.Linear(2, 2)
    model.register_buffer("kept", torch.zeros(2))
    model.register_buffer("left", torch.zeros(2), persistent=False)
    assert set(tensors_of(model)[0]) == set(model.state_dict())


def test_changes_are_those_of_the_optimizer() -> None:
    """A step counts, a forward pass does not; inference tensors cannot be counted."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = changes_of(model)
    model(torch.ones(2)).sum().backward()
    assert changes_of(model) == before
    optimizer.step()
    assert changes_of(model) != before
    with torch.inference_mode():
        assert changes_of(nn.Linear(2, 2)) is None
