"""Free ports, waiting for a condition, and children that are stopped by their pid."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_until(condition: Callable[[], object], what: str, timeout: float = 15.0) -> None:
    """Poll until ``condition()`` is true; fails naming ``what`` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        time.sleep(0.02)


def tool(name: str) -> str:
    """Path of one of Debian's tools; the test is skipped where it is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing: apt-get install prometheus prometheus-alertmanager")
    return str(path)


def output_of(name: str, *arguments: str, timeout: float | None = None) -> str:
    """What one of Debian's tools prints; it has to be content."""
    command = [tool(name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Child:
    """A daemon whose output goes to a file.

    Args:
        command: Program and arguments.
        log: The file.
        environment: More variables.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=os.environ | (environment or {})
            )

    def wait_until(self, condition: Callable[[], object], what: str, timeout: float = 30.0) -> None:
        """Wait, and show the daemon's last words when it did not work out."""
        try:
            wait_until(lambda: condition() or self.process.poll() is not None, what, timeout)
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode} before: {what}")
        except AssertionError as error:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise AssertionError(f"{error}\n{self.process.args!r}\n{tail}") from None

    def close(self) -> None:
        """SIGTERM, and SIGKILL when that is not enough."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
