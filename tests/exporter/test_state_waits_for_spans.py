"""What is saved is not read again: the state waits for the collector, but not for ever."""

from pathlib import Path

import pytest

from sglang_telemetry.exporter import app, snapshot
from sglang_telemetry.exporter.app import Exporter
from sglang_telemetry.exporter.settings import ExporterSettings
from sglang_telemetry.sinks.journal import JournalSink
from tests.harness.processes import free_port
from tests.sinks import START, begun, failed, started, who


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The journal of one failed sync, and a collector that is away."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    sink = JournalSink(tmp_path)
    for event in (started(who(0)), begun(who(0)), failed(who(0), at=START + 10)):
        sink.emit(event)
    return tmp_path


@pytest.mark.parametrize("hold", [60.0, 0.0])
def test_state_is_saved_when_the_spans_are_sent_or_after_a_while(
    folder: Path, hold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exporter that is killed meanwhile reads them again; one that waits for ever would keep every journal."""
    monkeypatch.setattr(app, "HOLD_SECONDS", hold)
    exporter = Exporter(ExporterSettings(folder=folder, port=0))
    try:
        exporter.refresh()
        assert exporter.health()[1]["traces"]["waiting"] > 0
        exporter._save()
        assert (folder / snapshot.FILE_NAME).exists() is (hold == 0.0)
    finally:
        exporter.close()
    assert (folder / snapshot.FILE_NAME).exists()
