"""Counts rollouts by the policy that made them: the one that was synced last, an older one, or several.

A label counts for what this process has sent; what it cannot place is unknown, never called stale on a guess. Told at
most once a second, so that an engine with many small answers does not fill the journal, and SIGKILL loses little.
"""

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable
from urllib.parse import urlsplit

from sglang_telemetry.events import Event, RolloutsSeen
from sglang_telemetry.identity import IdentitySource
from sglang_telemetry.instrument.generations import Generation, generations
from sglang_telemetry.names import Policy
from sglang_telemetry.tags import is_tag, sequence_in, verifiable
from sglang_telemetry.timeline import Clock

ROUTES = ("/generate", "/v1/chat/completions", "/v1/completions", "/v1/responses")
"""SGLang's routes that generate."""
SECOND_NS = 10**9
VERSIONS_KEPT = 4096


@functools.lru_cache(maxsize=64)
def is_generation(url: str) -> bool:
    """Does this URL generate?"""
    try:
        return urlsplit(url).path.rstrip("/").endswith(ROUTES)
    except ValueError:
        return False


class Rollouts:
    """What was sent, what was taken, and how many answers came from what.

    Args:
        identity: Who speaks.
        emit: Takes the events; never raises.
        clock: Where time comes from.
    """

    def __init__(self, identity: IdentitySource, emit: Callable[[Event], object], clock: Clock) -> None:
        self._identity, self._emit, self._clock = identity, emit, clock
        self._sent: dict[str, int] = {}
        self._taken = 0
        self._unnamed = False
        """The sync that was taken last named no version: labels say nothing of it."""
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._counts: Counter[Policy] = Counter()
        self._aborted = 0
        self._told_ns: int | None = None

    def sent(self, version: str, sequence: int) -> None:
        """A sync sends its weights under this name."""
        with self._locked():
            self._sent.pop(version, None)
            self._sent[version] = sequence
            if len(self._sent) > VERSIONS_KEPT:
                del self._sent[next(iter(self._sent))]

    def taken(self, version: str | None, sequence: int) -> None:
        """The server took the weights of a sync; None when they have no name that an answer could show."""
        if version is not None:
            self.sent(version, sequence)
        with self._locked():
            if sequence >= self._taken:
                self._taken, self._unnamed = sequence, version is None

    def saw(self, body: bytes, sequence: int) -> None:
        """Count the generations of an answer.

        Args:
            body: As it came with status 200 from a route that generates.
            sequence: The last sync that has begun.
        """
        alike = Counter(generations(body))
        if not alike:
            return
        with self._locked():
            for generation, count in alike.items():
                self._counts[self._policy(generation)] += count
                self._aborted += count * generation.aborted
            now = self._clock.monotonic_ns()
            due = self._told_ns is None or now - self._told_ns >= SECOND_NS
            event = self._take(sequence, now) if due else None
        if event is not None:
            self._emit(event)

    def flush(self, sequence: int) -> None:
        """Tell what was not told yet."""
        with self._locked():
            event = self._take(sequence, self._clock.monotonic_ns())
        if event is not None:
            self._emit(event)

    def _locked(self) -> threading.Lock:
        """A forked child has counted nothing yet, and its parent's lock may be held for ever."""
        if os.getpid() != self._pid:
            self._begin()
        return self._lock

    def _take(self, sequence: int, now_ns: int) -> RolloutsSeen | None:
        if not self._counts:
            return None
        counts, aborted = {policy.value: count for policy, count in self._counts.items()}, self._aborted
        self._counts.clear()
        self._aborted, self._told_ns = 0, now_ns
        return RolloutsSeen(
            identity=self._identity.current(),
            at=self._clock.wall(),
            sequence=sequence,
            counts=counts,
            aborted=aborted,
        )

    def _policy(self, generation: Generation) -> Policy:
        if len(generation.versions) > 1:
            return Policy.MIXED
        return self._policy_of(next(iter(generation.versions), ""))

    def _policy_of(self, version: str) -> Policy:
        if version in {"", "default"}:
            return Policy.UNKNOWN
        sequence = self._sequence_of(version)
        if sequence is not None and sequence > self._taken:  # no answer said that it was taken, and yet it was
            return Policy.CURRENT if self._sent else Policy.UNKNOWN
        if self._unnamed:
            return Policy.UNKNOWN
        if sequence is not None:
            return Policy.CURRENT if sequence == self._taken else Policy.STALE
        return Policy.STALE if is_tag(version) and verifiable(version) else Policy.UNKNOWN

    def _sequence_of(self, version: str) -> int | None:
        """The sync of this run that a version stands for, also one that another process of it has sent."""
        known = self._sent.get(version)
        return known if known is not None else sequence_in(version, self._identity.current())
