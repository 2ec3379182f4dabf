"""The journal of ``sglang-telemetry run``: that it lives, and whether a stop was asked for."""

import time
from pathlib import Path

from sglang_telemetry.events import LaunchEnded, LaunchSignalled, LaunchStarted
from sglang_telemetry.journal.format import encode
from sglang_telemetry.journal.lock import is_held_on
from sglang_telemetry.journal.retention import segments, stem_of
from sglang_telemetry.journal.writer import JournalWriter
from sglang_telemetry.names import Env


class LaunchJournal:
    """One start of a command; an error of its own never stops that command.

    Args:
        folder: Where the trainers will write theirs.
        launch_id: New for every start.
        run: Stable name of the training job.
    """

    def __init__(self, folder: Path, *, launch_id: str, run: str) -> None:
        self._folder, self.launch_id, self._run = folder, launch_id, run
        self._writer = JournalWriter(folder, "launch-")

    def start(self) -> str | None:
        """Make the journal.

        Returns:
            What is wrong, for the user, or None.
        """
        try:
            self._writer.open_segment()
            self._writer.write(encode(LaunchStarted(launch_id=self.launch_id, run=self._run, at=time.time())))
        except OSError as error:
            return f"the journal folder cannot be used: {error}; give --dir a folder that you may write"
        return None

    def environment(self) -> dict[str, str]:
        """What the command gets to know."""
        return {Env.DIR: str(self._folder), Env.RUN: self._run, Env.LAUNCH_ID: self.launch_id}

    def signalled(self, number: int) -> None:
        """A stop was asked for: written before it is passed on, so that nobody is missed who was stopped."""
        self._write(encode(LaunchSignalled(launch_id=self.launch_id, signal=number, at=time.time())))

    def ended(self, code: int) -> None:
        """The command ended."""
        self._write(encode(LaunchEnded(launch_id=self.launch_id, exit_code=code, at=time.time())))

    def others_live(self) -> bool:
        """Does any other process write a journal in this folder?"""
        newest = {stem_of(path): path for path in segments(self._folder)}
        return any(is_held_on(path) for path in newest.values())

    def close(self) -> None:
        """Let go."""
        self._writer.close()

    def _write(self, line: bytes) -> None:
        try:
            self._writer.write(line)
        except OSError:  # said at the start
            return
