"""What happens around one update request.

In this order: is the checkpoint whole, publish it, wait for our turn, pause, send, once more if that can mend
something, flush, continue.

A step of ours that fails is told and left out; what the engine gets is the answer, or the very exception, of the last
request that was sent. Only where a request would do harm none is sent, and the engine gets the answer of a server that
refuses, so that its own way of failing is taken.
"""

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from sglang_telemetry.causes import FailureCause as Cause
from sglang_telemetry.checkpoint.validate import Verdict
from sglang_telemetry.names import Action, Outcome
from sglang_telemetry.remedies import retry
from sglang_telemetry.remedies.client import Client, refusal
from sglang_telemetry.remedies.generation import CONTROL_SECONDS, RELEASE_SECONDS, Generation
from sglang_telemetry.remedies.host_lock import HostLock
from sglang_telemetry.remedies.options import Remedies
from sglang_telemetry.remedies.timeout import AutoTimeout, timeout_of, with_read_timeout
from sglang_telemetry.text import said_by

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_WORTH_SECONDS = 1.0
"""With less time left nothing is begun."""


class SyncInHand(Protocol):
    """The sync that the update is part of, as remedies see it."""

    def offset_ns(self) -> int:
        """Nanoseconds since its start."""

    def remedied(
        self, action: Action, outcome: Outcome, began_ns: int, detail: str = "", *, server: str | None = None
    ) -> None:
        """Tell what a remedy did, about which server; never raises."""

    def refused(self, url: str, cause: Cause, text: str) -> None:
        """The update to that URL is not sent, for this reason."""

    def waits(self) -> None:
        """What comes now is neither saving nor sending."""

    def failure(self, url: str) -> retry.Failed | None:
        """How the last update to that URL failed, as far as it is known now; None when the server took it."""


class Publishing(Protocol):
    """The checkpoint folder of the engine."""

    def publish(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Put what was written in its place; the arguments that name it, and words, or None when there was nothing.

        Raises:
            OSError: It could not be done, and the server would see what was there before.
        """

    def confirmed(self) -> None:
        """The server has taken it."""

    def unwanted(self) -> None:
        """What was saved is not to be published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What all updates of one engine share.

    Args:
        options: What is wanted.
        timeout: What was learnt of earlier updates.
        lock: Makes the lock of a server.
        publishing: None where the engine's folder is left alone.
        verdict: Looks at the checkpoint that is named by the arguments, and its size in bytes.
        failed: Told of every error of ours; never raises.
        collective_seconds: The time-out of the collectives in which the other ranks wait; None without.
        sleep: Waits that many seconds.
    """

    options: Remedies
    timeout: AutoTimeout
    lock: Callable[[str], HostLock]
    publishing: Publishing | None
    verdict: Callable[[Mapping[str, Any]], tuple[Verdict, int | None]]
    failed: Callable[[BaseException], None]
    collective_seconds: float | None = None
    sleep: Callable[[float], object] = time.sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One request: its answer or the exception of the client, and how it failed."""

    answer: Any = None
    error: Exception | None = None
    failed: retry.Failed | None = None


class Course:
    """One update.

    Args:
        means: What is shared.
        sync: The sync that it is part of.
        client: Sends further requests to the same server.
        server: ``host:port``.
        disk: It names a checkpoint on a disk.
        send: Sends the update with these keyword arguments.
        paused: The engine has paused it itself, and will continue it itself.
    """

    def __init__(
        self,
        means: Means,
        sync: SyncInHand,
        client: Client,
        *,
        server: str,
        disk: bool,
        send: Callable[[dict[str, Any]], Any],
        paused: bool = False,
    ) -> None:
        self._means, self._options, self._sync, self._client = means, means.options, sync, client
        self._server, self._disk, self._send_once, self._paused = server, disk, send, paused
        self._added = 0.0
        self._size: int | None = None
        self._verdict: Verdict | None = None
        self._generation = Generation(client, sync.offset_ns, self._told)

    def run(self, arguments: dict[str, Any]) -> Any:
        """Send, and what is wanted around it; the answer for the engine, or the exception of its client."""
        if self._disk:
            fault = self._step(self._looks_for, self._fault, arguments)
            if fault is not None:
                if self._means.publishing is not None:
                    self._means.publishing.unwanted()
                return self._refuse(Cause.CHECKPOINT_INVALID, f"not sent: {fault}")
            if self._means.publishing is not None:
                try:
                    arguments = self._published(self._means.publishing, arguments)
                except Exception as error:
                    if not isinstance(error, OSError):
                        self._means.failed(error)
                    full = isinstance(error, OSError) and error.errno in _FULL
                    text = f"not sent, since it could not be published: {said_by(error)}"
                    return self._refuse(Cause.DISK_FULL if full else Cause.CHECKPOINT_WRITE, text)
        self._sync.waits()
        with self._turn() as mine:
            if not mine:
                text = f"another update to {self._server} goes on, and did not end in time: not sent"
                return self._refuse(Cause.SERVER_BUSY, text)
            arguments = self._step(Action.TIMEOUT, self._timed, arguments) or arguments
            try:
                self._pause()
                return self._sent(arguments)
            finally:
                self._generation.release(min(CONTROL_SECONDS, max(RELEASE_SECONDS, self._left())))

    def _step(self, action: Action, step: Callable[..., Any], *arguments: Any) -> Any:
        """Something of ours beside the request; where it breaks, that is told, and it is left out."""
        began = self._sync.offset_ns()
        try:
            return step(*arguments)
        except Exception as error:
            self._means.failed(error)
            self._told(action, Outcome.FAILED, began, f"left out: {said_by(error)}")
            return None

    @property
    def _looks_for(self) -> Action:
        """The remedy that a look at the checkpoint is for, of several the first."""
        options = self._options
        return Action.VALIDATE if options.validate else Action.RETRY if options.retry else Action.TIMEOUT

    def _fault(self, arguments: dict[str, Any]) -> str | None:
        """What is wrong with the checkpoint; None also when it is not looked at."""
        options = self._options
        if not options.validate and not options.retry and options.timeout is None:
            return None
        began = self._sync.offset_ns()
        self._verdict, self._size = self._means.verdict(arguments)
        if not options.validate:
            return None
        fault, unchecked = self._verdict.fault, self._verdict.unchecked
        outcome = Outcome.REFUSED if fault else Outcome.SKIPPED if unchecked else Outcome.DONE
        self._told(Action.VALIDATE, outcome, began, fault or unchecked or "")
        return fault

    def _published(self, publishing: Publishing, arguments: dict[str, Any]) -> dict[str, Any]:
        began = self._sync.offset_ns()
        try:
            arguments, words = publishing.publish(arguments)
        except Exception as error:
            self._told(Action.PUBLISH, Outcome.REFUSED, began, said_by(error))
            raise
        outcome = Outcome.SKIPPED if words is None else Outcome.DONE
        self._told(
            Action.PUBLISH, outcome, began, words or "nothing was saved in the folder, or the request names another"
        )
        return arguments

    def _refuse(self, cause: Cause, text: str) -> Any:
        self._sync.refused(self._client.url, cause, text)
        return refusal(self._client.kind, self._client.url, f"sglang-telemetry: {text}", self._client.arguments)

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """This update's turn among those of this host; false when it did not come in time."""
        if not self._options.serialize:
            yield True
            return
        began, got = self._sync.offset_ns(), True
        lock: HostLock | None = None
        try:
            lock = self._means.lock(self._server)
            with self._spending():
                got = lock.acquire(self._left())
        except OSError as error:  # no lock is to be had: the update is sent, as it would be without us
            lock = None
            self._told(Action.SERIALIZE, Outcome.FAILED, began, said_by(error))
        else:
            self._told(Action.SERIALIZE, Outcome.DONE if got else Outcome.REFUSED, began)
        # Not in the handler: what fails in here would carry the lock's error as its context.
        try:
            yield got
        finally:
            if got and lock is not None:
                lock.release()

    def _timed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._options.timeout is None or not self._disk:
            return arguments
        began, seconds = self._sync.offset_ns(), self._means.timeout.seconds(self._size)
        if seconds is None:
            self._told(Action.TIMEOUT, Outcome.SKIPPED, began, "nothing is known yet of earlier updates")
            return arguments
        ranks = self._ranks_left(0.9)
        bound = "" if ranks is None or ranks > seconds else ", as long as the other ranks wait"
        seconds = round(seconds if ranks is None else max(_WORTH_SECONDS, min(seconds, ranks)), 3)
        size = "" if self._size is None else f" for {self._size / 1e6:.1f} MB"
        self._told(Action.TIMEOUT, Outcome.DONE, began, f"{seconds:g} s{size}{bound}")
        return arguments | {"timeout": with_read_timeout(arguments.get("timeout"), seconds)}

    def _sent(self, arguments: dict[str, Any]) -> Any:
        last = self._attempt(arguments)
        failed = last.failed
        if failed is not None and self._options.retry and self._disk:
            again = self._step(Action.RETRY, self._again, failed, arguments)
            if again is not None:
                began = self._sync.offset_ns()
                with self._spending():
                    last = self._attempt(again)
                outcome = Outcome.DONE if last.failed is None else Outcome.FAILED
                same = last.failed is not None and last.failed.cause is failed.cause
                self._told(Action.RETRY, outcome, began, f"after {failed.cause}" + f", and {failed.cause} again" * same)
        if last.error is None and last.failed is None and self._means.publishing is not None:
            self._means.publishing.confirmed()
        if self._generation.paused and (last.failed is not None or _unflushed(arguments)):
            self._in_time(Action.FLUSH, lambda seconds: self._generation.flush(seconds, wait=False))
        if last.error is not None:
            raise last.error
        return last.answer

    def _attempt(self, arguments: dict[str, Any]) -> "_Attempt":
        began = self._sync.offset_ns()
        try:
            answer = self._send_once(arguments)
        except Exception as error:
            return _Attempt(error=error, failed=self._sync.failure(self._client.url))
        failed = self._sync.failure(self._client.url)
        if failed is None and self._disk:
            self._means.timeout.learn((self._sync.offset_ns() - began) / 1e9, self._size)
        return _Attempt(answer=answer, failed=failed)

    def _again(self, failed: retry.Failed, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments to send once more, after what has to be done first; None when it is not to be sent."""
        verdict = self._verdict
        whole = verdict is not None and verdict.fault is None and verdict.unchecked is None
        first = retry.first(failed, whole=whole)
        if first is None:
            return None
        if self._left() < _WORTH_SECONDS:
            began = self._sync.offset_ns()
            self._told(Action.RETRY, Outcome.SKIPPED, began, f"after {failed.cause}: no time is left for it")
            return None
        with self._spending():
            if first is retry.First.FLUSH:
                ready = self._generation.flush(min(retry.FLUSH_SECONDS, self._left()), wait=True)
            else:
                ready = self._waited(first, failed.cause)
        if ready and first in {retry.First.READY, retry.First.RESTARTED}:
            self._pause()  # a server that was started again is not paused
        given, left = arguments.get("timeout"), self._left()
        if not ready or left < _WORTH_SECONDS:
            return None
        read = timeout_of(given)
        if read is None or read > left:
            return arguments | {"timeout": with_read_timeout(given, left)}
        return arguments

    def _waited(self, first: retry.First, cause: Cause) -> bool:
        began = self._sync.offset_ns()
        if first is retry.First.SETTLE:
            seconds = min(retry.SETTLE_SECONDS, self._left() / 2)
            self._means.sleep(seconds)
            self._told(Action.WAIT, Outcome.DONE, began, f"until the server's host sees the files ({cause})")
            return True
        gone = first is retry.First.RESTARTED
        until = began / 1e9 + self._left() - _WORTH_SECONDS
        ready = retry.wait_until_ready(
            self._client,
            lambda: until - self._sync.offset_ns() / 1e9,
            gone_first=gone,
            sleep=self._means.sleep,
        )
        outcome = Outcome.DONE if ready else Outcome.FAILED
        self._told(Action.WAIT, outcome, began, f"until the server is {'back' if gone else 'ready'} ({cause})")
        return ready

    def _pause(self) -> None:
        mode = self._options.pause
        if mode is not None and self._paused:
            self._told(Action.PAUSE, Outcome.SKIPPED, self._sync.offset_ns(), "the engine has paused it itself")
        elif mode is not None:
            self._in_time(Action.PAUSE, lambda seconds: self._generation.pause(mode, seconds))

    def _in_time(self, action: Action, step: Callable[[float], object]) -> None:
        """A request of ours that may take what is left; without time for it, it is left out."""
        began, left = self._sync.offset_ns(), self._left()
        if left < _WORTH_SECONDS:
            self._told(action, Outcome.SKIPPED, began, "no time is left for it")
            return
        with self._spending():
            step(min(CONTROL_SECONDS, left))

    def _told(self, action: Action, outcome: Outcome, began_ns: int, detail: str = "") -> None:
        self._sync.remedied(action, outcome, began_ns, detail, server=self._server)

    @contextmanager
    def _spending(self) -> Iterator[None]:
        """What is done in here is added to the sync, however it ends."""
        began = self._sync.offset_ns()
        try:
            yield
        finally:
            self._added += (self._sync.offset_ns() - began) / 1e9

    def _left(self) -> float:
        """Seconds that may still be added to this sync."""
        left, ranks = self._options.deadline_seconds - self._added, self._ranks_left(0.5)
        return max(0.0, left if ranks is None else min(left, ranks))

    def _ranks_left(self, share: float) -> float | None:
        """Seconds for which the other ranks wait, of which a share is used; None when that is not known."""
        whole = self._means.collective_seconds
        return None if whole is None else whole * share - self._sync.offset_ns() / 1e9


def _unflushed(arguments: Mapping[str, Any]) -> bool:
    """Does the update ask for no flush of its own? (SGLang 0.5.23 flushes unless it is told not to.)"""
    body = arguments.get("json")
    return isinstance(body, Mapping) and body.get("flush_cache", True) is False
