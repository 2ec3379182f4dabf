"""A ``FakeSGLang`` in a process of its own: the handle that the spawning side holds.

Orders go over the child's standard input and come back over its standard output, a JSON line each; when the parent
dies, the input ends and the child goes too.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from sglang_telemetry.testing.fake_faults import Fault
from sglang_telemetry.testing.fake_state import Request, ServerState, Settings

_MAIN = "from sglang_telemetry.testing.fake_sglang import main; main()"
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class FakeSGLangProcess:
    """What ``FakeSGLang.spawn`` returns; controlled like a ``FakeSGLang``.

    Args:
        settings: How to start it.
        port: Where to listen; 0 for a free port.
    """

    def __init__(self, settings: Settings, port: int) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process, self._port = self._start(port)

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """Its TCP port; the same over restarts."""
        return self._port

    @property
    def host_port(self) -> str:
        """Where it listens, as the ``server`` label has it."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Of the process that runs now, or ran last."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def requests(self) -> tuple[Request, ...]:
        """Every request that this process read, in order; those of a process that died are gone with it."""
        answer = self._order({"do": "requests"})
        return tuple(Request(**got | {"body": base64.b64decode(got["body"])}) for got in answer)

    @property
    def updates(self) -> tuple[Request, ...]:
        """Those that were sent to ``/update_weights_from_disk``."""
        return tuple(request for request in self.requests if request.path == "/update_weights_from_disk")

    def inject(self, fault: Fault, times: int = 1, seconds: float | None = None) -> None:
        """Let the next updates that are let in meet a fault; the queue dies with the process.

        Args:
            fault: Which one; faults are met in the order in which they were injected.
            times: How many updates meet it.
            seconds: How long each waits first; 1 s for ``Fault.SLOW`` and 0 for the others unless given.

        Raises:
            RuntimeError: The process is dead.
        """
        self._order({"do": "inject", "fault": fault, "times": times, "seconds": seconds})

    def state(self) -> ServerState:
        """What it holds now.

        Raises:
            RuntimeError: The process is dead, and what it held is gone.
        """
        answer = self._order({"do": "state"})
        return ServerState(**answer | {"pending_faults": tuple(map(Fault, answer["pending_faults"]))})

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def wait_dead(self, timeout: float = 10.0) -> None:
        """Wait until the process is gone.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            TimeoutError: It still runs.
        """
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the server at {self.host_port} still runs after {timeout:g} s") from None

    def restart(self) -> None:
        """Start a new process on the same port: start weights, version ``default``, not paused."""
        self.close()
        self._process, self._port = self._start(self._port)

    def close(self) -> None:
        """Kill it if it runs, and close its pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # an order that it did not live to read

    def __enter__(self) -> "FakeSGLangProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FakeSGLangProcess(url={self.url!r}, pid={self.pid}, alive={self.alive})"

    def _start(self, port: int) -> tuple[subprocess.Popen[str], int]:
        settings = self._settings
        command = [sys.executable, "-c", _MAIN, "--control", "--port", str(port)]
        command += ["--model-path", settings.model_path]
        command += ["--health-seconds", str(settings.health_seconds), "--death-seconds", str(settings.death_seconds)]
        path = os.pathsep.join(filter(None, (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH"))))
        keys = {"--admin-api-key-file": settings.admin_api_key, "--api-key-file": settings.api_key}
        with tempfile.TemporaryDirectory(prefix="fake-sglang-") as folder:  # readable by this user alone
            for option, key in keys.items():
                if key is not None:
                    file = Path(folder, option.strip("-"))
                    file.write_text(key)
                    command += [option, str(file)]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )
            assert process.stdout is not None
            line = process.stdout.readline()
        if not line:
            process.wait()
            process.stdout.close()
            if process.stdin is not None:
                process.stdin.close()
            raise RuntimeError(f"the fake SGLang server did not start; it ended with {process.returncode}")
        return process, int(line.rpartition(":")[2])

    def _order(self, order: dict[str, Any]) -> Any:
        with self._lock:
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None
            assert stdout is not None
            try:
                stdin.write(json.dumps(order) + "\n")
                stdin.flush()
                line = stdout.readline()
            except (OSError, ValueError):
                line = ""
        if not line:
            raise RuntimeError(f"the server at {self.host_port} is dead; call restart() first")
        return json.loads(line)
