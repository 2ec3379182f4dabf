"""The cause of every refusal that was recorded from the real SGLang, while the files are complete here."""

import json
from pathlib import Path
from typing import Any

import pytest

import sglang_telemetry
from sglang_telemetry.causes import FailureCause
from sglang_telemetry.names import Applied
from sglang_telemetry.testing import RecordingSink
from tests.harness.answers import Answers
from tests.harness.minimind import SavableModel, SharedFolderEngine
from tests.real_sglang.record import RECORDED
from tests.real_sglang.scenarios import SCENARIOS, UPDATE, Send

EXPECTED: dict[str, tuple[FailureCause, Applied]] = {
    "no weights": (FailureCause.PATH_NOT_VISIBLE, Applied.NO),
    "load format stays": (FailureCause.PATH_NOT_VISIBLE, Applied.NO),
    "refused bodies": (FailureCause.PROTOCOL, Applied.NO),
    "routes": (FailureCause.PROTOCOL, Applied.NO),
    "paused": (FailureCause.PATH_NOT_VISIBLE, Applied.NO),
    "busy in place": (FailureCause.SERVER_BUSY, Applied.YES),
    "admin key": (FailureCause.UNAUTHORIZED, Applied.NO),
}
OTHERS = {"dummy": FailureCause.CHECKPOINT_INVALID, "sharded_state": FailureCause.CHECKPOINT_INVALID}


def refusals() -> list[Any]:
    """All recorded answers to an update that were no success."""
    recorded = json.loads(RECORDED.read_text())["scenarios"]
    return [
        pytest.param(scenario.name, step.name, answer, id=f"{scenario.name}: {step.name}")
        for scenario in SCENARIOS
        for step in scenario.steps
        if isinstance(step, Send) and step.path == UPDATE
        for answer in [recorded[scenario.name][step.name]]
        if answer.get("status", 200) != 200
    ]


@pytest.mark.parametrize(("scenario", "step", "answer"), refusals())
def test_cause_of_a_recorded_answer(tmp_path: Path, scenario: str, step: str, answer: dict[str, Any]) -> None:
    """Status and body as recorded lead to the cause, and the body is in the record whole."""
    sink = RecordingSink()
    with Answers((answer["status"], answer["body"].encode())) as server:
        engine = SharedFolderEngine(server.url, str(tmp_path / "c"), timeout=5)
        with sglang_telemetry.instrument(engine, sinks=[sink]), pytest.raises(RuntimeError):
            engine.update_policy(SavableModel())
    [record] = sink.records
    cause, applied = EXPECTED[scenario]
    assert (record.cause, record.weights_applied) == (OTHERS.get(step, cause), applied)
    assert record.exchange is not None
    assert (record.exchange.status_code, record.exchange.response_text) == (answer["status"], answer["body"])


def test_there_are_refusals_of_every_kind() -> None:
    """The recording was not emptied."""
    assert {parameters.values[0] for parameters in refusals()} == EXPECTED.keys()
