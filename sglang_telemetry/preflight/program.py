"""What listens there, of which version, and whether it has the routes of a sync."""

from sglang_telemetry.preflight.address import no_answer
from sglang_telemetry.preflight.findings import A_DRY_RUN, Check, Finding, fail, ok, warn
from sglang_telemetry.server_truth.facts import Program, ServerFacts
from sglang_telemetry.server_truth.routes import (
    CHECKER,
    CONTINUE,
    FLUSH,
    MODEL_INFO,
    OLD_MODEL_INFO,
    PAUSE,
    READY,
    UPDATE,
)

MEASURED = "0.5.23"
"""The SGLang that what we know was measured with."""
_OTHERS = (CHECKER, FLUSH, PAUSE, CONTINUE)


def program(facts: ServerFacts) -> Finding | None:
    """Is it SGLang? None when nobody answered at all."""
    if facts.program is None:
        if facts.why is None or facts.ready_status is None:
            return None
        reason, fix = no_answer(facts.why)
        return fail(Check.PROGRAM, f"it answers {READY} and then not {MODEL_INFO}: {reason}", fix)
    looks_like = facts.looks_like or "another program"
    if facts.program is Program.SGLANG:
        return ok(Check.PROGRAM, looks_like)
    if facts.program is Program.SGLANG_ROUTER:
        return fail(
            Check.PROGRAM,
            f"{looks_like}, which passes no weights on to its workers",
            "give the address of each worker: --server for each, or servers=",
        )
    return fail(
        Check.PROGRAM,
        f"it is not SGLang: it looks like {looks_like}, and {MODEL_INFO} answers {facts.info_status or 'nothing'}",
        "give the address of an SGLang server",
    )


def version(facts: ServerFacts) -> Finding | None:
    """Is it a version that we know? None when it does not tell."""
    if facts.program is not Program.SGLANG or facts.version is None:
        return None
    if facts.version == MEASURED:
        return ok(Check.VERSION, "the one whose updates were measured")
    return warn(
        Check.VERSION,
        f"{facts.version}; what is known here of updates was measured with {MEASURED}",
        f"try one update before the training: {A_DRY_RUN}",
    )


def routes(facts: ServerFacts) -> Finding | None:
    """Has it the routes of a sync from disk? None when that cannot be told."""
    if facts.program is not Program.SGLANG or not facts.routes:
        return None
    if facts.routes.get(UPDATE) is False:
        return fail(
            Check.ROUTES,
            f"it has no {UPDATE}",
            "upgrade SGLang, or start its Python server (not SGLANG_RUST_SERVER=1)",
        )
    missing = [route for route in _OTHERS if facts.routes.get(route) is False]
    if missing:
        return warn(
            Check.ROUTES,
            f"it has {UPDATE}, and not {', '.join(missing)}",
            f"upgrade SGLang to {MEASURED}",
        )
    known = f"all {1 + len(_OTHERS)} that a sync uses are there"
    old = f"; its other routes have their old names ({OLD_MODEL_INFO})" if facts.old_names else ""
    return ok(Check.ROUTES, f"{known}{old}")
