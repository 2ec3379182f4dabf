"""The demo's trainer: a real torch model on real ranks, an engine of MiniMind's shape, and one line of ours.

usage: torchrun --nproc_per_node N -m tests.demo.train URL CHECKPOINT_FOLDER ORDERS [START_MODEL]

ORDERS is a folder in which a file ``step-N`` starts step N; its content is ``train``, ``wrong_shape`` or ``stop``.
"""

import itertools
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sglang_telemetry
from tests.harness.minimind import SavableModel, SharedFolderEngine, leave_together

WIDTH = 64


class FromCheckpoint(SavableModel):
    """The weights of a real model, as SGLang wants them written: names, config and tokenizer beside them.

    Args:
        start: A checkpoint folder with ``pytorch_model.bin``.
    """

    def __init__(self, start: Path) -> None:
        super().__init__(WIDTH)
        self._start = start
        self._weights = torch.load(start / "pytorch_model.bin", weights_only=True)

    def state_dict(self, *args: object, **named: object) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """The weights, a little other than the last time."""
        drift = self.layers[0].weight.detach().abs().mean() * 1e-2
        return {name: tensor.float() + drift for name, tensor in self._weights.items()}

    def save_pretrained(self, path: str, **named: object) -> None:  # type: ignore[override]
        """``pytorch_model.bin`` with all that belongs to it."""
        super().save_pretrained(path, **named)  # type: ignore[arg-type]
        for file in self._start.glob("*.json"):
            shutil.copy(file, path)


class WrongShape(SavableModel):
    """Another model than the one that the server runs.

    Args:
        right: The one that it runs.
    """

    def __init__(self, right: SavableModel) -> None:
        super().__init__(WIDTH)
        self._right = right

    def state_dict(self, *args: object, **named: object) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """One tensor is narrower."""
        weights = dict(self._right.state_dict())
        name = next(name for name, tensor in weights.items() if tensor.dim() == 2)
        return weights | {name: weights[name][:, : weights[name].shape[1] // 2].contiguous()}

    def save_pretrained(self, path: str, **named: object) -> None:  # type: ignore[override]
        """As the right one is saved."""
        self._right.save_pretrained(path, **named)  # type: ignore[arg-type]


def order(folder: Path, step: int) -> str:
    """Wait for what this step is to do."""
    path = folder / f"step-{step}"
    while not path.exists():
        time.sleep(0.01)
    return path.read_text()


def main(url: str, checkpoint: str, orders: str, start: str = "") -> None:
    """Train a step, push the policy, again and again."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    policy = FromCheckpoint(Path(start)) if start else SavableModel(WIDTH)
    model: nn.Module = DistributedDataParallel(policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = SharedFolderEngine(url, checkpoint, timeout=60)
    sglang_telemetry.instrument(engine)  # the one line
    for step in itertools.count(1):
        what = order(Path(orders), step)
        if what == "stop":
            break
        batch = torch.randn(8, WIDTH)
        loss = (model(batch) - batch.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        try:
            engine.update_policy(WrongShape(policy) if what == "wrong_shape" else model)
        except RuntimeError as error:
            print(f"rank {dist.get_rank()}: {error} (most trainers end here; this one goes on)", file=sys.stderr)
    leave_together()


if __name__ == "__main__":
    main(*sys.argv[1:])
