"""A journal folder that is missing, read-only or full: the training goes on, the errors are counted."""

import os
from pathlib import Path

import pytest

import sglang_telemetry
from sglang_telemetry import JournalSink, LogSink
from sglang_telemetry.events import TelemetryError
from sglang_telemetry.names import Component
from sglang_telemetry.testing.doubles import RecordingSink
from tests.harness.answers import SUCCESS, Answers
from tests.harness.exporter import ExporterProcess
from tests.harness.minimind import SavableModel, SharedFolderEngine
from tests.harness.mounts import fill, tmpfs


def train(journals: Path, tmp_path: Path, syncs: int = 3) -> list[TelemetryError]:
    """Some good syncs with a journal there; what was told of its errors."""
    told = RecordingSink()
    with Answers(SUCCESS) as server:
        engine = SharedFolderEngine(server.url, str(tmp_path / "c"), timeout=5)
        with sglang_telemetry.instrument(engine, run="sick", sinks=[JournalSink(journals), told]):
            for _ in range(syncs):
                assert engine.update_policy(SavableModel()) is True
    assert len(told.records) == syncs
    return [event for event in told.events if isinstance(event, TelemetryError)]


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    told = train(tmp_path / "file" / "journals", tmp_path)
    assert {error.component for error in told} == {Component.JOURNAL}
    assert "Not a directory" in told[0].text


def test_read_only_folder(tmp_path: Path) -> None:
    """A mount that became read-only."""
    with tmpfs(tmp_path / "ro", read_only=True) as folder:
        told = train(folder / "journals", tmp_path)
    assert {error.component for error in told} == {Component.JOURNAL}


def test_full_folder(tmp_path: Path) -> None:
    """No byte is left, from the start."""
    with tmpfs(tmp_path / "full") as folder:
        fill(folder)
        told = train(folder / "journals", tmp_path)
    assert {error.component for error in told} == {Component.JOURNAL}


def test_disk_that_fills_up_and_gets_room_again_loses_nothing(tmp_path: Path) -> None:
    """What the disk did not take is written when it does again, and the gap is counted in the journal itself."""
    with tmpfs(tmp_path / "full", size="512k") as folder, Answers(SUCCESS) as server:
        engine = SharedFolderEngine(server.url, str(tmp_path / "c"), timeout=5)
        with sglang_telemetry.instrument(engine, run="sick", sinks=[JournalSink(folder / "j")]):
            engine.update_policy(SavableModel())
            ballast = fill(folder)
            engine.update_policy(SavableModel())
            engine.update_policy(SavableModel())
            ballast.unlink()
            engine.update_policy(SavableModel())
        with ExporterProcess(folder / "j") as exporter:
            assert exporter.total("weight_sync_attempts_total", result="success") == 4.0
            assert exporter.total("weight_sync_telemetry_errors_total", component="journal") > 0


def test_folder_removed_under_a_running_trainer(tmp_path: Path) -> None:
    """Somebody cleans /tmp: the next sync opens a new journal."""
    with Answers(SUCCESS) as server:
        engine = SharedFolderEngine(server.url, str(tmp_path / "c"), timeout=5)
        journals = tmp_path / "j"
        with sglang_telemetry.instrument(engine, run="sick", sinks=[JournalSink(journals)]):
            engine.update_policy(SavableModel())
            for path in journals.iterdir():
                path.unlink()
            journals.rmdir()
            engine.update_policy(SavableModel())
            with ExporterProcess(journals) as exporter:
                assert exporter.total("weight_sync_attempts_total", result="success") == 1.0
                assert exporter.value("weight_sync_process_up", run="sick", rank="0") == 1.0


def test_one_clear_line_in_the_trainers_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said once, with the folder and what is wrong with it, however many events are lost."""
    (tmp_path / "file").write_text("")
    with Answers(SUCCESS) as server:
        engine = SharedFolderEngine(server.url, str(tmp_path / "c"), timeout=5)
        sinks = [LogSink(fmt="console"), JournalSink(tmp_path / "file" / "journals")]
        import logging

        logging.getLogger("sglang_telemetry").propagate = False
        try:
            with sglang_telemetry.instrument(engine, run="sick", sinks=sinks):
                engine.update_policy(SavableModel())
                engine.update_policy(SavableModel())
        finally:
            logging.getLogger("sglang_telemetry").propagate = True
    said = [line for line in capsys.readouterr().err.splitlines() if "telemetry.error" in line]
    assert len(said) == 1
    assert os.fspath(tmp_path / "file") in said[0]
