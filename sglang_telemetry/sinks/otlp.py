"""Spans to an OTLP collector, from a bounded queue and one thread: a collector that is gone costs nobody anything.

The SDK's ``BatchSpanProcessor`` (1.45) is not used: what it drops it tells to nobody who could count it, a failed batch
is gone for good, and its shutdown takes up to 30 s. Here a batch is tried again while the queue has room for what
comes meanwhile, every dropped span is told, and the end comes within :data:`CLOSE_SECONDS`.
"""

import ipaddress
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
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
        max_spans: Longest queue; the oldest span is dropped for one more.
        batch_spans: Most spans in one request.
        delay_seconds: Spans wait at most so long for others to share a request with.
        shown: Where they go, for people.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        max_spans: int = QUEUE_SPANS,
        batch_spans: int = BATCH_SPANS,
        delay_seconds: float = DELAY_SECONDS,
        shown: str = "",
    ) -> None:
        self.shown = shown
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
        return len(self._queue) + len(self._sending)

    def report_to(self, report: Report) -> None:
        """Whom to tell of dropped spans."""
        self._report = report

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span."""
        self._start()
        with self._lock:
            self._queue.append(span)
            if len(self._queue) > self._max_spans:
                self._queue.popleft()
                self._untold += 1
                self.dropped += 1
        if len(self._queue) >= self._batch_spans:
            self._more.set()
        self._tell(f"the queue of {self._max_spans} spans is full")

    def shutdown(self) -> None:
        """Send what is left, for at most :data:`CLOSE_SECONDS`; what is left then is dropped."""
        self._over.set()
        self._more.set()
        thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            thread.join(CLOSE_SECONDS)
        # It may block as long as what the exporter is in, so it is not waited for.
        threading.Thread(target=self._exporter.shutdown, name="sglang-telemetry-otlp-close", daemon=True).start()
        with self._lock:
            left = self.waiting
            self._queue.clear()
            self._sending = []
            self._untold += left
            self.dropped += left
        self._tell("the collector did not take them before the end", at_once=True)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait until everything is sent; False when that took too long."""
        deadline = time.monotonic() + timeout_millis / 1000
        self._more.set()
        while self.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.waiting

    def _start(self) -> None:
        if self._pid != os.getpid():  # forked: the thread, the lock's holder and what it was sending are the parent's
            self._pid, self._thread = os.getpid(), None
            self._lock, self._queue, self._sending = threading.Lock(), deque(), []
        if self._thread is None and not self._over.is_set():
            self._thread = threading.Thread(target=self._run, name="sglang-telemetry-otlp", daemon=True)
            self._thread.start()

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
                self._tell("the collector does not take them")
                return True
            if self._over.is_set() or self._over.wait(wait):
                return False
        return True

    def _export(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # a collector's answer that the exporter cannot read
            return False

    def _tell(self, why: str, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._report is None or (not at_once and now - self._told_at < _REPORT_SECONDS):
            return
        with self._lock:
            count, self._untold = self._untold, 0
            self._told_at = now if count else self._told_at
        if count:
            self._report(count, f"{count} spans were dropped: {why} ({self.shown})")


def queue_from(environ: Mapping[str, str]) -> SpanQueue:
    """A queue to the collector that ``OTEL_EXPORTER_OTLP_*`` names, default ``http://localhost:4318``.

    Raises:
        ValueError: The protocol is not known, its package is missing, or the endpoint makes no sense.
    """
    protocol = (environ.get(_TRACES_PROTOCOL) or environ.get(_PROTOCOL) or "http/protobuf").strip().lower()
    default = "http://localhost:4317" if protocol == "grpc" else "http://localhost:4318"
    endpoint = environ.get(_TRACES_ENDPOINT) or environ.get(_ENDPOINT) or default
    if protocol == "http/protobuf":
        exporter = _http_exporter(endpoint)
    elif protocol == "grpc":
        exporter = _grpc_exporter(endpoint)
    else:
        raise ValueError(f"{_PROTOCOL}={protocol}: http/protobuf and grpc are spoken here")
    return SpanQueue(exporter, shown=f"{protocol} to {clean_url(endpoint)}")


def _http_exporter(endpoint: str) -> SpanExporter:
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    if urlsplit(endpoint).scheme not in {"http", "https"}:
        raise ValueError(f"{_ENDPOINT}={clean_url(endpoint)}: write http://HOST:4318")
    session = requests.Session()
    session.trust_env = not _is_loopback(endpoint)  # a proxy has no way to our loopback
    return OTLPSpanExporter(session=session)


def _grpc_exporter(endpoint: str) -> SpanExporter:
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ValueError(f"{_PROTOCOL}=grpc needs a package: pip install 'sglang-telemetry[grpc]'") from error
    options = (("grpc.enable_http_proxy", "0"),) if _is_loopback(endpoint) else None
    return OTLPSpanExporter(channel_options=options)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url if "://" in url else f"//{url}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
