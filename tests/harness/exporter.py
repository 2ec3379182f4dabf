"""The real exporter as a process of its own."""

import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ExporterProcess:
    """``sglang-telemetry exporter`` on a free port.

    Args:
        folder: The journals.
        options: More options of the command.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        started = time.monotonic()
        self.process = subprocess.Popen(
            (
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
