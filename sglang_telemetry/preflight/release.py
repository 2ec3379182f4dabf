"""Continues generation on servers that were left paused; the one check that changes something, and is asked to."""

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_telemetry.preflight import address
from sglang_telemetry.preflight.findings import Check, Finding, Report, at, fail, ok
from sglang_telemetry.server_truth.asking import Asking
from sglang_telemetry.server_truth.control import post
from sglang_telemetry.server_truth.keys import NO_KEYS, Keys
from sglang_telemetry.server_truth.no_answer import why
from sglang_telemetry.server_truth.routes import CONTINUE, READY, is_well
from sglang_telemetry.text import server_of

_ASK_SECONDS = 5.0
_POST_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What ``/ready`` answered; why not, where it did not."""

    status: int | None
    error: str | None


def release(servers: Sequence[str], *, keys: Keys = NO_KEYS) -> Report:
    """Continue generation on each server that is not ready; on one that is, nothing is done.

    Args:
        servers: Their addresses.
        keys: What they want to be shown: ``/continue_generation`` wants the admin key, where there is one.
    """
    return Report(tuple(one for text in dict.fromkeys(servers) for one in _release(text, keys)))


def _release(text: str, keys: Keys) -> tuple[Finding, ...]:
    url = address.parsed(text)
    if isinstance(url, Finding):
        return at(text, [url])
    return at(server_of(url) or text, [_released(url, keys)])


def _released(url: str, keys: Keys) -> Finding:
    if is_well(_asked(url, keys).status):
        return ok(Check.READY, f"it was not paused: {READY} answers 200")
    posted = post(url, CONTINUE, {}, keys=keys, seconds=_POST_SECONDS)
    if posted.error is not None:
        return fail(Check.READY, posted.error, "is the server up, and is this its address?")
    if posted.status in {401, 403}:
        return fail(
            Check.READY,
            f"{CONTINUE} answers {posted.status}: it wants the admin key",
            "set SGLANG_TELEMETRY_ADMIN_API_KEY, or SGLANG_TELEMETRY_ADMIN_API_KEY_FILE",
        )
    if posted.status != 200:
        return fail(Check.READY, f"{CONTINUE} answers {posted.status}: {posted.text}", "look into the server's log")
    return _afterwards(_asked(url, keys))


def _afterwards(asked: _Asked) -> Finding:
    if asked.error is not None:
        return fail(Check.READY, f"it was continued, and does not answer any more: {asked.error}", "is the server up?")
    match is_well(asked.status):
        case True:
            return ok(Check.READY, "released: generation goes on")
        case False:
            return fail(
                Check.READY,
                f"it was continued, and {READY} still answers 503: it is unhealthy",
                "GET /health once; restart the server if that answers 503 too",
            )
        case None:
            return fail(
                Check.READY,
                f"it was continued; {READY} answers {asked.status}, which says nothing",
                "POST /generate once: does it answer?",
            )


def _asked(url: str, keys: Keys) -> _Asked:
    asking = Asking(url, keys=keys, seconds=_ASK_SECONDS)
    status = asking.json(READY)[0]
    return _Asked(status=status, error=None if asking.error is None else why(asking.error, url).line)
