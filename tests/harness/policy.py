"""A model with the tensors of a checkpoint, which saves whatever checkpoint it is told to, and the engine for it."""

import shutil
from pathlib import Path
from typing import Any

import requests
import torch
from torch import nn

from sglang_telemetry.checkpoint.headers import read_headers
from tests.harness.minimind import SharedFolderEngine


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


def policy_engine(url: str, folder: Path, *, timeout: float = 20, http: Any = None) -> SharedFolderEngine:
    """An engine that saves to ``folder/checkpoint`` what a :class:`Policy` saves, and nothing else.

    Args:
        url: The server.
        folder: Where the checkpoint's folder is.
        timeout: Seconds.
        http: What it sends with; a session of its own unless given.
    """
    engine = SharedFolderEngine(url, str(folder / "checkpoint"), timeout=timeout)
    engine.tokenizer = NoTokenizer()  # type: ignore[assignment]
    engine.http = http or requests.Session()
    return engine
