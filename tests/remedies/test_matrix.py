"""What each remedy buys, fault by fault, without and with it, on the stand-in."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sglang_telemetry
from sglang_telemetry import Remedies
from sglang_telemetry.testing import FakeSGLang, Fault, RecordingSink
from tests.harness.policy import Policy, policy_engine
from tests.harness.processes import wait_until
from tests.harness.remedy_matrix import MATRIX, Ends, Row, said


def checksum_of(checkpoint: Path) -> str:
    """What a server shows that has loaded it."""
    with FakeSGLang(checkpoint) as server:
        return server.state().checksum


@contextmanager
def supervised(server: FakeSGLang, wanted: bool) -> Iterator[None]:
    """Start the server again when it has died, as its supervisor does."""
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if not server.alive and not over.wait(0.6):  # so that it is seen away
                server.restart()
            over.wait(0.02)

    thread = threading.Thread(target=watch)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        if wanted:
            wait_until(lambda: server.alive, "the server is back")
        over.set()
        if wanted:
            thread.join()


def outcome(row: Row, remedies: Remedies, models: Path, folder: Path) -> tuple[Ends, tuple[str, ...]]:
    """Sync once well, then once with the fault: how that ends, and what the remedies said."""
    sink = RecordingSink()
    with FakeSGLang(models / "base") as server:
        engine = policy_engine(server.url, folder, timeout=row.timeout)
        policy = Policy(models)
        with sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies):
            policy.content = "v3"
            engine.update_policy(policy)
            before = len(sink.events)
            policy.content = row.content
            for fault in row.faults:
                server.inject(fault)
            with supervised(server, row.restarts):
                try:
                    run = "goes on" if engine.update_policy(policy) is not None else ""
                except RuntimeError:
                    run = "ends"
        if Fault.SLOW in row.faults:
            wait_until(lambda: server.state().updates_applied == 2, "the update is applied")
        state = server.state()
        known = {checksum_of(models / name): kind for name, kind in (("base", "start"), ("v3", "old"), ("v2", "new"))}
        weights = known.get(state.checksum, "mixed") if server.alive else None
        how = "died" if not server.alive else "is paused" if state.paused else "lives"
    told = tuple(said(sink.events[before:]))
    assert not [one for one in folder.iterdir() if one.name != "checkpoint"], "nothing is left beside the folder"
    return Ends(run=run, server=how, weights=weights), told


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.name)
def test_without(row: Row, models: Path, tmp_path: Path) -> None:
    """The fault is real: this is what happens to those who switch nothing on."""
    assert outcome(row, Remedies(), models, tmp_path) == (row.without, ())


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.name)
def test_with(row: Row, models: Path, tmp_path: Path) -> None:
    """What the remedy makes of it, and what it says."""
    ends, told = outcome(row, row.remedies, models, tmp_path)
    assert ends == row.remedied
    quiet = {"validate done", "timeout skipped", "pause done", "flush done", "release done"} - set(row.said)
    assert tuple(one for one in told if one not in quiet) == row.said
