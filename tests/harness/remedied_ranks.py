"""One rank of a training with remedies, started by a test itself, so that nobody ends the others when one dies.

usage: RANK=r WORLD_SIZE=n MASTER_ADDR=a MASTER_PORT=p remedied_ranks.py URL MODELS FOLDER REPORT CONTENTS [KILL]

The checkpoint is FOLDER/checkpoint.

It syncs once for each of CONTENTS (checkpoints of MODELS, with commas between) and writes how each sync ended into
REPORT: ``True``, ``False``, or the name of what was raised. KILL is ``RANK:EVENT``: that rank kills itself with SIGKILL
when its last sync has told EVENT: an action of a remedy, or ``phase:`` and a phase that begins.
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

import sglang_telemetry
from sglang_telemetry.events import Event, PhaseStarted, Remedied, SyncStarted
from sglang_telemetry.names import Component
from sglang_telemetry.sinks.journal import JournalSink
from tests.harness.minimind import leave_together
from tests.harness.policy import Policy, policy_engine

COLLECTIVE_SECONDS = 8.0


class Killer:
    """A sink that ends the process as soon as an event was told in the last sync."""

    component = Component.SINK

    def __init__(self, what: str, sequence: int) -> None:
        self._what, self._sequence, self._armed = what, sequence, False

    def emit(self, event: Event) -> None:
        """Look, and kill."""
        if isinstance(event, SyncStarted):
            self._armed = event.sequence == self._sequence
        name = event.remedy.action.value if isinstance(event, Remedied) else None
        name = f"phase:{event.phase}" if isinstance(event, PhaseStarted) else name
        if self._armed and name == self._what:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        """Nothing."""


def main(url: str, models: str, folder: str, report: str, contents: str, kill: str = "") -> None:
    """Sync."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=COLLECTIVE_SECONDS))
    engine = policy_engine(url, Path(folder))
    wanted = contents.split(",")
    rank, _, what = kill.partition(":")
    mine = rank == str(dist.get_rank())
    sinks = [JournalSink(), *([Killer(what, len(wanted))] if mine else [])]
    sglang_telemetry.instrument(engine, run="ranks", sinks=sinks)
    policy = Policy(Path(models))
    with open(f"{report}.{dist.get_rank()}", "w", encoding="utf-8", buffering=1) as file:
        for policy.content in wanted:
            try:
                print(engine.update_policy(policy), file=file)
            except RuntimeError as error:
                print(type(error).__name__, file=file)
    leave_together()


if __name__ == "__main__":
    main(*sys.argv[1:])
