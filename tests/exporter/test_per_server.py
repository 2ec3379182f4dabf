"""A sync to several servers, as one record for each of them."""

from pathlib import Path

import pytest

import sglang_telemetry
from sglang_telemetry.events import SyncRecord
from sglang_telemetry.exporter.per_server import of_each_server
from sglang_telemetry.names import Applied, Result
from sglang_telemetry.testing import FakeSGLang, Fault, RecordingSink
from tests.harness.minimind import ManyServersEngine, SavableModel


def records(folder: Path, *faults: Fault | None) -> list[tuple[int, Result, Applied]]:
    """What each server's record says, after a sync that meets a fault at each."""
    servers = [FakeSGLang(faults=[fault] if fault is not None else []) for fault in faults]
    sink = RecordingSink()
    engine = ManyServersEngine([server.url for server in servers], str(folder / "c"), timeout=10)
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        try:
            engine.update_policy(SavableModel(width=8))
        except RuntimeError:
            assert sink.records[-1].result is Result.FAILURE
    for server in servers:
        server.close()
    places = [server.host_port for server in servers]
    found: list[tuple[str | None, SyncRecord]] = list(of_each_server(sink.records[0]))
    assert [url for url, _ in found if url not in engine.urls] == []
    return sorted((places.index(one.target.server or ""), one.result, one.weights_applied) for _, one in found)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([None], [(0, Result.SUCCESS, Applied.YES)]),
        ([None, None], [(0, Result.SUCCESS, Applied.YES), (1, Result.SUCCESS, Applied.YES)]),
        ([None, Fault.UNAUTHORIZED], [(0, Result.SUCCESS, Applied.YES), (1, Result.FAILURE, Applied.NO)]),
        (
            [Fault.UNAUTHORIZED, Fault.BUSY_WEIGHTS_APPLIED, Fault.PROXY_503_HTML],
            [(0, Result.FAILURE, Applied.NO), (1, Result.SUCCESS, Applied.YES), (2, Result.FAILURE, Applied.UNKNOWN)],
        ),
    ],
)
def test_each_server_for_itself(
    tmp_path: Path, faults: list[Fault | None], expected: list[tuple[int, Result, Applied]]
) -> None:
    """By its own answer, read as that of one server alone is."""
    assert records(tmp_path, *faults) == expected
