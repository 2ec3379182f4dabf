"""The part of ``FakeSGLang`` that has no HTTP: weights, versions, running requests, pause and the update lock.

Two versions are kept, as in SGLang: the scheduler's, which generated text and ``/server_info`` carry, and that of the
process that serves HTTP, which ``/model_info`` shows. They differ after an update whose cache was not flushed.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sglang_telemetry.testing.fake_faults import BUSY, SUCCEEDED, Answer, Fault, update_answer
from sglang_telemetry.testing.fake_generated import generated
from sglang_telemetry.testing.fake_weights import Deadly, Refused, Tensor, checksum, merge, read_checkpoint

DEFAULT_VERSION = "default"
"""The weight version of a server that was started without ``--weight-version`` (measured on SGLang 0.5.23)."""


class Closed(Exception):
    """The server went away while a request waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What one of SGLang's processes says about the weights; it may be wrong."""

    model_path: str
    weight_version: str = DEFAULT_VERSION
    load_format: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The fields of an update request that have an effect."""

    model_path: str
    load_format: str | None = None
    weight_version: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False


class Engine:
    """One life of the server, from its start to its death.

    Args:
        model_path: The checkpoint it starts with; a folder that cannot be read counts as a model of unknown shapes.
    """

    def __init__(self, model_path: str) -> None:
        self.start = Label(model_path=model_path)
        self.http = self.start
        self.scheduler = self.start
        self.paused: str | None = None
        self.applied = 0
        self.closed = threading.Event()
        self._changed = threading.Condition()
        self._running = 0
        self._writers = 0
        self._updating = False
        self._aborts = 0
        self._retractions = 0
        try:
            self._weights: dict[str, Tensor] = read_checkpoint(model_path, "auto")
        except (Refused, Deadly):
            self._weights = {}

    @property
    def weights(self) -> dict[str, Tensor]:
        """The tensors that are loaded."""
        with self._changed:
            return dict(self._weights)

    @property
    def checksum(self) -> str:
        """Changes when the loaded bytes do, whatever the labels say."""
        return checksum(self.weights)

    @property
    def running(self) -> int:
        """The number of requests that are being generated."""
        with self._changed:
            return self._running

    def close(self) -> None:
        """Wake everybody who waits; they raise ``Closed``."""
        with self._changed:
            self.closed.set()
            self._changed.notify_all()

    def update(self, update: Update, fault: Fault | None = None) -> Answer:
        """Load a checkpoint as SGLang 0.5.23 does.

        Without a pause it waits for the running requests and holds back new ones, without a time limit; while paused
        it does not wait (measured on SGLang 0.5.23).

        Args:
            fault: One that is applied, in part or under a wrong answer.

        Raises:
            Deadly: The real server would die.
            Closed: This one was closed meanwhile.
        """
        if update.abort_all_requests:
            self.abort_all()
        with self._alone():
            load_format = update.load_format or self.http.load_format
            try:
                loaded = read_checkpoint(update.model_path, load_format)
            except Refused as refusal:
                return update_answer(str(refusal))
            with self._changed:
                new_weights = merge(self._weights, loaded)
                old = self.http
                new = Label(
                    model_path=update.model_path,
                    weight_version=old.weight_version if update.weight_version is None else update.weight_version,
                    load_format=load_format,
                )
                busy = update.flush_cache and self._running > 0 and self.paused == "in_place"
                if fault is not Fault.LABEL_WITHOUT_WEIGHTS:
                    self._weights = new_weights
                    self.applied += 1
                if fault is not Fault.ROLLBACK_TEXT:
                    self.scheduler = new
                    self._changed.notify_all()
                if busy or fault is Fault.BUSY_WEIGHTS_APPLIED:
                    return update_answer(BUSY)
                if fault is not Fault.ROLLBACK_TEXT:
                    self.http = new
        suffix = f" Weight version updated to {update.weight_version}." if update.weight_version is not None else ""
        return update_answer(SUCCEEDED + suffix, success=True)

    def set_version(self, version: str, abort: bool) -> None:
        """Change the label alone; by default it aborts all requests (source of SGLang 0.5.23)."""
        if abort:
            self.abort_all()
        with self._changed:
            self.http = replace(self.http, weight_version=version)
            self.scheduler = replace(self.scheduler, weight_version=version)
            self._changed.notify_all()

    def pause(self, mode: str) -> None:
        """Hold back requests; ``abort`` ends the running ones first, ``retract`` and ``in_place`` freeze them."""
        with self._changed:
            self.paused = mode
            if mode == "abort":
                self._aborts += 1
            if mode == "retract":
                self._retractions += 1
            self._changed.notify_all()
            if mode == "abort":
                self._wait(lambda: self._running == 0)

    def resume(self) -> None:
        """Go on; without effect when not paused."""
        with self._changed:
            self.paused = None
            self._changed.notify_all()

    def abort_all(self) -> None:
        """End the running requests with what they have."""
        with self._changed:
            self._aborts += 1
            self._changed.notify_all()

    def flush(self, timeout: float) -> Answer:
        """Empty the prefix cache if no request runs; waits up to ``timeout`` seconds for that."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._running and self.paused != "retract":
                left = deadline - time.monotonic()
                if left <= 0:
                    body = b"Timed out waiting for idle state." if timeout else b"Flush cache failed.\n"
                    return Answer(status=400, body=body)
                self._changed.wait(left)
                self._raise_if_closed()
        return Answer(
            body=b"Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting "
            b"requests, the operation will not be performed.)\n"
        )

    def generate(self, tokens: int, seconds: float) -> dict[str, Any]:
        """Produce canned text, and say under which weight versions.

        Args:
            tokens: How many there will be.
            seconds: How long it takes, pauses not counted.

        Raises:
            Closed: The server went away.
        """
        with self._changed:
            self._wait(lambda: self.paused is None and not self._updating and not self._writers)
            self._running += 1
            aborts, retractions = self._aborts, self._retractions
            versions: list[tuple[str, int]] = []
            done = 0.0
            try:
                while True:
                    version = self.scheduler.weight_version
                    position = int(tokens * (done / seconds)) if seconds else 0
                    if not versions or versions[-1][0] != version:
                        versions.append((version, position))
                    if self._aborts != aborts or done >= seconds:
                        break
                    frozen = self.paused is not None
                    before = time.monotonic()
                    self._changed.wait(None if frozen else seconds - done)
                    self._raise_if_closed()
                    done += 0.0 if frozen else time.monotonic() - before
                aborted = done < seconds
                retracted = self._retractions - retractions
            finally:
                self._running -= 1
                self._changed.notify_all()
        return generated(versions, position if aborted else tokens, aborted, retracted)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """SGLang's writer lock: writers go before new readers, and a paused engine needs none."""
        with self._changed:
            if self.paused is not None:
                locked = False
            else:
                locked = True
                self._writers += 1
                try:
                    self._wait(lambda: not self._updating and (self._running == 0 or self.paused is not None))
                finally:
                    self._writers -= 1
                    self._changed.notify_all()
                self._updating = True
        try:
            yield
        finally:
            with self._changed:
                if locked:
                    self._updating = False
                self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._raise_if_closed()
            self._changed.wait()
        self._raise_if_closed()

    def _raise_if_closed(self) -> None:
        if self.closed.is_set():
            raise Closed
