"""A model with the tensors of a checkpoint, which saves whatever checkpoint it is told to."""

import shutil
from pathlib import Path

import torch
from torch import nn

from sglang_telemetry.checkpoint.headers import read_headers


class Policy(nn.Module):
    """Saves copies of checkpoints that are there, good and broken ones.

    Args:
        models: The folder of the checkpoints; that named ``v2`` is of the model.
    """

    def __init__(self, models: Path) -> None:
        super().__init__()
        self._models, self.content = models, "v2"
        for name, spec in read_headers(str(models / "v2")).tensors.items():
            *path, last = name.split(".")
            module: nn.Module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module._modules[part]  # type: ignore[assignment]
            module.register_parameter(last, nn.Parameter(torch.zeros(spec.shape)))

    def save_pretrained(self, path: str, **_: object) -> None:
        """Over what is there."""
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self._models / self.content, path)


class NoTokenizer:
    """Saves nothing."""

    def save_pretrained(self, path: str) -> None:
        """Do nothing."""
