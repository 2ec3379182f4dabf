"""``telemetry.check()``: the same check from within the trainer, with what the engine says of itself."""

from pathlib import Path

import pytest

import sglang_telemetry
from sglang_telemetry.preflight import Check, Level
from sglang_telemetry.testing import FakeSGLang, RecordingSink
from tests.harness.minimind import SavableModel, SharedFolderEngine
from tests.testing.checkpoints import write_models


def test_server_folder_and_time_out_are_the_engines(tmp_path: Path) -> None:
    """Nothing has to be said twice; no sync is told."""
    models, sink = write_models(tmp_path / "models"), RecordingSink()
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with FakeSGLang(models / "base") as server:
        engine = SharedFolderEngine(server.url, str(folder), timeout=77)
        with sglang_telemetry.instrument(engine, sinks=[sink]) as telemetry:
            report = telemetry.check()
        assert {one.method for one in server.updates} == {"OPTIONS"}
    assert {one.place for one in report.findings} == {str(folder), server.host_port}
    assert [one for one in report.findings if one.level is Level.FAIL] == []
    [timeout] = [one for one in report.findings if one.name is Check.TIMEOUT]
    assert "77" in timeout.reason
    assert not sink.records


def test_what_it_advises_can_be_done_here(tmp_path: Path) -> None:
    """An argument of the command is named with that of this method, and both fit."""
    with FakeSGLang("/models/elsewhere") as server:
        engine = SharedFolderEngine(server.url, str(tmp_path), timeout=77)
        with sglang_telemetry.instrument(engine, sinks=[RecordingSink()]) as telemetry:
            report = telemetry.check()
    said = [f"{one.reason} {one.fix}" for one in report.findings]
    for ours, theirs in (("--model DIR", "model="), ("--dry-run", "dry_run=True")):
        assert any(ours in text for text in said)
        assert all(theirs in text for text in said if ours in text)


def test_model_that_is_not_the_servers(tmp_path: Path) -> None:
    """Its tensors are compared with the start model, which is to be seen from here."""
    models = write_models(tmp_path / "models")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with FakeSGLang(models / "base") as server:
        engine = SharedFolderEngine(server.url, str(folder), timeout=77)
        with sglang_telemetry.instrument(engine, sinks=[RecordingSink()]) as telemetry:
            report = telemetry.check(model=SavableModel(width=8))
    [model] = [one for one in report.findings if one.name is Check.MODEL]
    assert model.level is Level.WARN
    assert model.reason.startswith("no tensor of the trainer's model has the name")


def test_without_a_server(tmp_path: Path) -> None:
    """A clear word instead of a table about nothing."""

    class Engine:
        def update_policy(self, model: object) -> bool:
            return True

    telemetry = sglang_telemetry.instrument(Engine(), sinks=[RecordingSink()])
    with pytest.raises(ValueError, match="server"):
        telemetry.check(shared_path=tmp_path)
    telemetry.uninstrument()
