"""The exporter: follows a folder of journals in the background and at each scrape, and serves what they say."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from sglang_telemetry.events import Event, TelemetryError
from sglang_telemetry.exporter import snapshot
from sglang_telemetry.exporter.claim import take
from sglang_telemetry.exporter.follow import GRACE_SECONDS, Followed, Follower
from sglang_telemetry.exporter.probes import InFlight, Probes, targets_of
from sglang_telemetry.exporter.settings import ExporterSettings, traces_wanted
from sglang_telemetry.exporter.status import RecentNews, render, servers_of
from sglang_telemetry.exporter.watched import WatchedFolder
from sglang_telemetry.journal.folder import make_private
from sglang_telemetry.journal.retention import segments, stem_of
from sglang_telemetry.names import Component
from sglang_telemetry.server_truth.reconcile import ServerState
from sglang_telemetry.sinks.guard import Fanout
from sglang_telemetry.sinks.log import LogSink
from sglang_telemetry.sinks.metrics import MetricsSink
from sglang_telemetry.sinks.tally import Tally
from sglang_telemetry.text import clean

POLL_SECONDS = 0.5
SNAPSHOT_SECONDS = 5.0
HOLD_SECONDS = 60.0
"""What is saved is not read again: so long the state waits for a collector to take the spans of what was read."""


class Exporter:
    """A running exporter.

    Args:
        settings: Folder, address and retention.

    Raises:
        FolderServed: Another exporter serves the folder.
        OSError: The folder cannot be made, or the address is taken.
    """

    def __init__(self, settings: ExporterSettings) -> None:
        make_private(settings.folder)
        self._settings = settings
        self._lock_fd = take(settings.folder)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._scrapers: dict[str, float] = {}
        self._last_poll = self._last_snapshot = 0.0
        self._changed = self._serving = False
        self._unsent_since: float | None = None
        self.idle_since = time.monotonic()
        complaint, tally, followed, servers = _load(settings.folder)
        self._metrics = MetricsSink(tally=tally)
        self._recent = RecentNews()
        self._log = LogSink()
        self._traces, self.traces_complaint = _traces(os.environ)
        self._probes = Probes(
            self,
            seconds=settings.probe_seconds,
            keys=settings.keys,
            checksums=settings.checksums,
            states=servers,
        )
        self._watched = (
            WatchedFolder(
                settings.watch_path,
                socket.gethostname(),
                lambda event: self.tell(event, lasting=False),
                failed=self.failed,
            )
            if settings.watch_path is not None
            else None
        )
        traces = [self._traces.sink] if self._traces else []
        self._fanout = Fanout((self._metrics, self._recent, *traces, self._probes))
        self._registry = CollectorRegistry()
        self._registry.register(self._metrics)
        self._follower = Follower(
            settings.folder, self._fanout.emit, time.time, retention_seconds=settings.retention_seconds
        )
        self._follower.followed.update(followed)
        for component in Component:
            self._fanout.emit(TelemetryError(identity=None, component=component, text="", count=0))
        if complaint is not None:
            self._error(complaint)
        if self.traces_complaint is not None:
            self._fanout.error(Component.TRACES, self.traces_complaint)
        try:
            self._server = _Server((settings.host, settings.port), self)
        except OSError:
            os.close(self._lock_fd)
            raise
        self.url = f"http://{settings.shown_host}:{self._server.server_port}"
        os.pwrite(self._lock_fd, f"{self.url}\n".encode(), 0)

    def start(self) -> None:
        """Read what is there, then serve; returns when both go on in the background."""
        self.refresh()
        self._serving = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        threading.Thread(target=self._loop, daemon=True).start()
        self._probes.start()
        if self._watched is not None:
            self._watched.start()

    def refresh(self) -> None:
        """Take in everything that was written up to now."""
        with self._lock:
            self._changed = self._follower.poll() or self._changed
            self._last_poll = time.monotonic()
            if self._traces is not None:
                self._traces.queue.tell()
            if self._follower.live():
                self.idle_since = self._last_poll

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The metrics as of now in the format that the scraper asks for, and that format's content type."""
        with self._lock:
            self.refresh()
            encode, content_type = choose_encoder(accept)
            return encode(self._registry), content_type

    def page(self) -> str:
        """The status page."""
        with self._lock:
            self.refresh()
            tally = self._metrics.tally
            return render(tally, self._recent, folder=str(self._settings.folder), now=time.time())

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Is the exporter well, and whom it serves: live processes, launchers, and scrapers with their last visit."""
        late = time.monotonic() - self._last_poll
        well = late < 20 * POLL_SECONDS
        with self._lock:
            live = self._follower.live()
            servers = servers_of(self._metrics.tally)
        return well, {
            "status": "ok" if well else f"journals were not read for {late:.0f} s",
            "folder": str(self._settings.folder),
            "processes": sum(one.head is not None for one in live),
            "launches": sorted(one.launch.launch_id for one in live if one.launch is not None),
            "servers": servers,
            "scrapers": dict(self._scrapers),
            "traces": self._traces.state() if self._traces else None,
            "no_traces": clean(str(self.traces_complaint), limit=500) if self.traces_complaint is not None else None,
        }

    def scraped_by(self, who: str, at: float) -> None:
        """Somebody got the metrics of that Unix time."""
        if len(self._scrapers) < 64 or who in self._scrapers:
            self._scrapers[who] = at

    def close(self) -> None:
        """Stop serving, save the counts, let the folder go."""
        self._probes.close()
        if self._watched is not None:
            self._watched.close()
        self._stop.set()
        if self._serving:  # else it would wait for a loop that never began
            self._server.shutdown()
        self._server.server_close()
        self.refresh()
        deadline = time.monotonic() + 2 * GRACE_SECONDS
        while self._follower.missed() and time.monotonic() < deadline:
            time.sleep(0.05)
            self.refresh()
        if self._traces is not None:  # what it drops now is counted and saved
            self._traces.sink.close()
            self._changed = self._changed or self._traces.queue.dropped > 0
        with self._lock:
            self._save()
            self._follower.close()
            os.close(self._lock_fd)
        self._fanout.close()

    def targets(self) -> Mapping[str, InFlight]:
        """For the probes."""
        with self._lock:
            return {**dict.fromkeys(self._probes.left_paused(), ()), **targets_of(self._metrics.tally)}

    def catch_up(self) -> None:
        """For the probes: a look may outlast the exporter, and must not open a journal again."""
        with self._lock:
            if not self._stop.is_set():
                self.refresh()

    def tell(self, event: Event, *, lasting: bool) -> None:
        """For the probes."""
        with self._lock:
            if not self._stop.is_set():
                self._changed = self._changed or lasting
                self._fanout.emit(event)
                try:
                    self._log.emit(event)
                except Exception as error:  # a pipe that nobody reads any more, say
                    self._fanout.error(Component.LOG, error)

    def failed(self, error: Exception) -> None:
        """For the probes."""
        self._error(error)

    @property
    def traces_to(self) -> str | None:
        """Where traces go, None when they are not asked for."""
        return self._traces.queue.shown if self._traces else None

    @property
    def spans_dropped(self) -> int:
        """Spans that no collector took."""
        return self._traces.queue.dropped if self._traces else 0

    def _loop(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            try:
                self.refresh()
                if time.monotonic() - self._last_snapshot > SNAPSHOT_SECONDS:
                    with self._lock:
                        self._save()
                        self._retain()
            except Exception as error:
                self._error(error)

    def _save(self) -> None:
        self._last_snapshot = time.monotonic()
        if not self._changed:
            self._unsent_since = None
            return
        if self._traces is not None and self._traces.queue.waiting and not self._stop.is_set():
            self._unsent_since = self._unsent_since or self._last_snapshot
            if self._last_snapshot - self._unsent_since < HOLD_SECONDS:
                return
        try:
            snapshot.save(self._settings.folder, self._metrics.tally, self._follower.followed, self._probes.saved())
            self._changed, self._unsent_since = False, None
        except OSError as error:
            self._error(error)

    def _retain(self) -> None:
        """Remove journals that are counted, saved and too old or too many; forget runs that ended long ago."""
        if self._changed:  # what is not saved must stay readable
            return
        before = time.time() - self._settings.retention_seconds
        self._changed = self._metrics.tally.forget(ended_before=before)
        if self._changed:
            self._probes.forget(but=self._metrics.tally.targets())
        paths = segments(self._settings.folder)
        last = {stem_of(path): path for path in paths}
        sizes = {path: _stat(path) for path in paths}
        total = sum(size for size, _ in sizes.values())
        for path in sorted(paths, key=lambda path: sizes[path][1]):
            known = self._follower.followed.get(stem_of(path))
            counted = known is not None and (known.over or path.name < known.segment)
            size, written_at = sizes[path]
            over = known is not None and known.over
            if counted and (total > self._settings.max_bytes or (over and written_at < before)):
                if not over and path == last[stem_of(path)]:
                    continue
                path.unlink(missing_ok=True)
                total -= size

    def _error(self, error: BaseException) -> None:
        self._fanout.error(Component.EXPORTER, error)


class _Traces:
    """The trace sink with its queue, made only where it is asked for: OpenTelemetry's packages cost memory."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        from sglang_telemetry.sinks.otlp import queue_from
        from sglang_telemetry.sinks.traces import TraceSink

        self.queue = queue_from(environ)
        self.sink = TraceSink(self.queue, environ=environ)

    def state(self) -> dict[str, Any]:
        queue = self.queue
        return {"to": queue.shown, "sent": queue.sent, "waiting": queue.waiting, "dropped": queue.dropped}


def _traces(environ: Mapping[str, str]) -> tuple[_Traces | None, Exception | None]:
    """Traces if they are asked for; what is wrong with how they are does not keep the metrics from being served."""
    if not traces_wanted(environ):
        return None, None
    try:
        return _Traces(environ), None
    except Exception as error:  # also what the OTLP exporters say of certificates and headers
        return None, error


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], exporter: Exporter) -> None:
        self.exporter = exporter
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Serve one of the three pages."""
        exporter = self.server.exporter
        path = self.path.partition("?")[0]
        answers: dict[str, Callable[[], tuple[int, bytes, str]]] = {
            "/metrics": lambda: (200, *exporter.metrics(self.headers.get("Accept", ""))),
            "/healthz": lambda: _json(*exporter.health()),
            "/": lambda: (200, exporter.page().encode(), "text/html; charset=utf-8"),
        }
        answer, asked_at = answers.get(path), time.time()
        try:
            status, body, kind = answer() if answer else (404, b"see /metrics, /healthz, /\n", "text/plain")
        except Exception as error:
            exporter._error(error)
            status, body, kind = 500, f"{type(error).__name__}: {error}\n".encode(), "text/plain; charset=utf-8"
        if path == "/metrics" and status == 200:  # before the body, so that whoever has read it is listed
            exporter.scraped_by(f"{self.client_address[0]} {self.headers.get('User-Agent', '')}"[:200], asked_at)
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        except OSError:  # whoever asked has gone
            return

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not news."""


def _load(folder: Path) -> tuple[BaseException | None, Tally, dict[str, Followed], list[ServerState]]:
    try:
        return (None, *snapshot.load(folder))
    except (OSError, ValueError) as error:
        return error, Tally(), {}, []


def _stat(path: Path) -> tuple[int, float]:
    try:
        there = path.stat()
    except OSError:
        return 0, 0.0
    return there.st_size, there.st_mtime


def _json(well: bool, health: dict[str, Any]) -> tuple[int, bytes, str]:
    return 200 if well else 503, json.dumps(health).encode(), "application/json"
