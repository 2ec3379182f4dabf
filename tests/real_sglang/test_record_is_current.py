"""The recording against a real server that is started now: the cheap scenarios, and one that it dies of."""

import json

import pytest

from tests.real_sglang.conftest import RealSGLangFactory
from tests.real_sglang.record import RECORDED
from tests.real_sglang.scenarios import SCENARIOS, Player, Scenario, comparable

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

recorded = json.loads(RECORDED.read_text())
CHEAP = [scenario for scenario in SCENARIOS if scenario.cheap]
DEADLY = next(scenario for scenario in SCENARIOS if scenario.kills)


@pytest.mark.parametrize("scenario", [*CHEAP, DEADLY], ids=lambda scenario: scenario.name)
def test_the_real_server_still_answers_so(scenario: Scenario, real_sglang: RealSGLangFactory) -> None:
    """Status, content type and body of every step are those in ``recorded.json``."""
    server = real_sglang()
    player = Player(server, server.model.parent)
    try:
        played = player.play(scenario)
    finally:
        player.close()
    assert comparable(played) == comparable(recorded["scenarios"][scenario.name])
