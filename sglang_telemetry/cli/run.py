"""``sglang-telemetry run -- torchrun ...``: the command, with an exporter beside it, and nothing changed for it.

Signals are taken one by one with ``sigtimedwait``, with no handler and no thread: what a terminal sent to the whole
group is not sent twice, what another process sent is passed on.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sglang_telemetry.cli.exporter import OF_THE_EXPORTER
from sglang_telemetry.cli.processes import kill_tree
from sglang_telemetry.exporter.claim import serving
from sglang_telemetry.exporter.settings import parse_duration, parse_listen
from sglang_telemetry.identity import label_value, script_name
from sglang_telemetry.journal.folder import default_folder
from sglang_telemetry.journal.launch import LaunchJournal
from sglang_telemetry.names import DEFAULT_LISTEN, Env, LogEvent, release_command
from sglang_telemetry.text import is_terminal

EXPORTER_START_SECONDS = 5.0
REGULAR_SECONDS = 120.0
"""A scraper that has not come for so long is not waited for."""
IDLE_SECONDS = 5.0
"""An exporter that outlived its run, for another one's sake, ends when nobody has lived for so long, or the linger."""
_HEARD_BYTES = 1 << 20
_LINES_SHOWN = 40
_SENT_BY_KERNEL = 0x80  # si_code of a signal that a terminal made
_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_ASKED_TO_STOP = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "run",
        help="start a training with an exporter beside it",
        usage="sglang-telemetry run [--run NAME] [--dir D] [--listen HOST:PORT] [--linger 30s] -- COMMAND ...",
    )
    parser.add_argument("--run", default=None, help="stable name of the training job (default: the script's name)")
    parser.add_argument("--dir", default=None, help=f"folder of the journals (default: {Env.DIR}, else below /tmp)")
    parser.add_argument("--listen", default=DEFAULT_LISTEN, help="where the exporter serves (default: %(default)s)")
    parser.add_argument(
        "--linger",
        default="30s",
        help="at the end, wait at most so long until every scraper has come once more; after a good end only where one "
        "comes at all (default: %(default)s)",
    )
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    parser.set_defaults(function=run)


def run(arguments: argparse.Namespace) -> int:
    """Start the command and wait for it.

    Returns:
        The command's exit code; 128 + N when signal N ended it; 127 when it cannot be found.

    Raises:
        ValueError: An argument makes no sense.
    """
    command = arguments.rest[1:] if arguments.rest[:1] == ["--"] else arguments.rest
    if not command:
        raise ValueError("no command: write `sglang-telemetry run -- torchrun train.py`")
    parse_listen(arguments.listen)
    linger = parse_duration(arguments.linger)
    if shutil.which(command[0]) is None:
        print(f"sglang-telemetry run: {command[0]}: no such command", file=sys.stderr)
        return 127
    folder = Path(arguments.dir) if arguments.dir else default_folder()
    name = label_value(arguments.run or os.environ.get(Env.RUN) or script_of(command))
    launch = LaunchJournal(folder.absolute(), launch_id=uuid.uuid4().hex, run=name)
    complaint = launch.start()
    if complaint is not None:
        _say(complaint)
    exporter = _Exporter(folder.absolute(), arguments.listen, idle_seconds=max(linger, IDLE_SECONDS))
    exporter.start()
    with _BlockedSignals() as before:
        try:
            child = _Child(command, launch.environment(), before)
        except OSError as error:
            _say(f"{command[0]} cannot be started: {error}")
            exporter.stop(others=launch.others_live())
            launch.close()
            return 126
        code = child.wait(launch)
        launch.ended(code)
        if code != 0 and not child.asked_to_stop:
            _show_last_failure(folder.absolute(), launch.launch_id)
            exporter.linger(linger, "the command failed")
        elif exporter.is_scraped():  # who saw the run live must see that it ended, or takes it for a host that is gone
            exporter.linger(linger, "the command ended")
        _say_left_paused(folder.absolute(), launch.launch_id, said=exporter.say_findings())
        exporter.stop(others=launch.others_live())
        launch.close()
    return code


def script_of(command: list[str]) -> str:
    """Name of the training script in a command: the last ``.py`` of its leading words, else the command's own."""
    for word in command:
        if word.endswith(".py"):
            return script_name(word)
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1].rpartition(".")[2]
    return script_name(command[0])


def _show_last_failure(folder: Path, launch_id: str) -> None:
    """Print the trace of the sync that failed last; it is no more than help, so that nothing it meets is an error."""
    try:
        from rich.console import Console

        from sglang_telemetry.cli.last_failure import last_failure
        from sglang_telemetry.cli.tree import print_tree

        spans = last_failure(folder, launch_id, ended_at=time.time())
        if spans:
            console = Console(stderr=True, highlight=False)
            print_tree(spans, console if console.is_terminal else Console(stderr=True, highlight=False, width=120))
    except Exception as error:
        _say(f"the failed sync cannot be shown: {type(error).__name__}: {error}")


def _say_left_paused(folder: Path, launch_id: str, *, said: list[str]) -> None:
    """Name the servers that wait for somebody's hand now, but for those of which the exporter said so already."""
    try:
        from sglang_telemetry.cli.left_paused import left_paused

        found = [line for line in said if LogEvent.SERVER_LEFT_PAUSED in line]
        for server, url in left_paused(folder, launch_id).items():
            if not any(server in line for line in found):
                _say(f"{server} was left paused, and rollouts wait until it is released:\n  {release_command(url)}")
    except Exception as error:
        _say(f"whether a server was left paused is not known: {type(error).__name__}: {error}")


class _Child:
    """The command; signals are blocked in this process while it runs."""

    def __init__(self, command: list[str], environment: dict[str, str], mask: set[signal.Signals]) -> None:
        self.asked_to_stop = False
        self._interrupts = 0
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the exit code away
        self._process = subprocess.Popen(
            command,
            env=os.environ | environment,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask) and None,
        )

    def wait(self, launch: LaunchJournal) -> int:
        while self._process.poll() is None:
            received = signal.sigtimedwait(_PASSED_ON | {signal.SIGCHLD}, 1.0)
            if received is None or received.si_signo == signal.SIGCHLD:
                continue
            number = signal.Signals(received.si_signo)
            if number in _ASKED_TO_STOP:
                self.asked_to_stop = True
                launch.signalled(number)
            self._interrupts += number is signal.SIGINT
            if self._interrupts >= 2:
                _say("interrupted twice: ending the command at once")
                kill_tree(self._process.pid)
            elif received.si_code != _SENT_BY_KERNEL:
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(number)
        code = self._process.returncode
        return 128 - code if code < 0 else code


class _Exporter:
    """The exporter beside the command: ours, or the one that serves the folder already."""

    def __init__(self, folder: Path, listen: str, *, idle_seconds: float) -> None:
        self._folder, self._listen, self._idle_seconds = folder, listen, idle_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._said = os.memfd_create("exporter")
        self._url: str | None = None

    def start(self) -> None:
        if serving(self._folder) is not None:
            self._await_url(lambda: serving(self._folder) is not None)
            _say(f"metrics at {self._url}/metrics (an exporter serves {self._folder} already)")
            self._say_traces()
            return
        idle = f"{self._idle_seconds:g}s"
        arguments = ("exporter", "--dir", str(self._folder), "--listen", self._listen, "--exit-when-idle", idle)
        # In a session of its own: a Ctrl-C at the terminal must not end it before the trainers have ended.
        process = subprocess.Popen(
            (sys.executable, "-m", "sglang_telemetry", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            env={
                **os.environ,
                Env.LOG_FORMAT: os.environ.get(Env.LOG_FORMAT) or ("console" if is_terminal(sys.stderr) else "json"),
            },
            start_new_session=True,
        )
        self._process = process
        self._await_url(lambda: process.poll() is None)
        if not self._url:
            reason = self._heard().strip() or "the exporter does not come up"
            _say(f"NO METRICS: {reason}\nThe command runs all the same; its journals stay in {self._folder}.")
            return
        _say(f"metrics at {self._url}/metrics")
        self._say_traces()

    def _say_traces(self) -> None:
        """Where traces go, or why they do not; nothing when nobody asked for them."""
        health = self._health()
        if health.get("traces"):
            _say(f"traces by {health['traces']['to']}")
        elif health.get("no_traces"):
            _say(f"NO TRACES: {health['no_traces']}")

    def _await_url(self, hopeful: Callable[[], bool]) -> None:
        deadline = time.monotonic() + EXPORTER_START_SECONDS
        self._url = serving(self._folder)
        while not self._url and hopeful() and time.monotonic() < deadline:
            time.sleep(0.02)
            self._url = serving(self._folder)

    def is_scraped(self) -> bool:
        """Somebody comes regularly."""
        return bool(self._url) and any(at > time.time() - REGULAR_SECONDS for at in self._scrapers().values())

    def linger(self, seconds: float, why: str) -> None:
        """Wait until everybody who scraped has scraped once more, so that the last counts are seen."""
        if not self._url or seconds <= 0:
            return
        since = time.time()
        deadline = time.monotonic() + seconds
        _say(f"{why}: waiting up to {seconds:g} s for the last scrape (Ctrl-C ends this)")
        while time.monotonic() < deadline:
            received = signal.sigtimedwait(_PASSED_ON, 0.25)
            if received is not None and received.si_signo in _ASKED_TO_STOP:
                return
            seen = self._scrapers()
            # Who has not come for long, such as a person with curl, does not come every few seconds.
            regular = [at for at in seen.values() if at > since - REGULAR_SECONDS]
            if seen and all(at > since for at in regular):
                return

    def say_findings(self) -> list[str]:
        """What the exporter found out about servers while the command ran; the last of it.

        Returns:
            The lines.
        """
        lines = [line for line in self._heard().splitlines() if not line.startswith(OF_THE_EXPORTER)]
        shown = list(itertools.dropwhile(lambda line: line.startswith(" "), lines[-_LINES_SHOWN:]))
        if shown:
            _say("the exporter found out:\n" + "\n".join(shown))
        return shown

    def _heard(self) -> str:
        """The end of what it has written; it shares our file position, so that must not be moved."""
        size = os.fstat(self._said).st_size
        heard = os.pread(self._said, _HEARD_BYTES, max(0, size - _HEARD_BYTES)).decode(errors="replace")
        return heard if size <= _HEARD_BYTES else heard.partition("\n")[2]

    def stop(self, *, others: bool) -> None:
        """Stop the exporter if it is ours and nobody else needs it; otherwise it ends by itself when idle."""
        if self._process is None or self._process.poll() is not None or others:
            return
        self._process.terminate()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _scrapers(self) -> dict[str, float]:
        try:
            return {str(who): float(at) for who, at in self._health()["scrapers"].items()}
        except (KeyError, ValueError, AttributeError, TypeError):
            return {}

    def _health(self) -> dict[str, Any]:
        parts = urlsplit(self._url or "")
        try:
            # http.client reads no proxy variable: this never leaves the machine.
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=2.0)
            connection.request("GET", "/healthz")
            answer = json.loads(connection.getresponse().read())
            return answer if isinstance(answer, dict) else {}
        except (OSError, ValueError, http.client.HTTPException):
            return {}


class _BlockedSignals:
    """While it is entered, signals wait to be taken one by one; yields the mask there was before."""

    def __enter__(self) -> set[signal.Signals]:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
        return {signal.Signals(number) for number in self._before}

    def __exit__(self, *exception: object) -> None:
        while signal.sigtimedwait(_PASSED_ON, 0) is not None:  # meant for a command that is over
            continue
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more: the command's exit code still counts
        print(f"sglang-telemetry run: {text}", file=sys.stderr, flush=True)
