"""The real SGLang server as an object: started, frozen, found dead, started again.

It runs in a session of its own, and is ended by the pids of its own process tree, found through ``/proc``.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import requests

HERE = Path(__file__).parent
START_SECONDS = 120.0
"""It took 15 to 21 s where this was measured (SGLang 0.5.23, two CPU cores)."""


def free_port() -> int:
    """A TCP port on the loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """The pids below ``pid``, at the moment of asking."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue  # it ended meanwhile
        children.setdefault(parent, []).append(int(stat.parent.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def command_line(pid: int) -> str:
    """What ``ps`` shows of it; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class RealSGLang:
    """A real SGLang server on the loopback.

    Args:
        venv: The virtual environment that ``setup.sh`` made.
        model: The checkpoint folder it starts with.
        port: Where to listen; a free one unless given. It stays the same over restarts.
        flags: Further ``sglang.launch_server`` flags, such as ``--admin-api-key``.
        environment: More variables.
    """

    def __init__(
        self,
        venv: Path,
        model: Path,
        port: int | None = None,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.venv = venv
        self.model = model
        self.port = port or free_port()
        self.flags = tuple(flags)
        self.environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._tree: set[int] = set()
        self._log = Path(tempfile.mkstemp(prefix="real-sglang-", suffix=".log")[1])

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def host_port(self) -> str:
        """Where it listens, as the ``server`` label has it."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process that serves HTTP."""
        if self._process is None:
            raise RuntimeError("the server was not started; call start() first")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process that serves HTTP runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def scheduler_pids(self) -> list[int]:
        """The processes that hold the weights, known by the title they give themselves (``sglang::scheduler``)."""
        return [pid for pid in descendants(self.pid) if "scheduler" in command_line(pid)]

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that the server wrote."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def start(self) -> "RealSGLang":
        """Start it and return when it answers.

        Raises:
            RuntimeError: It ended, or did not answer within ``START_SECONDS``; with the tail of its log.
        """
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [HERE / "start.sh", self.venv, str(self.port), self.model, *self.flags],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                how = "does not answer" if ended is None else f"ended with {ended}"
                tail = self.log_tail()
                self._end_tree()
                raise RuntimeError(f"the real SGLang server {how} after its start; its log ends with:\n{tail}")
            time.sleep(0.1)
        self._tree = {self.pid, *descendants(self.pid)}
        return self

    def stop_scheduler(self) -> None:
        """Freeze the processes that hold the weights: requests are taken and not answered."""
        for pid in self.scheduler_pids:
            os.kill(pid, signal.SIGSTOP)

    def continue_scheduler(self) -> None:
        """Let them go on."""
        for pid in self.scheduler_pids:
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the whole process tree at once, as the kernel's OOM killer or a lost node would."""
        self._end_tree()

    def wait_dead(self, timeout: float = 60.0) -> None:
        """Wait until no process of it is left and its port refuses connections.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            TimeoutError: It is still there.
        """
        deadline = time.monotonic() + timeout
        while self._process is not None and (self._process.poll() is None or not all(map(gone, self._tree))):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the real SGLang server still runs after {timeout:g} s")
            time.sleep(0.05)

    def restart(self) -> None:
        """End it if it still runs, and start it again on the same port with its start weights."""
        self._end_tree()
        self.start()

    def close(self) -> None:
        """End the whole process tree and remove its log."""
        self._end_tree()
        self._log.unlink(missing_ok=True)

    def __enter__(self) -> "RealSGLang":
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answers(self) -> bool:
        with requests.Session() as session:
            session.trust_env = False  # the loopback is not behind a proxy
            try:
                return session.get(f"{self.url}/ready", timeout=2).status_code == 200
            except requests.RequestException:
                return False

    def _end_tree(self) -> None:
        """Kill by pid what is known to be ours, children that appeared later too, and reap the parent."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._tree |= {self._process.pid, *descendants(self._process.pid)}
        for pid in self._tree:
            if self._ours(pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self._process.wait(timeout=30)
        self.wait_dead()
        self._process = None
        self._tree = set()

    def _ours(self, pid: int) -> bool:
        """Whether that pid is still a process of the session that we started, and not a later one with its number."""
        try:
            session = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
        except (OSError, ValueError):
            return False
        return self._process is not None and session == self._process.pid
