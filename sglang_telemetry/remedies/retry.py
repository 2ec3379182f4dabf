"""May an update be sent once more after a failure, and what has to be done first: a table by cause.

Never when the weights were taken, and never when another update may still be at work: two at once can kill SGLang
(measured on 0.5.23).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from sglang_telemetry.causes import FailureCause as Cause
from sglang_telemetry.names import Applied
from sglang_telemetry.remedies.client import Client

POLL_SECONDS = 0.25
SETTLE_SECONDS = 35.0
"""How long a network file system can show an old state: its clients look again after 30 s."""
FLUSH_SECONDS = 30.0


class First(Enum):
    """What is done before an update is sent again."""

    FLUSH = auto()
    """Wait until running requests are through, and flush the cache."""
    READY = auto()
    """Wait until the server takes requests."""
    RESTARTED = auto()
    """Wait until the server, which has died, takes requests again."""
    SETTLE = auto()
    """Wait until another host sees the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """How an update failed.

    Args:
        another: The server says that it is at work on another one, or on a flush.
    """

    cause: Cause
    applied: Applied
    status: int | None
    another: bool = False


_BUSY_STATUS = frozenset({423, 429})
"""A server or gateway that took nothing; a 409 is another update that is at work."""


def first(failed: Failed, *, whole: bool) -> First | None:
    """What to do before it is sent again; None when that can mend nothing, or could do harm.

    Args:
        failed: How it failed.
        whole: The checkpoint was looked at, and nothing is wrong with it.
    """
    if failed.applied is not Applied.NO:
        return None
    match failed.cause:
        case Cause.SERVER_BUSY if failed.status in _BUSY_STATUS and not failed.another:
            return First.FLUSH
        case Cause.UNREACHABLE:
            return First.READY
        case Cause.SERVER_DIED if whole:
            return First.RESTARTED
        case Cause.PATH_NOT_VISIBLE if whole:
            return First.SETTLE
    return None


def wait_until_ready(
    client: Client, left: Callable[[], float], *, gone_first: bool, sleep: Callable[[float], object]
) -> bool:
    """Ask ``/ready`` until it says 200, or a server that has no such route answers at all.

    Args:
        client: Asks.
        left: Seconds for which it may still wait.
        gone_first: It has to be seen away before: one that answers at once has not died, and may still be loading.
        sleep: Waits that many seconds between two questions.
    """
    if not client.can_ask:
        return False
    gone = not gone_first
    while (seconds := left()) > 0:
        status = client.status("/ready")
        if status is None:
            gone = True
        elif status in {200, 404, 405} and gone:
            return True
        sleep(min(POLL_SECONDS, seconds))
    return False
