"""A trainer without torch: forks one process a death, each makes one sync and dies as it is told.

usage: dying_trainer.py FOLDER HOW COUNT URL

HOW is ``raise``, ``_exit`` or ``kill`` right after a failed sync, or ``kill_in_request`` in the middle of one.
"""

import os
import signal
import sys
from typing import Any

import requests

import sglang_telemetry


class TinyEngine:
    """Posts and raises, as the first engines did."""

    def __init__(self, url: str, how: str) -> None:
        self.base_url, self.how, self.http = url, how, requests

    def update_policy(self, model: Any) -> bool:
        """Push nothing."""
        if self.how == "kill_in_request":
            self.http = _Killer()
        answer = self.http.post(f"{self.base_url}/update_weights_from_disk", json={"model_path": "/x"}, timeout=10)
        if answer.status_code != 200:
            raise RuntimeError("SGLang update_policy failed")
        return True


class _Killer:
    def post(self, url: str, **named: Any) -> Any:
        """Die where the request would be sent."""
        os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, how: str, count: int, url: str) -> None:
    """Fork and die, one after the other."""
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            die(folder, how, url)
            return  # its sync went well, and so does its end
        os.waitpid(pid, 0)


def die(folder: str, how: str, url: str) -> None:
    """One process's life."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    engine = TinyEngine(url, how)
    if how == "kill_in_request":
        engine.http = _Killer()  # type: ignore[assignment]
    sglang_telemetry.instrument(
        engine, run=os.environ.get("DYING_RUN", "dying"), sinks=[sglang_telemetry.JournalSink(folder)]
    )
    try:
        engine.update_policy(None)
    except RuntimeError:
        if how == "_exit":
            os._exit(1)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
