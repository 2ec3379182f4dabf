"""The real exporter as a process of its own."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.processes import wait_until

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ExporterProcess:
    """``sglang-telemetry exporter`` on a free port.

    Args:
        folder: The journals.
        options: More options of the command.
        environment: More variables.
        prefix: Command that it is started with, such as ``ip netns exec NAME``.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        started = time.monotonic()
        self.process = subprocess.Popen(
            (
                *prefix,
                sys.executable,
                "-m",
                "sglang_telemetry",
                "exporter",
                "--dir",
                str(folder),
                "--listen",
                "127.0.0.1:0",
                *options,
            ),
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "/metrics serves" in line, line + self.process.stderr.read()
        self.url = line.split(": ", 1)[1].partition("/metrics")[0]
        self.start_seconds = time.monotonic() - started

    def get(self, path: str, accept: str = "") -> str:
        """Body of a page."""
        request = urllib.request.Request(self.url + path, headers={"Accept": accept})
        with _OPENER.open(request, timeout=30) as answer:
            return str(answer.read().decode())

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """One scrape, as name and labels to value."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.get("/metrics"))
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """One sample of one scrape, None when it is not there."""
        return self.samples().get((name, frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """Sum over the samples of that name that have these labels."""
        wanted = set(labels.items())
        return sum(value for (n, have), value in self.samples().items() if n == name and wanted <= have)

    def exemplars(self, name: str) -> dict[frozenset[tuple[str, str]], str]:
        """Trace ids that one scrape in OpenMetrics shows, by the labels of the sample without ``le``."""
        return {
            frozenset(item for item in sample.labels.items() if item[0] != "le"): sample.exemplar.labels["trace_id"]
            for family in parse_openmetrics(self.get("/metrics", accept=OPENMETRICS))  # type: ignore[no-untyped-call]
            for sample in family.samples
            if sample.name == name and sample.exemplar is not None
        }

    def wait_for_spans(self, *, processes: int, timeout: float = 30.0) -> int:
        """Wait until so many trainers are known to have ended and all spans have been sent; how many those are."""
        wait_until(
            lambda: self.total("weight_sync_process_exits_total") == processes, f"{processes} trainers ended", timeout
        )
        wait_until(lambda: self._traces()["waiting"] == 0, "all spans are sent", timeout)
        assert self._traces()["dropped"] == 0
        return int(self._traces()["sent"])

    def _traces(self) -> dict[str, Any]:
        return dict(json.loads(self.get("/healthz"))["traces"])

    def kill(self) -> None:
        """SIGKILL it."""
        self.process.kill()
        self.process.wait(10)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def close(self) -> int:
        """SIGTERM it; its exit code."""
        self.process.terminate()
        try:
            code = self.process.wait(10)
        finally:
            self.kill()
        return code

    def __enter__(self) -> "ExporterProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
