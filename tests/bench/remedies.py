"""What each remedy costs a good sync: it, beside the same engine observed without it, by turns in one run."""

import statistics
import time
from pathlib import Path
from typing import Any

import requests

import sglang_telemetry
from sglang_telemetry import Remedies
from tests.harness.minimind import SavableModel, SharedFolderEngine

REMEDIES: dict[str, Remedies] = {
    "validate": Remedies(validate=True),
    "publish_atomically": Remedies(publish_atomically=True),
    "retry": Remedies(retry=True),
    "timeout": Remedies(timeout="auto"),
    "pause": Remedies(pause="retract"),
    "serialize": Remedies(serialize=True),
    "on_failure": Remedies(on_failure="continue_stale", stale_syncs=3),
}


class InstantSession(requests.Session):
    """Answers without a network: of a pause, what the trainer's side alone costs."""

    def post(self, url: str | bytes, *args: Any, **named: Any) -> requests.Response:  # type: ignore[override]
        """Success."""
        answer = requests.Response()
        answer.status_code = 200
        answer._content = b'{"success":true,"message":"Succeeded to update model weights.","num_paused_requests":0}'
        return answer

    def get(self, url: str | bytes, **named: Any) -> requests.Response:
        """Nobody."""
        raise requests.ConnectionError


def cost(folder: Path, remedies: Remedies, model: SavableModel, pairs: int) -> tuple[float, float]:
    """Seconds, as medians: of a sync without remedies, and what these add to its neighbour in time."""
    folder.mkdir(parents=True)
    engines = []
    for number in range(2):
        one = SharedFolderEngine("http://127.0.0.1:30000", str(folder / f"c{number}"))
        one.http = InstantSession()
        engines.append(one)
        asked = remedies if number else Remedies()
        sglang_telemetry.instrument(one, run="bench", sinks=[], remedies=asked, inspect_checkpoints=False)
    took: dict[int, list[float]] = {0: [], 1: []}
    for number in range(2 * pairs):
        which = (number + number // 2) % 2
        start = time.perf_counter()
        engines[which].update_policy(model)
        took[which].append(time.perf_counter() - start)
    added = [b - a for a, b in zip(took[0], took[1], strict=True)]
    return statistics.median(took[0]), statistics.median(added)
