"""An engine whose server answers at once, so that what is measured is the trainer's side alone."""

import json
import sys
import time
from typing import Any

import requests

from tests.harness.minimind import SavableModel, SharedFolderEngine


class InstantHttp:
    """Answers without a network, with a real ``requests`` answer object."""

    def post(self, url: str, **named: Any) -> requests.Response:
        """Success."""
        answer = requests.Response()
        answer.status_code = 200
        answer._content = b'{"success":true,"message":"Succeeded to update model weights.","num_paused_requests":0}'
        return answer


def engine(folder: str) -> SharedFolderEngine:
    """An engine with an instant server."""
    one = SharedFolderEngine("http://127.0.0.1:30000", folder)
    one.http = InstantHttp()
    return one


def resident_kib() -> int:
    """Resident memory of this process that is its own."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(("Private_Clean", "Private_Dirty")))


def main(folder: str, observed: str) -> None:
    """A process without us or with us (``no``, ``yes``); prints its memory."""
    one, model = engine(folder), SavableModel()
    if observed != "no":
        import sglang_telemetry  # the bare process must not pay for it

        sglang_telemetry.instrument(one, run="bench")
    start = time.monotonic()
    for _ in range(50):
        one.update_policy(model)
    print(json.dumps({"kib": resident_kib(), "seconds": time.monotonic() - start}))


if __name__ == "__main__":
    main(*sys.argv[1:])
