"""Trainers and servers of one test, each trainer a process that waits for its orders."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sglang_telemetry.names import Env
from sglang_telemetry.testing import FakeSGLang, Fault
from tests.harness.prometheus import Prometheus
from tests.harness.training import ROOT

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class Trainer:
    """A ``failing_trainer.py`` that waits for its orders.

    Args:
        command: What is run.
        log: Takes what it prints.
        environment: All its variables.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=ROOT,
                text=True,
            )

    def sync(self, weights: str = "whole") -> None:
        """Let it sync once; see ``failing_trainer.py`` for the weights."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{weights}\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End its input, and it when that is not enough."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(15)
        finally:
            self.process.kill()
            self.process.wait(10)


class Scene:
    """Where failures happen; what is started here ends with the block.

    Args:
        folder: For checkpoints and logs.
        journals: That the exporter reads.
        prometheus: Scrapes that exporter.
    """

    def __init__(self, folder: Path, journals: Path, prometheus: Prometheus) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.journals, self.prometheus = folder, journals, prometheus
        self.stack = ExitStack()

    def server(self, *faults: Fault, key: str | None = None, seconds: float | None = None) -> FakeSGLang:
        """A server whose next updates meet these faults."""
        one = self.stack.enter_context(FakeSGLang(admin_api_key=key))
        for fault in faults:
            one.inject(fault, seconds=seconds)
        return one

    def trainer(
        self,
        run: str,
        url: str,
        *,
        then: str = "ends",
        folder: Path | None = None,
        timeout: float = 20.0,
        proxy: str = "",
        remedies: str = "",
    ) -> Trainer:
        """A trainer of that run, which has started and waits for orders; ``then`` is what it does after a failure."""
        arguments = (str(self.journals), url, str(folder or self.folder / run), str(timeout), then)
        variables = {name: value for name, value in (("http_proxy", proxy), (Env.REMEDIES, remedies)) if value}
        return self.start(run, "-m", "tests.harness.failing_trainer", *arguments, log=f"{run}.log", **variables)

    def start(self, run: str, *command: str, log: str, **variables: str) -> Trainer:
        """A Python process of that run, without the proxies of this one."""
        own = {name: value for name, value in os.environ.items() if name.lower() not in _PROXIES}
        environment = own | {Env.RUN: run, Env.DIR: str(self.journals), "PYTHONPATH": str(ROOT)} | variables
        trainer = Trainer(command, self.folder / log, environment)
        self.stack.callback(trainer.close)
        return trainer

    def wait_seen_up(self, server: str) -> None:
        """Until the exporter has asked that server, and Prometheus knows."""
        self.prometheus.wait_for(f'server:weight_sync_server_up_timestamp_seconds:max{{server="{server}"}}', 60)

    def __enter__(self) -> "Scene":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()
