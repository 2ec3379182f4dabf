"""Does this host see the same folder as the others? Each exporter writes a small file into it, and looks for theirs.

The one decision: a file system that hangs must show, so one thread touches the folder and another tells. Ages do not
compare the clocks of hosts: a file's age counts from when it was last seen to change here; when it is first seen, from
its distance to this exporter's own file, which the same file server stamped.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sglang_telemetry.events import WatchedPath
from sglang_telemetry.names import PROBE_FILE_SECONDS, PROBE_FOLDER, PROBE_SUFFIX, probe_host

MAX_HOSTS = 64
FORGET_SECONDS = 24 * 3600.0
"""A host whose file has not changed for so long has left."""


@dataclass(slots=True)
class _Seen:
    """The file of one host: its last stamp in nanoseconds, and since when it has that, in monotonic seconds."""

    stamp_ns: int
    since: float


class WatchedFolder:
    """Writes this host's probe file, and knows how old the others' are.

    Args:
        path: The shared folder.
        host: This host.
        tell: Takes what was found, each ``seconds``.
        failed: Told of errors of ours.
        seconds: From one look to the next.
        now: Unix seconds.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        path: Path,
        host: str,
        tell: Callable[[WatchedPath], object],
        *,
        failed: Callable[[Exception], object] = lambda _: None,
        seconds: float = PROBE_FILE_SECONDS,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._host = path / PROBE_FOLDER, probe_host(host)
        self._tell, self._failed, self._seconds, self._now, self._clock = tell, failed, seconds, now, clock
        self._seen: dict[str, _Seen] = {}
        self._written_at: float | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Go on in the background, in threads that nobody waits for."""
        for name, step in (("watched-folder", self.touch), ("watched-folder-told", self.say)):
            threading.Thread(target=self._repeat, args=(step,), name=name, daemon=True).start()

    def close(self) -> None:
        """Stop; our file stays, and grows old."""
        self._stop.set()

    def touch(self) -> None:
        """Write our file and look for the others; any of this may hang with the file system."""
        own_ns = None
        with contextlib.suppress(OSError):
            own_ns = self._write()
            self._written_at = self._clock()
        if own_ns is None:
            self._written_at = None
        with contextlib.suppress(OSError):
            self._look(own_ns)

    def say(self) -> None:
        """Tell what is known now: ages go on growing while the folder hangs."""
        now = self._clock()
        written = self._written_at
        ages = {host: now - seen.since for host, seen in list(self._seen.items()) if now - seen.since < FORGET_SECONDS}
        writable = written is not None and now - written < 3 * self._seconds
        self._tell(WatchedPath(at=self._now(), writable=writable, ages=ages))

    def _repeat(self, step: Callable[[], None]) -> None:
        while True:
            try:
                step()
            except Exception as error:
                self._failed(error)
            if self._stop.wait(self._seconds):
                return

    def _write(self) -> int:
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{self._host}{PROBE_SUFFIX}"
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(f"{self._host} {self._now():.0f}\n")
        os.replace(fresh, path)
        return path.stat().st_mtime_ns

    def _look(self, own_ns: int | None) -> None:
        now = self._clock()
        with os.scandir(self._folder) as entries:
            files = [entry for entry in entries if entry.name.endswith(PROBE_SUFFIX)]
        for entry in sorted(files, key=lambda entry: entry.name)[:MAX_HOSTS]:
            host, stamp_ns = entry.name.removesuffix(PROBE_SUFFIX), entry.stat(follow_symlinks=False).st_mtime_ns
            seen = self._seen.get(host)
            if seen is None:
                behind = max(0.0, (own_ns - stamp_ns) / 1e9) if own_ns is not None else 0.0
                self._seen[host] = _Seen(stamp_ns, now - behind)
            elif seen.stamp_ns != stamp_ns:
                self._seen[host] = _Seen(stamp_ns, now)
