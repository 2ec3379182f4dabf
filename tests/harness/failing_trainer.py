"""A trainer without torch that does as it is told on its standard input, one sync a line, until the input ends.

usage: failing_trainer.py JOURNALS URL CHECKPOINT_FOLDER TIMEOUT THEN

A line is ``whole`` (a good checkpoint), ``cut`` (its file is truncated), ``no_memory`` (it does not fit into the
process) or ``bug`` (the engine fails before it begins). THEN is ``ends`` (a failed sync ends the process with its
exception) or ``goes_on``. The run's name comes from SGLANG_TELEMETRY_RUN, rank and world size from RANK and WORLD_SIZE.
"""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import requests

import sglang_telemetry

BYTES = 1 << 16


class Weights:
    """A model of one tensor, with the methods of a Hugging Face model that an engine needs.

    Args:
        kind: What is the matter with it, as in the usage.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def state_dict(self) -> bytes:
        """The tensor's bytes."""
        if self._kind != "no_memory":
            return bytes(BYTES)
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, before[1]))
        try:
            return bytes(1 << 31)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    def save_pretrained(self, path: str, state_dict: bytes) -> None:
        """Write ``model.safetensors`` under another name first, so that a reader never sees half of it."""
        os.makedirs(path, exist_ok=True)
        tensor = {"dtype": "F16", "shape": [len(state_dict) // 2], "data_offsets": [0, len(state_dict)]}
        header = json.dumps({"w": tensor}).encode()
        content = len(header).to_bytes(8, "little") + header + state_dict
        new = Path(path) / "model.safetensors.new"
        new.write_bytes(content[: len(content) // 2] if self._kind == "cut" else content)
        new.rename(new.with_suffix(""))


class Engine:
    """Saves to a shared folder and posts its path.

    Args:
        url: The server.
        folder: That trainer and server see.
        timeout: Seconds, per socket operation.
    """

    def __init__(self, url: str, folder: str, timeout: float) -> None:
        self.base_url, self.shared_ckpt_path, self.timeout = url, folder, timeout
        self.http: Any = requests
        self.names = {"w": "model.w"}

    def update_policy(self, model: Weights, first: str) -> bool:
        """Push the weights, beginning with the tensor of that name."""
        self.names[first]
        model.save_pretrained(self.shared_ckpt_path, state_dict=model.state_dict())
        route = f"{self.base_url}/update_weights_from_disk"
        answer = self.http.post(route, json={"model_path": self.shared_ckpt_path}, timeout=self.timeout)
        if answer.status_code != 200:
            raise RuntimeError(f"SGLang did not take the weights: {answer.status_code} {answer.text}")
        return True


def main(journals: str, url: str, folder: str, timeout: str, then: str) -> None:
    """Sync as told."""
    engine = Engine(url, folder, float(timeout))
    sglang_telemetry.instrument(engine, sinks=[sglang_telemetry.JournalSink(journals)])
    for line in sys.stdin:
        kind = line.strip()
        try:
            engine.update_policy(Weights(kind), "b" if kind == "bug" else "w")
        except Exception:
            if then == "ends":
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
