"""Does the server let us in: the API key, and the administrator's key that the routes of weights want."""

from sglang_telemetry.names import Env
from sglang_telemetry.preflight.findings import Check, Finding, fail, ok, warn
from sglang_telemetry.server_truth.facts import Access, Program, ServerFacts
from sglang_telemetry.server_truth.keys import Keys

_BAD = {Access.MISSING, Access.REFUSED, Access.UNSENT}


def access(facts: ServerFacts, keys: Keys) -> Finding | None:
    """Are the keys right? None when it is not SGLang.

    Args:
        keys: Those that are set here.
    """
    if facts.program is not Program.SGLANG:
        return None
    for is_admin, found in ((False, facts.access), (True, facts.admin_access)):
        if found in _BAD:
            return _bad(facts, found, keys, is_admin=is_admin)
    workers = facts.started_with.tokenizer_workers if facts.started_with is not None else None
    if keys.admin_api_key is not None and (workers or 1) > 1 and facts.admin_access is Access.OPEN:
        return warn(
            Check.KEYS,
            "with more than one tokenizer worker SGLang does not ask for the admin key: anybody can change its weights",
            "start it with --tokenizer-worker-num 1",
        )
    if facts.admin_access is None and keys.admin_api_key is None:
        return warn(
            Check.KEYS,
            "whether it wants an admin key on its routes of weights could not be told",
            f"if it was started with --admin-api-key, set {Env.ADMIN_API_KEY} or {Env.ADMIN_API_KEY_FILE}",
        )
    if Access.ACCEPTED in {facts.access, facts.admin_access}:
        return ok(Check.KEYS, "the key that is set here is accepted")
    given = keys.api_key is not None or keys.admin_api_key is not None
    return ok(Check.KEYS, "it wants none, although one is set here" if given else "it wants none")


def _bad(facts: ServerFacts, found: Access, keys: Keys, *, is_admin: bool) -> Finding:
    which, what = ("admin key", "its routes of weights") if is_admin else ("API key", "all its routes")
    variable, file = (Env.ADMIN_API_KEY, Env.ADMIN_API_KEY_FILE) if is_admin else (Env.API_KEY, Env.API_KEY_FILE)
    if found is Access.UNSENT:
        reason, advice = (facts.key_error.reason, facts.key_error.advice) if facts.key_error is not None else ("", "")
        return fail(Check.KEYS, reason or "no key was sent", advice or "use https that is trusted here")
    if found is Access.MISSING:
        seen = f"401: it wants its {which} on {what}, and none is set here"
    elif is_admin and keys.admin_api_key is None:
        seen = f"401: it wants its {which} on {what}, and refuses the API key that is set here"
    else:
        seen = f"401: the key of {variable} or {file} is sent and refused on {what}"
        return fail(Check.KEYS, seen, f"set it to the {which} that the server was started with")
    return fail(Check.KEYS, seen, f"set {variable} or {file}, and let the trainer send the same key")
