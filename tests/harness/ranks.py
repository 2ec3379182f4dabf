"""A trainer of real torch ranks over gloo, started by torchrun.

usage: torchrun --nproc_per_node N ranks.py URL SYNCS CHECKPOINT_FOLDER [KILL_RANK PHASE]

With KILL_RANK, that rank kills itself with SIGKILL when its last sync is in PHASE (``save`` or ``barrier``).
"""

import os
import signal
import sys
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sglang_telemetry
from tests.harness.minimind import SavableModel, SharedFolderEngine, leave_together


class Suicidal(SavableModel):
    """Dies while it is saved."""

    def save_pretrained(self, path: str, **named: Any) -> None:
        """Die."""
        os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, syncs: str, folder: str, kill_rank: str = "-1", phase: str = "") -> None:
    """Train nothing, sync often."""
    dist.init_process_group("gloo")
    engine = SharedFolderEngine(url, folder, timeout=60)
    sglang_telemetry.instrument(engine, run=os.environ.get("SGLANG_TELEMETRY_RUN", "ranks"))
    model = SavableModel()
    mine = dist.get_rank() == int(kill_rank)
    for number in range(int(syncs)):
        if mine and number == int(syncs) - 1:
            if phase == "save":
                model = Suicidal()
            else:
                dist.barrier = lambda: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        engine.update_policy(DistributedDataParallel(model))
    leave_together()


if __name__ == "__main__":
    main(*sys.argv[1:])
