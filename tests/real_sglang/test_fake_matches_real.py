"""FakeSGLang against the recording of a real server: the same requests, the same answers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_telemetry.testing.fake_sglang import FakeSGLang
from tests.real_sglang.record import RECORDED
from tests.real_sglang.scenarios import SCENARIOS, Player, Scenario, comparable

recorded = json.loads(RECORDED.read_text())


@pytest.fixture
def fake(scenario: Scenario, models: Path) -> Iterator[FakeSGLang]:
    """A fresh server for a scenario."""
    with FakeSGLang(models / "base", admin_api_key=scenario.admin_api_key) as server:
        yield server


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_fake_answers_as_the_real_one_did(scenario: Scenario, fake: FakeSGLang, models: Path) -> None:
    """Status, content type and body of every step, with folders and checksums named alike."""
    player = Player(fake, models)
    try:
        played = player.play(scenario)
    finally:
        player.close()
    assert comparable(played) == comparable(recorded["scenarios"][scenario.name])


def test_every_recorded_scenario_is_played() -> None:
    """None is forgotten, and none was added without a recording."""
    assert sorted(recorded["scenarios"]) == sorted(scenario.name for scenario in SCENARIOS)
