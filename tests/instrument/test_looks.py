"""When a look at a checkpoint is told, and when it is not: slow, stopped, forked, beside others, without a thread."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sglang_telemetry
from sglang_telemetry.checkpoint.fingerprint import Fingerprint
from sglang_telemetry.checkpoint.fingerprint import fingerprint as real
from sglang_telemetry.events import CheckpointInspected, SyncRecord, TelemetryError
from sglang_telemetry.instrument import inspection
from sglang_telemetry.instrument.expectation import kin_of
from sglang_telemetry.instrument.model import tensors_of
from sglang_telemetry.names import Applied, Result
from sglang_telemetry.testing import FakeSGLang, Fault, RecordingSink
from tests.harness.minimind import SavableModel, SharedFolderEngine
from tests.harness.processes import wait_until
from tests.testing.checkpoints import write_bin, write_models


class Slow:
    """A fingerprint that is begun, and goes on only when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.over, self._go_on = threading.Semaphore(0), threading.Semaphore(0), threading.Semaphore(0)
        monkeypatch.setattr(inspection, "fingerprint", self)

    def __call__(self, folder: str, **how: Any) -> Fingerprint | None:
        """As the real one, but late."""
        self.begun.release()
        self._go_on.acquire(timeout=60)
        try:
            return real(folder, **how)
        finally:
            self.over.release()

    def let(self, count: int = 1) -> None:
        """Let so many go on, and wait until the last of them has read what it reads."""
        self._go_on.release(count)
        for _ in range(count):
            assert self.over.acquire(timeout=60)
        wait_until(lambda: len(looking()) == 0, "its thread has ended")


def looking() -> list[threading.Thread]:
    """The threads that look now."""
    return [thread for thread in threading.enumerate() if thread.name == "sglang-telemetry-inspection"]


def told(sink: RecordingSink) -> list[CheckpointInspected]:
    """All looks that were told."""
    return [event for event in sink.events if isinstance(event, CheckpointInspected)]


@pytest.fixture
def server() -> Iterator[FakeSGLang]:
    """Takes whatever is whole; every look has ended when the test has."""
    with FakeSGLang() as one:
        yield one
    wait_until(lambda: not looking(), "no thread looks any more")


def engine_of(server: FakeSGLang, folder: Path) -> SharedFolderEngine:
    """It saves to a folder of its own."""
    return SharedFolderEngine(server.url, str(folder), timeout=10)


def test_sync_does_not_wait(tmp_path: Path, server: FakeSGLang, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ended, and is told, while the look goes on; the look is told when it is done."""
    slow, sink, engine = Slow(monkeypatch), RecordingSink(), engine_of(server, tmp_path / "c")
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        engine.update_policy(SavableModel(width=8))
        assert slow.begun.acquire(timeout=60)
        assert (len(sink.records), told(sink)) == (1, [])
        slow.let()
        assert [event.sequence for event in told(sink)] == [1]


def test_look_that_is_done_first_waits_for_the_record(tmp_path: Path, server: FakeSGLang) -> None:
    """Told right after it."""

    class Lingering(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            done = super().update_policy(model)
            wait_until(lambda: not looking(), "the look is over before the sync")
            assert told(sink) == []
            return done

    sink, engine = RecordingSink(), Lingering(server.url, str(tmp_path / "c"), timeout=10)
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        engine.update_policy(SavableModel(width=8))
        order = [type(event) for event in sink.events]
        assert order.index(CheckpointInspected) == order.index(SyncRecord) + 1


def test_next_save_ends_the_look(tmp_path: Path, server: FakeSGLang, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it read may be of both: nothing is told, nor known of the next one, that it were the same."""
    slow, sink, engine, model = Slow(monkeypatch), RecordingSink(), engine_of(server, tmp_path / "c"), SavableModel()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        for _ in range(2):
            engine.update_policy(model)
            assert slow.begun.acquire(timeout=60)
        slow.let(2)
        assert [(event.sequence, event.same) for event in told(sink)] == [(2, None)]
        engine.update_policy(model)
        slow.let()
        assert [(event.sequence, event.same) for event in told(sink)] == [(2, None), (3, True)]


@pytest.mark.parametrize("how", ["written", "removed", "added"])
def test_files_that_change_under_it(
    tmp_path: Path, server: FakeSGLang, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """By whoever saves without a seam: nothing is told, and nothing went wrong."""
    slow, sink, engine = Slow(monkeypatch), RecordingSink(), engine_of(server, tmp_path / "c")
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        engine.update_policy(SavableModel(width=8))
        assert slow.begun.acquire(timeout=60)
        file = tmp_path / "c" / "pytorch_model.bin"
        if how == "written":
            file.write_bytes(file.read_bytes() + b" ")
        elif how == "removed":
            shutil.rmtree(tmp_path / "c")
        else:
            shutil.copy(file, tmp_path / "c" / "other.bin")
        slow.let()
    assert told(sink) == []
    assert not [event for event in sink.events if isinstance(event, TelemetryError)]


def test_nothing_is_told_after_the_end(tmp_path: Path, server: FakeSGLang, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the thread, and the sinks are closed."""
    slow, sink, engine = Slow(monkeypatch), RecordingSink(), engine_of(server, tmp_path / "c")
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        engine.update_policy(SavableModel(width=8))
    slow.let()
    assert told(sink) == []


def test_other_ranks_do_not_look(tmp_path: Path, server: FakeSGLang) -> None:
    """One look a sync is enough."""
    sink, engine = RecordingSink(), engine_of(server, tmp_path / "c")
    with sglang_telemetry.instrument(engine, sinks=[sink], rank=1):
        engine.update_policy(SavableModel(width=8))
        assert looking() == []
    assert told(sink) == []


def test_no_thread_is_to_be_had(tmp_path: Path, server: FakeSGLang, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of processes: the sync goes on, with its request recorded, and the error is told."""

    def start(thread: threading.Thread) -> None:
        if thread.name == "sglang-telemetry-inspection":
            raise RuntimeError("can't start new thread")
        begin(thread)

    begin = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    sink, engine = RecordingSink(), engine_of(server, tmp_path / "c")
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        assert engine.update_policy(SavableModel(width=8)) is True
    assert sink.records[0].exchange is not None
    assert ["new thread" in event.text for event in sink.events if isinstance(event, TelemetryError)] == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_in_the_middle_of_a_look(tmp_path: Path, server: FakeSGLang, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child, as of a data loader, has neither the thread nor its lock, and can sync like any process."""
    slow, sink, engine = Slow(monkeypatch), RecordingSink(), engine_of(server, tmp_path / "c")
    with sglang_telemetry.instrument(engine, sinks=[sink]) as telemetry:
        engine.update_policy(SavableModel(width=8))
        assert slow.begun.acquire(timeout=60)
        assert telemetry._instrument is not None
        inspector = telemetry._instrument._inspector
        assert inspector is not None
        with inspector.locked():
            child = os.fork()
            if child == 0:
                os._exit(0 if engine.update_policy(SavableModel(width=8)) is True else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        slow.let()


def test_two_engines_at_once(tmp_path: Path, server: FakeSGLang) -> None:
    """Each looks at its own, and compares with its own."""
    sinks = [RecordingSink(), RecordingSink()]
    engines = [engine_of(server, tmp_path / str(n)) for n in range(2)]
    models = [SavableModel(width=8), SavableModel(width=8)]
    handles = [sglang_telemetry.instrument(one, sinks=[sink]) for one, sink in zip(engines, sinks, strict=True)]

    def train(number: int) -> None:
        sink, engine = sinks[number], engines[number]
        engine.update_policy(models[number])
        wait_until(lambda: len(told(sink)) == 1, "the look was told")
        engine.update_policy(models[number])
        wait_until(lambda: len(told(sink)) == 2, "the next one was told")

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for handle in handles:
        handle.uninstrument()
    assert [[(event.sequence, event.same) for event in told(sink)] for sink in sinks] == [[(1, None), (2, True)]] * 2


class Sending(SharedFolderEngine):
    """Sends what lies in a folder, whatever the model is."""

    def update_policy(self, model: Any) -> bool:
        """Push."""
        url = f"{self.base_url}/update_weights_from_disk"
        return bool(self.http.post(url, json={"model_path": self.shared_ckpt_path}).status_code == 200)


def qwen() -> nn.Module:
    """A model with the tensors of the tiny checkpoints."""
    model = nn.Module()
    inner = model.model = nn.Module()
    inner.embed_tokens = nn.Embedding(32, 8)
    inner.layers = nn.ModuleList(nn.Module() for _ in range(2))
    for layer in inner.layers:
        layer.mlp = nn.Module()
        layer.mlp.down_proj = nn.Linear(16, 8, bias=False)
    inner.norm = nn.LayerNorm(8, bias=False)
    return model


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        ("v2", None),
        ("v2_bin", None),
        ("sharded", None),
        ("extra", None),
        ("weightsonly", None),
        ("missing", "1 of 4 tensors are missing: model.layers.1.mlp.down_proj.weight"),
        ("emptydir", "no weight files"),
    ],
)
def test_checkpoints(tmp_path: Path, server: FakeSGLang, checkpoint: str, words: str | None) -> None:
    """Whole in every form is no fault; what the server would take for whole is."""
    models, sink = write_models(tmp_path / "models"), RecordingSink()
    engine, model = Sending(server.url, str(models / checkpoint)), torch.compile(qwen(), backend="eager")
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        engine.update_policy(model)
        wait_until(lambda: len(told(sink)) == 1, "the look was told")
    [event] = told(sink)
    assert event.fault == words
    assert event.path == str(models / checkpoint)
    assert event.mixed is (checkpoint == "missing")


@pytest.mark.parametrize("model", [None, object(), 7, SavableModel(width=8)])
def test_names_of_another_kind(tmp_path: Path, server: FakeSGLang, model: Any) -> None:
    """An adapter, or a model that the engine builds itself: nothing is said to be missing."""
    models, sink = write_models(tmp_path / "models"), RecordingSink()
    with sglang_telemetry.instrument(Sending(server.url, str(models / "missing")), sinks=[sink]) as telemetry:
        assert telemetry._instrument is not None
        telemetry._instrument._engine.update_policy(model)
        wait_until(lambda: len(told(sink)) == 1, "the look was told")
    assert told(sink)[0].fault is None


def test_folder_that_is_not_on_this_host(tmp_path: Path, server: FakeSGLang) -> None:
    """A name on a hub, or a mount of the server's: nothing is known of it, and nothing is told."""
    sink = RecordingSink()
    engine = Sending(server.url, str(tmp_path / "nowhere"))
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        engine.update_policy(SavableModel(width=8))
        wait_until(lambda: not looking(), "the look is over")
    assert told(sink) == []


def test_failed_sync_knows_what_is_missing(tmp_path: Path) -> None:
    """The record of the failure itself is made with the model in hand."""
    models, sink = write_models(tmp_path / "models"), RecordingSink()
    folder = models / "missing"
    (folder / "config.json").write_text(json.dumps({}))
    with FakeSGLang(admin_api_key="k") as server:
        engine = Sending(server.url, str(folder))
        with sglang_telemetry.instrument(engine, sinks=[sink]):
            assert engine.update_policy(qwen()) is False
            wait_until(lambda: not looking(), "the look is over")
    assert sink.records[0].checkpoint is not None
    assert "1 of 4 tensors are missing" in (sink.records[0].checkpoint.fault or "")


def test_modules_that_write_themselves() -> None:
    """Their names are their own affair."""
    hooked = nn.Linear(2, 2)
    hooked._register_state_dict_hook(lambda *_: None)  # type: ignore[no-untyped-call]
    assert tensors_of(nn.Sequential(hooked)) == ({}, ())

    class Own(nn.Linear):
        def _save_to_state_dict(self, *args: Any) -> None:
            return

    assert tensors_of(nn.Sequential(Own(2, 2))) == ({}, ())


def test_names_that_are_left_out_on_purpose() -> None:
    """transformers does not save these."""
    model = nn.Linear(2, 2)
    model._keys_to_ignore_on_save = ["bias"]  # type: ignore[assignment]
    assert set(tensors_of(model)[0]) == {"weight"}


def test_kin() -> None:
    """Of one module, of one layer, of the same place in another layer."""
    ours = kin_of("model.layers.1.mlp.down_proj.weight")
    assert ours & kin_of("model.layers.0.mlp.down_proj.weight")
    assert ours & kin_of("model.layers.1.mlp.gate.weight")
    assert ours & kin_of("model.layers.1.mlp.down_proj.bias")
    assert not ours & kin_of("model.layers.10.attention.weight")
    assert not kin_of("v_head.weight") & kin_of("lm_head.weight")


class Partly(SharedFolderEngine):
    """Sends what a function makes of the model."""

    def __init__(self, url: str, folder: Path, made: Callable[[nn.Module], dict[str, torch.Tensor]]) -> None:
        super().__init__(url, str(folder), timeout=10)
        self._made = made

    def update_policy(self, model: Any) -> bool:
        """Write, and push."""
        write_bin_over(Path(self.shared_ckpt_path), self._made(model))
        url = f"{self.base_url}/update_weights_from_disk"
        return bool(self.http.post(url, json={"model_path": self.shared_ckpt_path}).status_code == 200)


def write_bin_over(folder: Path, content: dict[str, torch.Tensor]) -> None:
    """A checkpoint in the place of the one before."""
    shutil.rmtree(folder, ignore_errors=True)
    write_bin(folder, content)


def frozen(model: nn.Module) -> nn.Module:
    """Its first layer is not trained."""
    model.get_submodule("model.layers.0").requires_grad_(False)
    return model


def with_buffer(model: nn.Module) -> nn.Module:
    """One that a state dict has, and a list of parameters has not."""
    model.get_submodule("model.layers.0.mlp").register_buffer("inv_freq", torch.ones(4))
    return model


def with_adapter(model: nn.Module) -> nn.Module:
    """As PEFT puts it in."""
    mlp = model.get_submodule("model.layers.0.mlp")
    base = mlp.down_proj
    mlp.down_proj = nn.Module()
    mlp.down_proj.base_layer = base
    mlp.down_proj.lora_A = nn.Linear(16, 2, bias=False)
    return model


def merged(model: nn.Module) -> dict[str, torch.Tensor]:
    """The names that the server has."""
    names = {name.replace(".base_layer", ""): one for name, one in model.state_dict().items()}
    return {name: one.half() for name, one in names.items() if "lora_" not in name}


@pytest.mark.parametrize(
    ("change", "made"),
    [
        (frozen, lambda model: {n: p.half() for n, p in model.named_parameters() if p.requires_grad}),
        (with_buffer, lambda model: {n: p.half() for n, p in model.named_parameters()}),
        (with_adapter, merged),
        (lambda model: model, lambda model: {n: p.to(torch.int8) for n, p in model.named_parameters()}),
        (lambda model: model, lambda model: {f"{n}.qweight": p.half() for n, p in model.named_parameters()}),
        (lambda model: model, lambda model: {n: p[:4].half() for n, p in model.named_parameters()}),
    ],
    ids=["what is trained", "no buffers", "merged", "quantised", "other names", "cut"],
)
def test_what_is_left_out_on_purpose_is_not_missing(
    tmp_path: Path,
    server: FakeSGLang,
    change: Callable[[nn.Module], nn.Module],
    made: Callable[[nn.Module], dict[str, torch.Tensor]],
) -> None:
    """Frozen layers, buffers, adapters that were merged, other kinds and shapes: the server is not said to mix."""
    sink, model = RecordingSink(), change(qwen())
    engine = Partly(server.url, tmp_path / "c", made)
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        assert engine.update_policy(model)
        wait_until(lambda: len(told(sink)) == 1, "the look was told")
    assert not told(sink)[0].mixed


def test_parts_in_several_updates_are_not_missing(tmp_path: Path, server: FakeSGLang) -> None:
    """Each has some of the layers."""

    class Bucketed(Partly):
        def update_policy(self, model: Any) -> bool:
            done = []
            for self.layer in "01":
                self.shared_ckpt_path = str(tmp_path / self.layer)
                done.append(super().update_policy(model))
            return all(done)

    sink, model = RecordingSink(), qwen()
    engine = Bucketed(
        server.url,
        tmp_path / "c",
        lambda model: {n: p.half() for n, p in model.named_parameters() if f"layers.{engine.layer}" in n},
    )
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        assert engine.update_policy(model)
        wait_until(lambda: len(told(sink)) == 1, "the look was told")
    assert "are missing" in (told(sink)[0].fault or "")
    assert not told(sink)[0].mixed


def test_folder_that_is_emptied_before_the_look_begins(tmp_path: Path, server: FakeSGLang) -> None:
    """What was sent is what was there when it was sent."""

    class Tidy(Partly):
        def update_policy(self, model: Any) -> bool:
            done = super().update_policy(model)
            Path(self.shared_ckpt_path, "pytorch_model.bin").unlink()
            return done

    sink = RecordingSink()
    engine = Tidy(server.url, tmp_path / "c", lambda model: {n: p.half() for n, p in model.named_parameters()})
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        assert engine.update_policy(qwen())
        wait_until(lambda: not looking(), "no thread looks any more")
    assert told(sink) == []


@pytest.mark.parametrize("late", [False, True], ids=["after the record", "with the record"])
def test_sink_that_ends_observing_when_it_is_told(tmp_path: Path, server: FakeSGLang, late: bool) -> None:
    """No lock is held while a sink is told, by whichever of the two threads."""

    class Ending(RecordingSink):
        telemetry: sglang_telemetry.Telemetry

        def emit(self, event: sglang_telemetry.Event) -> None:
            super().emit(event)
            if isinstance(event, CheckpointInspected):
                self.telemetry.uninstrument()

    class Lingering(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            done = super().update_policy(model)
            if late:
                wait_until(lambda: not looking(), "the look is over before the sync")
            return done

    sink, engine = Ending(), Lingering(server.url, str(tmp_path / "c"), timeout=10)
    sink.telemetry = sglang_telemetry.instrument(engine, sinks=[sink])
    assert engine.update_policy(SavableModel(width=8))
    wait_until(lambda: len(told(sink)) == 1, "the look was told")
    wait_until(lambda: not looking(), "its thread has ended")


def test_request_that_outlives_the_sync(tmp_path: Path) -> None:
    """A thread of the engine's still sends when it returns: nobody knows yet whether the weights are taken."""

    class Impatient(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            begun = threading.Event()
            post = super().update_policy

            def send() -> None:
                begun.set()
                post(model)

            self.thread = threading.Thread(target=send)
            self.thread.start()
            wait_until(lambda: bool(server.requests), "the request is under way")
            return True

    sink = RecordingSink()
    with FakeSGLang() as server:
        server.inject(Fault.SLOW, seconds=1.0)
        engine = Impatient(server.url, str(tmp_path / "c"), timeout=10)
        with sglang_telemetry.instrument(engine, sinks=[sink]):
            assert engine.update_policy(SavableModel(width=8))
            [record] = sink.records
            assert (record.result, record.weights_applied) == (Result.SUCCESS, Applied.UNKNOWN)
            engine.thread.join()
    wait_until(lambda: not looking(), "no thread looks any more")


def test_sparse_buffer_does_not_hide_what_is_known(tmp_path: Path) -> None:
    """It has no storage to compare; the record of a failure has the folder all the same."""
    model = SavableModel(width=8)
    model.register_buffer("adjacent", torch.eye(4).to_sparse())
    assert tensors_of(model) == ({}, ())
    sink = RecordingSink()
    with FakeSGLang(faults=[Fault.SERVICE_UNAVAILABLE]) as server:
        engine = engine_of(server, tmp_path / "c")
        with sglang_telemetry.instrument(engine, sinks=[sink]), pytest.raises(RuntimeError):
            engine.update_policy(model)
    wait_until(lambda: not looking(), "no thread looks any more")
    assert sink.records[0].checkpoint is not None
