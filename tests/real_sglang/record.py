"""Plays scenarios to the real SGLang and writes what it answered.

usage: python -m tests.real_sglang.record VENV MODELS [SCENARIO...]

Without names all are played, and the recording is made anew; it takes about three minutes, since the server dies of
some of them and is started again. With names those alone are replaced in it.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from tests.real_sglang.scenarios import SCENARIOS, Player, Scenario
from tests.real_sglang.server import RealSGLang

RECORDED = Path(__file__).with_name("recorded.json")


def main(venv: Path, models: Path, names: Collection[str]) -> None:
    """Play the named scenarios, or all, and write ``recorded.json``."""
    by_key: defaultdict[str | None, list[Scenario]] = defaultdict(list)
    for scenario in SCENARIOS:
        if not names or scenario.name in names:
            by_key[scenario.admin_api_key].append(scenario)
    recorded = json.loads(RECORDED.read_text())["scenarios"] if names else {}
    for key, scenarios in by_key.items():
        flags = ("--admin-api-key", key) if key else ()
        with RealSGLang(venv, models / "base", flags=flags) as server:
            player = Player(server, models)
            for scenario in scenarios:
                started = time.monotonic()
                recorded[scenario.name] = player.play(scenario)
                print(f"{time.monotonic() - started:6.1f} s  {scenario.name}", flush=True)
            player.close()
    RECORDED.write_text(json.dumps({"sglang": "0.5.23", "scenarios": recorded}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
