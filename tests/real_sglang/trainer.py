"""Two ranks that sync a real checkpoint, one way or another, each time they are told to.

usage: torchrun --nproc_per_node 2 -m tests.real_sglang.trainer URL CHECKPOINT_FOLDER ORDERS START_MODEL

An order is ``good``, ``missing_folder``, ``empty_folder``, ``wrong_shape``, or ``timeout``; ``stop`` ends the trainer.
"""

import itertools
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import sglang_telemetry
from tests.demo.train import FromCheckpoint, WrongShape, order
from tests.harness.minimind import SharedFolderEngine, leave_together


class Unsaved(FromCheckpoint):
    """Saves nothing."""

    def save_pretrained(self, path: str, **named: object) -> None:  # type: ignore[override]
        """Leave nothing behind, not even what was there."""
        shutil.rmtree(path, ignore_errors=True)


class NoTokenizer:
    """Saves nothing, so that the folder is not made."""

    def save_pretrained(self, path: str) -> None:
        """Do nothing."""


def main(url: str, checkpoint: str, orders: str, start: str) -> None:
    """Obey."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    right, unsaved = FromCheckpoint(Path(start)), Unsaved(Path(start))
    engine = SharedFolderEngine(url, checkpoint, timeout=60)
    tokenizer = engine.tokenizer
    sglang_telemetry.instrument(engine, run="real")
    for step in itertools.count(1):
        what = order(Path(orders), step)
        if what == "stop":
            break
        with torch.no_grad():
            right.layers[0].weight.mul_(1.5)  # other weights each time
        engine.timeout = 2 if what == "timeout" else 60
        engine.tokenizer = NoTokenizer() if what == "missing_folder" else tokenizer  # type: ignore[assignment]
        model = {"missing_folder": unsaved, "empty_folder": unsaved, "wrong_shape": WrongShape(right)}.get(what, right)
        try:
            engine.update_policy(model)
        except RuntimeError as error:
            assert str(error) == "SGLang update_policy failed"  # noqa: PT017
    leave_together()


if __name__ == "__main__":
    main(*sys.argv[1:])
