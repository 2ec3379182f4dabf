"""The demo's rollout server: the fake one, or the real one, with the same three troubles."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import requests

from sglang_telemetry.testing import FakeSGLang, Fault
from tests.harness.processes import wait_until

ROOT = Path(__file__).parents[2]


class Server(Protocol):
    """What the story needs of a server."""

    url: str
    start_model: str
    """A checkpoint folder for the trainer to start from; empty for a model of its own."""

    def busy(self) -> contextlib.AbstractContextManager[None]:
        """Inside, an update is answered 400 although the weights are taken."""

    def hang(self) -> None:
        """From now on an update gets no answer."""

    def restart(self) -> None:
        """It died: start it again, as its supervisor would."""

    def close(self) -> None:
        """End it."""


class FakeServer:
    """FakeSGLang in a process of its own.

    Args:
        folder: For its start model.
    """

    def __init__(self, folder: Path) -> None:
        import torch

        from tests.demo.train import WIDTH
        from tests.harness.minimind import SavableModel

        model = SavableModel(WIDTH)
        half: dict[str, torch.Tensor] = {name: tensor.half() for name, tensor in model.state_dict().items()}
        model.save_pretrained(str(folder / "start"), state_dict=half)
        self._server = FakeSGLang.spawn(folder / "start")
        self.url, self.start_model = self._server.url, ""

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """As the real one while it is paused in place."""
        self._server.inject(Fault.BUSY_WEIGHTS_APPLIED)
        yield

    def hang(self) -> None:
        """As the real one whose scheduler stands still."""
        self._server.inject(Fault.NEVER_ANSWERS)

    def restart(self) -> None:
        """With its start weights."""
        self._server.wait_dead()
        self._server.restart()

    def close(self) -> None:
        """Kill it."""
        self._server.close()


class RealServer:
    """SGLang itself, on the CPU, with a tiny model.

    Args:
        folder: For the models.
    """

    def __init__(self, folder: Path) -> None:
        from tests.real_sglang.server import HERE, RealSGLang

        venv = ROOT / ".venv-sglang"
        models = folder / "models"
        make = [venv / "bin" / "python", HERE / "make_tiny_model.py", models]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._server = RealSGLang(venv, models / "base").start()
        self.url, self.start_model = self._server.url, str(models / "v2_bin")

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """A long generation, paused in place."""
        session = requests.Session()
        session.trust_env = False
        body = {"text": "x", "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}}
        thread = threading.Thread(
            target=lambda: (
                contextlib.suppress(requests.RequestException).__enter__()
                or session.post(f"{self.url}/generate", json=body, timeout=120)
            )
        )
        thread.start()
        wait_until(self._generates, "the server generates")
        session.post(f"{self.url}/pause_generation", json={"mode": "in_place"}, timeout=10)
        yield
        session.post(f"{self.url}/continue_generation", json={}, timeout=10)
        thread.join()

    def hang(self) -> None:
        """Its scheduler is stopped."""
        self._server.stop_scheduler()

    def restart(self) -> None:
        """With its start weights."""
        self._server.wait_dead()
        self._server.restart()

    def close(self) -> None:
        """End it and all its processes."""
        self._server.continue_scheduler()
        self._server.close()

    def _generates(self) -> bool:
        answer = requests.get(f"{self.url}/v1/loads", timeout=5).json()
        return any(load.get("num_running_reqs", 0) for load in answer["loads"])
