"""Spans to an OTLP collector, from a bounded queue and one thread: a collector that is gone costs nobody anything.

The SDK's ``BatchSpanProcessor`` (1.45) is not used: what it drops it tells to nobody who could count it, a failed batch
is gone for good, and its shutdown takes up to 30 s. Here a batch is tried again while the queue has room for what
comes meanwhile, every dropped span is told, and the end comes within :data:`CLOSE_SECONDS`.
"""

import contextlib
import functools
import ipaddress
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from sglang_telemetry.sinks.guard import Report
from sglang_telemetry.text import clean_url

CLOSE_SECONDS = 1.2
"""At its end the queue gives the collector so long to take what is left."""
QUEUE_SPANS = 20_480
"""Some 2,000 syncs of one rank: what comes while a collector is restarted, or at once when an exporter starts late."""
BATCH_SPANS = 512
DELAY_SECONDS = 0.5
_BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 30.0, 30.0, 30.0)
"""Waits between the attempts to send a batch; then it is dropped, since it may be what the collector refuses."""
_REPORT_SECONDS = 1.0

_ENDPOINT, _TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOL, _TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"


class SpanQueue(SpanProcessor):
    """Takes spans and sends them in batches, in a thread of its own that is started with the first span.

    Args:
        exporter: What sends a batch.
        max_spans: Longest queue, beside the batch that is being sent; the oldest span is dropped for one more.
        batch_spans: Most spans in one request.
        delay_seconds: Spans wait at most so long for others to share a request with.
        shown: Where they go, for people.
        renew: Makes another exporter for a forked child, which must not write into its parent's connections.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        max_spans: int = QUEUE_SPANS,
        batch_spans: int = BATCH_SPANS,
        delay_seconds: float = DELAY_SECONDS,
        shown: str = "",
        renew: Callable[[], SpanExporter] | None = None,
    ) -> None:
        self.shown = shown
        self._renew = renew
        self.sent = self.dropped = 0
        self._exporter = exporter
        self._batch_spans, self._delay_seconds = batch_spans, delay_seconds
        self._queue: deque[ReadableSpan] = deque()
        self._sending: list[ReadableSpan] = []
        self._max_spans = max_spans
        self._lock = threading.Lock()
        self._more, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._report: Report | None = None
        self._untold = 0
        self._told_at = 0.0

    @property
    def waiting(self) -> int:
        """Spans that are not sent yet."""
        return len(self._queue) + len(self._sending) if self._pid == os.getpid() else 0

    def report_to(self, report: Report) -> None:
        """Whom to tell of dropped spans."""
        self._report = report

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span."""
        self._forked()
        with self._lock:
            over = self._over.is_set()
            if not over:
                self._start()
                self._queue.append(span)
            if over or len(self._queue) > self._max_spans:
                if not over:
                    self._queue.popleft()
                self._untold += 1
                self.dropped += 1
        if len(self._queue) >= self._batch_spans:
            self._more.set()
        self.tell(at_once=over)

    def shutdown(self) -> None:
        """Send what is left, for at most :data:`CLOSE_SECONDS`; what is left then is dropped."""
        self._forked()
        first = not self._over.is_set()
        self._over.set()
        self._more.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(CLOSE_SECONDS)
        with self._lock:
            left = self.waiting
            self._queue.clear()
            self._sending = []
            self._untold += left
            self.dropped += left
        self.tell(at_once=True)
        if first:
            # It may block as long as what the exporter is in, so it is not waited for. In atexit no thread can be
            # started any more (Python 3.12), and nothing has to be closed.
            with contextlib.suppress(RuntimeError):
                threading.Thread(
                    target=self._exporter.shutdown, name="sglang-telemetry-otlp-close", daemon=True
                ).start()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait until everything is sent; False when that took too long."""
        self._forked()
        deadline = time.monotonic() + timeout_millis / 1000
        self._more.set()
        while self.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.waiting

    def _forked(self) -> None:
        """In a forked child thread, lock holders, spans and connections are the parent's."""
        if self._pid == os.getpid():
            return
        over = self._over.is_set()
        self._thread, self._lock, self._queue, self._sending = None, threading.Lock(), deque(), []
        self._more, self._over = threading.Event(), threading.Event()
        self._untold = self.sent = self.dropped = 0
        if over:
            self._over.set()
        if self._renew is not None:
            self._exporter = self._renew()
        self._pid = os.getpid()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="sglang-telemetry-otlp", daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))  # our own requests are no spans of the host's
        while True:
            if not self._over.is_set():
                self._more.wait(self._delay_seconds)
                self._more.clear()
            while self._queue:
                if not self._send_batch():
                    return
            if self._over.is_set():
                return

    def _send_batch(self) -> bool:
        """Send the oldest spans, however often it takes; False when the end came first."""
        with self._lock:
            batch = self._sending = [self._queue.popleft() for _ in range(min(self._batch_spans, len(self._queue)))]
        for wait in (*_BACKOFF_SECONDS, None):
            good = self._export(batch)
            if good or (wait is None and not self._over.is_set()):
                with self._lock:
                    if self._sending is not batch:  # the end came meanwhile, and they are counted as dropped
                        return False
                    self._sending = []
                    self.sent += len(batch) if good else 0
                    self.dropped += 0 if good else len(batch)
                    self._untold += 0 if good else len(batch)
                self.tell()
                return True
            if self._over.is_set():
                return False
            self._over.wait(wait)  # at the end there is one more attempt
        return True

    def _export(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # a collector's answer that the exporter cannot read
            return False

    def tell(self, *, at_once: bool = False) -> None:
        """Report what was dropped since the last time, at most once a second."""
        now = time.monotonic()
        if self._report is None or (not at_once and now - self._told_at < _REPORT_SECONDS):
            return
        with self._lock:
            count, self._untold = self._untold, 0
            self._told_at = now if count else self._told_at
        if count:
            self._report(count, f"{count} spans were dropped: the collector did not take them in time ({self.shown})")


def queue_from(environ: Mapping[str, str]) -> SpanQueue:
    """A queue to the collector that ``OTEL_EXPORTER_OTLP_*`` names, default ``http://localhost:4318``.

    Raises:
        ValueError: The protocol is not known, its package is missing, or the endpoint makes no sense.
    """
    protocol = (environ.get(_TRACES_PROTOCOL) or environ.get(_PROTOCOL) or "http/protobuf").strip().lower()
    default = "http://localhost:4317" if protocol == "grpc" else "http://localhost:4318"
    name = _TRACES_ENDPOINT if environ.get(_TRACES_ENDPOINT) else _ENDPOINT
    endpoint = environ.get(name) or default
    if protocol == "http/protobuf":
        if not _is_url(endpoint):
            raise ValueError(f"{name}={clean_url(endpoint)}: write http://HOST:4318")
        whole = endpoint if name == _TRACES_ENDPOINT else f"{endpoint.removesuffix('/')}/v1/traces"
        make = functools.partial(_http_exporter, whole)
    elif protocol == "grpc":
        make = functools.partial(_grpc_exporter, endpoint)
    else:
        raise ValueError(f"{_PROTOCOL}={protocol}: http/protobuf and grpc are spoken here")
    return SpanQueue(make(), shown=f"{protocol} to {clean_url(endpoint)}", renew=make)


def _is_url(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _http_exporter(endpoint: str) -> SpanExporter:
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    session = requests.Session()
    session.trust_env = not _is_loopback(endpoint)  # a proxy has no way to our loopback
    return OTLPSpanExporter(endpoint, session=session)


def _grpc_exporter(endpoint: str) -> SpanExporter:
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ValueError(f"{_PROTOCOL}=grpc needs a package: pip install 'sglang-telemetry[grpc]'") from error
    options = (("grpc.enable_http_proxy", 0),) if _is_loopback(endpoint) else None
    return OTLPSpanExporter(endpoint, channel_options=options)  # type: ignore[arg-type]  # typed as text, gRPC wants a number


def _is_loopback(url: str) -> bool:
    host = urlsplit(url if "://" in url else f"//{url}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
