"""An engine of the shape that MiniMind's has: what it calls, in which order, and how it hides what went wrong."""

import os
from typing import Any

import requests
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def leave_together() -> None:
    """End the process group when all ranks are out of their last collective.

    gloo's barrier lets one rank go while another is still in it; if the first one's process ends then, the other's
    barrier fails.
    """
    store = dist.distributed_c10d._get_default_store()
    store.set(f"left/{dist.get_rank()}", "")
    store.wait([f"left/{rank}" for rank in range(dist.get_world_size())])
    dist.destroy_process_group()


class FileTokenizer:
    """A tokenizer that writes one small file."""

    def save_pretrained(self, path: str) -> None:
        """Write ``tokenizer.json``."""
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "tokenizer.json"), "w", encoding="utf-8") as file:
            file.write("{}")


class SavableModel(nn.Module):
    """A small torch model with the one method of a Hugging Face model that an engine needs.

    Args:
        width: Its one layer has ``width`` x ``width`` weights.
        layers: Number of layers.
    """

    def __init__(self, width: int = 32, layers: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All layers, one after the other."""
        for layer in self.layers:
            x = layer(x)
        return x

    def save_pretrained(
        self, path: str, state_dict: dict[str, torch.Tensor] | None = None, safe_serialization: bool = True
    ) -> None:
        """Write ``pytorch_model.bin`` into a folder, over what is there."""
        os.makedirs(path, exist_ok=True)
        torch.save(self.state_dict() if state_dict is None else state_dict, os.path.join(path, "pytorch_model.bin"))


class SharedFolderEngine:
    """Saves to a shared folder, posts its path, and tells all ranks how it went.

    Args:
        base_url: The server.
        shared_ckpt_path: Folder that trainer and server see.
        timeout: Seconds, per socket operation.
    """

    def __init__(self, base_url: str, shared_ckpt_path: str = "./sglang_ckpt", timeout: float = 120) -> None:
        self.base_url = base_url.rstrip("/")
        self.shared_ckpt_path = shared_ckpt_path
        self.timeout = timeout
        self.tokenizer = FileTokenizer()
        self.http: Any = requests

    def update_policy(self, model: nn.Module) -> bool:
        """Push the model's weights into the server; raises on every rank when that failed."""
        ok = True
        if not dist.is_initialized() or dist.get_rank() == 0:
            try:
                plain = model.module if isinstance(model, DistributedDataParallel) else model
                plain = getattr(plain, "_orig_mod", plain)
                folder = os.path.abspath(self.shared_ckpt_path)
                half = {name: tensor.detach().half().cpu() for name, tensor in plain.state_dict().items()}
                plain.save_pretrained(folder, state_dict=half, safe_serialization=False)
                self.tokenizer.save_pretrained(folder)
                answer = self.http.post(
                    f"{self.base_url}/update_weights_from_disk", json={"model_path": folder}, timeout=self.timeout
                )
                if answer.status_code != 200:
                    print(f"[engine] weights were not taken: {answer.status_code} {answer.text}")
                    ok = False
            except Exception as error:
                print(f"[engine] weights were not sent: {error}")
                ok = False
        if dist.is_initialized():
            outcome = torch.tensor([1 if ok else 0])
            dist.broadcast(outcome, src=0)
            dist.barrier()
            ok = bool(outcome.item())
        if not ok:
            raise RuntimeError("SGLang update_policy failed")
        return ok

    def flush_cache(self) -> bool:
        """Ask the server to flush its cache."""
        return bool(self.http.post(f"{self.base_url}/flush_cache", timeout=30).status_code == 200)


class ManyServersEngine(SharedFolderEngine):
    """Saves once, and sends the path to each of several servers, to the end.

    Args:
        urls: The servers.
        shared_ckpt_path: Folder that trainer and servers see.
        timeout: Seconds, per socket operation.
    """

    def __init__(self, urls: list[str], shared_ckpt_path: str, timeout: float = 5) -> None:
        super().__init__(urls[0], shared_ckpt_path, timeout)
        self.urls = urls

    def update_policy(self, model: Any) -> bool:
        """Push the model's weights into the servers; raises when one did not take them."""
        model.save_pretrained(self.shared_ckpt_path)
        body = {"model_path": self.shared_ckpt_path}
        posts = [f"{url}/update_weights_from_disk" for url in self.urls]
        if {self.http.post(url, json=body, timeout=self.timeout).status_code for url in posts} != {200}:
            raise RuntimeError("SGLang update_policy failed")
        return True
