"""Two updates that change nothing: of an empty folder, which the server refuses, and of the weights that it has.

The one decision: nothing is sent to a server that is not idle, not well, or would be hurt by it. An update waits for
running requests and holds back new ones; a checkpoint that is torn kills the server, one from elsewhere changes it.
"""

import os
import re
from dataclasses import dataclass

from sglang_telemetry.checkpoint.validate import Verdict, verdict_of
from sglang_telemetry.preflight.findings import A_DRY_RUN, Check, Finding, fail, ok, warn
from sglang_telemetry.preflight.temporary import temporary
from sglang_telemetry.preflight.units import shown_seconds
from sglang_telemetry.server_truth.asking import Asking
from sglang_telemetry.server_truth.client import Checksum, loaded_bytes, model_info
from sglang_telemetry.server_truth.control import Posted, post
from sglang_telemetry.server_truth.facts import ServerFacts
from sglang_telemetry.server_truth.keys import Keys
from sglang_telemetry.server_truth.routes import CHECKER, LOADS, LOADS_CORE, UPDATE

EMPTY_SECONDS = 30.0
RESEND_SECONDS = 120.0
CHECKSUM_SECONDS = 10.0
_AGAIN = f"make {A_DRY_RUN} again when it is idle"
_SEEN = "cannot find any model weights with"
_NOT_SEEN = ("repo id must be in the form", "cannot find an appropriate cached snapshot", "is not a local folder")
_REPOSITORY = re.compile(r"[\w.-]+(?:/[\w.-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resent:
    """What came of sending a server's own weights again.

    Args:
        seconds: How long the update took; None when there was no successful one.
    """

    finding: Finding
    seconds: float | None = None


def busy(url: str, keys: Keys) -> Finding | None:
    """Why nothing may be sent to it now; None when it is idle."""
    status, fields = Asking(url, keys=keys, seconds=2.0).json(LOADS_CORE)
    loads = fields.get("loads")
    if status != 200 or not isinstance(loads, list) or not loads:
        return warn(Check.DRY_RUN, f"not sent: the server does not tell whether requests are running ({LOADS})", _AGAIN)
    counts = [
        one.get(name) for one in loads if isinstance(one, dict) for name in ("num_running_reqs", "num_waiting_reqs")
    ]
    running = sum(count for count in counts if type(count) is int)
    if running:
        return warn(Check.DRY_RUN, f"not sent: {running} requests are running, for which an update waits", _AGAIN)
    return None


def sees(url: str, where: str, keys: Keys, *, seconds: float = EMPTY_SECONDS) -> tuple[Finding, bool]:
    """Let a server read an empty folder: it refuses, and its words say whether it sees it (SGLang 0.5.23, measured).

    Args:
        url: The server; it has to be idle.
        where: The shared folder, or the one that it will be made in.
        keys: What it wants to be shown.
        seconds: Longest wait.

    Returns:
        What was found, and whether the server is as it was.
    """
    made = temporary(where)
    try:
        os.mkdir(made, 0o755)
        try:
            posted = post(url, UPDATE, {"model_path": made}, keys=keys, seconds=seconds)
        finally:
            os.rmdir(made)
    except OSError as error:
        said = error.strerror or type(error).__name__
        return warn(Check.VISIBILITY, f"not tried: no folder can be made in {where}: {said}", "make it writable"), True
    text = posted.text.lower()
    if posted.status == 400 and _SEEN in text:
        return ok(Check.VISIBILITY, f"proved: the server sees a new folder in {where}"), True
    if posted.status == 400 and any(one in text for one in _NOT_SEEN):
        return fail(
            Check.VISIBILITY,
            f"the server does not see a folder that was just made in {where}",
            "mount it at the same path on the server",
        ), True
    if posted.status is None:
        return _no_answer(Check.VISIBILITY, posted), False
    return fail(
        Check.VISIBILITY,
        f"to an update with an empty folder it answers {posted.status} ({_words(posted)}), which SGLang does not",
        "give the address of the server itself: something before it answers",
    ), posted.status >= 400


def resend(url: str, facts: ServerFacts, keys: Keys, *, seconds: float = RESEND_SECONDS) -> Resent:
    """Send a server the path that it runs, and compare what is loaded before and after.

    Args:
        url: The server; it has to be idle.
        facts: What it said of itself just before.
        keys: What it wants to be shown.
        seconds: Longest wait.
    """
    path = _path(facts)
    obstacle = _obstacle(facts, path)
    if obstacle is not None or path is None:
        return Resent(finding=obstacle or warn(Check.DRY_RUN, "not sent: it names no path", _AGAIN))
    before = _loaded(url, keys)
    if model_info(Asking(url, keys=keys, seconds=2.0))[1] != facts.info:
        return Resent(finding=warn(Check.DRY_RUN, "not sent: somebody else updates this server just now", _AGAIN))
    posted = post(url, UPDATE, {"model_path": path}, keys=keys, seconds=seconds)
    if posted.status is None:
        return Resent(finding=_no_answer(Check.DRY_RUN, posted))
    if posted.status != 200 or posted.success is not True:
        return Resent(
            finding=fail(
                Check.DRY_RUN,
                f"an update with its own weights ({path}) was refused: {posted.status} {_words(posted)}",
                "look into the server's log at this second",
            )
        )
    after = _loaded(url, keys)
    took = f"it took its own weights ({path}) again in {shown_seconds(posted.seconds)}"
    if before is None or after is None:
        said = f"{took}; which bytes are loaded it does not tell ({CHECKER})"
        return Resent(finding=ok(Check.DRY_RUN, said), seconds=posted.seconds)
    if before != after:
        return Resent(
            finding=fail(
                Check.DRY_RUN,
                f"it ran other weights than the files of {path} hold, and runs these now: checksum "
                f"{before.engine[:12]} before, {after.engine[:12]} after",
                "find out who changed these files since they were loaded, and sync once before you use rollouts",
            ),
            seconds=posted.seconds,
        )
    return Resent(finding=ok(Check.DRY_RUN, f"{took}; same checksum"), seconds=posted.seconds)


def _path(facts: ServerFacts) -> str | None:
    """What it runs, by all of its parts."""
    label = facts.live[0] if facts.live else None
    return label.model_path if label is not None and facts.labels_agree else None


def _obstacle(facts: ServerFacts, path: str | None) -> Finding | None:
    """Why sending a path again could change or hurt the server."""
    if path is None:
        return warn(
            Check.DRY_RUN,
            "its weights were not sent again: its parts do not agree which they are",
            f"sync once, and make {A_DRY_RUN} again",
        )
    start = facts.start
    started_with = start is not None and start.model_path == path
    if not os.path.isabs(path) and not (started_with and _REPOSITORY.fullmatch(path)):
        return warn(
            Check.DRY_RUN,
            f"its weights were not sent again: {path} is no absolute path, and would be looked up on a hub",
            "start the server with an absolute --model-path",
        )
    if start is not None and started_with and start.weight_version != facts.live[0].weight_version:
        return warn(
            Check.DRY_RUN,
            f"its weights were not sent again: it has version {facts.live[0].weight_version} under the path that it "
            "was started with, so that they came another way than by disk, and would be lost",
            "try it on a server that was just started",
        )
    if facts.started_with is not None and facts.started_with.memory_saver:
        return warn(
            Check.DRY_RUN,
            "its weights were not sent again: it has --enable-memory-saver, and they may be out of memory now",
            "sync once while it generates",
        )
    if facts.draft_model is not None:
        return warn(
            Check.DRY_RUN,
            "its weights were not sent again: they would be loaded into its draft model too",
            "try it on a server without a draft model",
        )
    seen = verdict_of(path) if os.path.isabs(path) and os.path.isdir(path) else Verdict()
    if seen.fault is not None:
        return fail(
            Check.DRY_RUN,
            f"its weights were not sent again, since that would kill it: {path}: {seen.fault}",
            "put a whole checkpoint there before the server is restarted",
        )
    if seen.unchecked is not None:
        return warn(
            Check.DRY_RUN,
            f"its weights were not sent again, since they may be torn: {path}: {seen.unchecked}",
            "make sure that this folder can be read here",
        )
    return None


def _loaded(url: str, keys: Keys) -> Checksum | None:
    return loaded_bytes(Asking(url, keys=keys, seconds=CHECKSUM_SECONDS))[1]


def _no_answer(name: Check, posted: Posted) -> Finding:
    return fail(
        name,
        f"no answer to an update after {shown_seconds(posted.seconds)}: {posted.error}",
        "look into the server's log: it may have died of it, or an update waits for requests that do not end",
    )


def _words(posted: Posted) -> str:
    return (posted.message or posted.text or "no text")[:200]
