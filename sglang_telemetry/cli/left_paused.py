"""Which servers the trainers of a command that has ended left paused: by their journals, and by what those say now.

The exporter finds the same with its next look, for which nobody may wait.
"""

from pathlib import Path

from sglang_telemetry.cli.launched import trainers
from sglang_telemetry.exporter.per_server import of_each_server
from sglang_telemetry.server_truth.asking import Asking
from sglang_telemetry.server_truth.keys import NO_KEYS
from sglang_telemetry.server_truth.paused import Pauses
from sglang_telemetry.server_truth.routes import READY, is_well

_ASK_SECONDS = 2.0


def left_paused(folder: Path, launch_id: str) -> dict[str, str]:
    """Addresses of those that say that they are not ready, by ``host:port``.

    Args:
        folder: The journals.
        launch_id: Whose trainers are meant.
    """
    pauses: dict[str, Pauses] = {}
    urls: dict[str, str] = {}
    ended = []
    for trainer in trainers(folder, launch_id):
        for event in trainer.remedied:
            if event.target.server is not None:
                pauses.setdefault(event.target.server, Pauses()).note(event)
        for record in trainer.records:
            urls |= {one.target.server: url for url, one in of_each_server(record) if url and one.target.server}
        if not trainer.alive and trainer.known.head is not None:
            ended.append(trainer.known.head.identity)
    for one in pauses.values():
        for identity in ended:
            one.gone(identity)
    left = {server: urls.get(server, f"http://{server}") for server, one in pauses.items() if one.any_left}
    return {server: url for server, url in sorted(left.items()) if _ready(url) is False}


def _ready(url: str) -> bool | None:
    # Wants no key, also where there are some (SGLang 0.5.23, read in its source).
    return is_well(Asking(url, keys=NO_KEYS, seconds=_ASK_SECONDS).json(READY)[0])
