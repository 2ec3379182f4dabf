"""The time-out of a request: read, set, and chosen from what updates took so far.

The choice is the longest of the last ones, scaled to the size of this checkpoint.
"""

from collections import deque
from typing import Any

from sglang_telemetry.remedies.options import Remedies

_KEPT = 20


class AutoTimeout:
    """Learns from each update that a server took.

    Args:
        options: Floor, ceiling and headroom.
    """

    def __init__(self, options: Remedies) -> None:
        self._options = options
        self._seen: deque[tuple[float, int]] = deque(maxlen=_KEPT)

    def learn(self, seconds: float, size: int | None) -> None:
        """An update of so many bytes took so many seconds."""
        self._seen.append((seconds, size or 0))

    def seconds(self, size: int | None) -> float | None:
        """The time-out for a checkpoint of so many bytes; None before anything is known.

        A smaller checkpoint is not expected to be faster: what takes long may be the waiting for running requests.
        """
        if not self._seen:
            return None
        longest = max(spent * max(1.0, (size or 0) / before if before else 1.0) for spent, before in self._seen)
        options = self._options
        wanted = longest * options.timeout_headroom
        return min(max(wanted, options.timeout_floor_seconds), options.timeout_ceiling_seconds)


def timeout_of(value: Any) -> float | None:
    """Seconds of a ``timeout`` argument: a number, or the read part of a (connect, read) pair."""
    if isinstance(value, tuple) and len(value) == 2:
        value = value[1]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def with_read_timeout(given: object, seconds: float) -> object:
    """A client's ``timeout`` argument with another read part: a number, or a (connect, read) pair."""
    return (given[0], seconds) if isinstance(given, tuple) and len(given) == 2 else seconds
