"""The server as it is now: ready, all parts of it on the same weights, its clock like ours."""

from sglang_telemetry.preflight.findings import Check, Finding, fail, ok, warn
from sglang_telemetry.server_truth.facts import Label, Program, ServerFacts
from sglang_telemetry.server_truth.routes import CONTINUE, FLUSH, MODEL_INFO, PING, READY

CLOCK_WARN_SECONDS = 5.0
CLOCK_BAD_SECONDS = 60.0


def ready(facts: ServerFacts) -> Finding | None:
    """Does it generate? None when it does not tell."""
    if facts.program is not Program.SGLANG:
        return None
    if facts.paused:
        return fail(Check.READY, f"it is paused: {READY} answers 503, {PING} 200", f"POST {CONTINUE} {{}}")
    if facts.ready is False:
        unhealthy = facts.healthy is False
        return fail(
            Check.READY,
            f"it calls itself unhealthy: {READY} and {PING} answer 503"
            if unhealthy
            else f"it is paused or unhealthy: {READY} answers 503, {PING} does not tell which",
            "GET /health once; restart the server if that answers 503 too"
            if unhealthy
            else f"POST {CONTINUE} {{}}; if it stays so, restart the server",
        )
    if facts.info is not None and facts.server_info_status is None:
        return warn(
            Check.READY,
            "its scheduler did not answer in time: it is loading weights, or it hangs",
            "run this again in a minute; if it is the same, restart the server",
        )
    return ok(Check.READY, f"{READY} answers 200") if facts.ready else None


def weights(facts: ServerFacts) -> Finding | None:
    """Do all parts of it say the same of the weights? None when it does not tell."""
    if facts.info is None:
        return None
    mine = Label(model_path=facts.info.model_path, weight_version=facts.info.weight_version)
    if facts.labels_agree is None:
        return None
    if facts.labels_agree:
        return ok(Check.WEIGHTS, f"it runs {_shown(mine)}")
    replicas = sorted({_shown(one) for one in facts.live})
    if len(replicas) > 1:
        return fail(
            Check.WEIGHTS,
            f"its {len(facts.live)} replicas run different weights: {'; '.join(replicas)}",
            "sync once more, and restart the server if they still differ",
        )
    return warn(
        Check.WEIGHTS,
        f"an update was not flushed: {MODEL_INFO} says {_shown(mine)}, its scheduler {_shown(facts.live[0])}",
        f"POST {FLUSH} when no request runs, and sync once more",
    )


def clock(facts: ServerFacts) -> Finding | None:
    """Is its clock like ours? Alerts compare stamps of both. None when it does not tell."""
    skew = facts.clock_skew
    if skew is None:
        return None
    away = abs(skew)
    if away <= CLOCK_WARN_SECONDS:
        return ok(Check.CLOCK, "like ours, to a few seconds")
    which = "ahead of" if skew > 0 else "behind"
    bad = "; alerts that compare stamps of both hosts are wrong" if away > CLOCK_BAD_SECONDS else ""
    return warn(Check.CLOCK, f"its clock is {away:.0f} s {which} ours{bad}", "let both hosts ask the same time server")


def _shown(label: Label) -> str:
    return f"{label.model_path or 'an unknown path'} as version {label.weight_version or 'unknown'}"
