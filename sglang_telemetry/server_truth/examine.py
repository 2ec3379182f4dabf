"""All that can be known of a server without changing it, once, for a user who wonders why it does not work.

The one decision: nothing that is asked has an effect or costs more than a few milliseconds; which bytes are loaded is
not asked, since the scheduler reads every one of them. A route is looked for with OPTIONS, which needs no key and runs
nothing: 405 where it is, 404 where it is not (SGLang 0.5.23, measured). ``/openapi.json`` is asked only where that does
not work: making it holds the HTTP process for 0.4 s the first time, and ``DISABLE_OPENAPI_DOC`` takes it away. What
goes through the scheduler, ``/server_info`` alone, comes last, since it blocks during a load.
"""

import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from sglang_telemetry.server_truth.asking import FAILED, Asking, text_of
from sglang_telemetry.server_truth.bounded import Response
from sglang_telemetry.server_truth.client import MAX_SERVER_INFO, model_info, started_with_of, version_of
from sglang_telemetry.server_truth.facts import Access, Label, Program, ServerFacts
from sglang_telemetry.server_truth.keys import NO_KEYS, Keys
from sglang_telemetry.server_truth.no_answer import Why, why
from sglang_telemetry.server_truth.routes import (
    BEGIN_UPDATE,
    CHECKER,
    CONTINUE,
    FLUSH,
    LOADS,
    LOADS_CORE,
    MODEL_INFO,
    OLD_SERVER_INFO,
    OPENAPI,
    PAUSE,
    PING,
    READY,
    SERVER_INFO,
    UPDATE,
    UPDATE_VERSION,
    is_well,
)

EXAMINE_SECONDS = 10.0
WEIGHT_ROUTES = (
    UPDATE,
    "/update_weights_from_tensor",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    UPDATE_VERSION,
    BEGIN_UPDATE,
    CHECKER,
    FLUSH,
    PAUSE,
    CONTINUE,
    LOADS,
)
_REFUSED_FORM = b'{"action":3}'
"""An action is a text: 400 with the right key, 401 without, in 3 ms, from the process that serves HTTP, also while the
scheduler is stopped (SGLang 0.5.23, measured). An unknown text comes as far as the scheduler, and leaves a traceback in
its log."""
_REFUSALS = {401, 403}
_MAX_REPLICAS = 1024

_T = TypeVar("_T", covariant=True)


class _Question(Protocol[_T]):
    def __call__(self, asking: Asking, *, key: bool) -> tuple[int | None, _T]: ...


def examine(
    url: str,
    *,
    keys: Keys = NO_KEYS,
    seconds: float = EXAMINE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> ServerFacts:
    """Find out what a server is and does; it raises nothing.

    Args:
        url: What :func:`~sglang_telemetry.server_truth.address.base_url` returned.
        keys: Shown only where the server refuses without.
        seconds: Longest duration of all of it; one question gets half of that at most.
        clock: Monotonic seconds.
        now: Unix seconds.
    """
    asking = Asking(url, keys=keys, seconds=seconds, at_most=seconds / 2, clock=clock)
    began = now()
    try:
        ready = asking(READY, 0)
    except FAILED as error:
        return ServerFacts(url=url, why=why(error, url))
    # uvicorn makes its whole seconds anew once a second, so that they are 0 to 2 s old.
    skew = ready.date + 1.0 - (began + now()) / 2 if ready.date is not None else None
    said_ready = is_well(ready.status)
    access, info_status, info = _with_key_if_wanted(asking, MODEL_INFO, model_info)
    key_error = _key_error(asking, access)
    if info_status is None and access is None and asking.error is not None:
        return ServerFacts(
            url=url,
            why=why(asking.error, url),
            ready=said_ready,
            ready_status=ready.status,
            clock_skew=skew,
        )
    refused = access not in {None, Access.OPEN} and (said_ready is not None or _refuses_as_sglang(asking))
    if info is None and not refused:
        program, looks_like, version = _other(asking, ready)
        return ServerFacts(
            url=url,
            program=program,
            looks_like=looks_like,
            version=version,
            ready=said_ready,
            ready_status=ready.status,
            info_status=info_status,
            clock_skew=skew,
        )
    key = access is Access.ACCEPTED
    routes = _routes(asking, key)
    program = _router_or_server(asking, routes, key)
    old_names = asking.json(MODEL_INFO, method="OPTIONS", key=False)[0] == 404
    health, _ = asking.json(PING, key=key)
    _, loads = asking.json(LOADS_CORE, key=key)
    admin, _, _ = _with_key_if_wanted(asking, CHECKER, _refused_form)
    admin_error = _key_error(asking, admin)
    settings_status, settings = _server_info(asking, key)
    version = version_of(settings) or version_of(loads)
    name = "SGLang router" if program is Program.SGLANG_ROUTER else "SGLang"
    return ServerFacts(
        url=url,
        program=program,
        looks_like=f"{name} {version}" if version is not None else name,
        version=version,
        ready=said_ready,
        ready_status=ready.status,
        healthy=is_well(health),
        info=info,
        info_status=info_status,
        start=_label(settings) if settings else None,
        live=_live(settings),
        server_info_status=settings_status,
        weight_cache_mode=text_of(settings, "weight_cache_mode"),
        quantization=text_of(settings, "quantization"),
        draft_model=text_of(settings, "speculative_draft_model_path"),
        started_with=started_with_of(settings),
        routes=routes,
        access=access,
        admin_access=admin,
        old_names=old_names,
        key_error=key_error or admin_error,
        clock_skew=skew,
    )


def _with_key_if_wanted(asking: Asking, route: str, question: _Question[_T]) -> tuple[Access | None, int | None, _T]:
    """Ask without the key, and with it only where that is refused: so it is known which is needed."""
    status, found = question(asking, key=False)
    if status not in _REFUSALS:
        return (Access.OPEN if status is not None and status < 500 and status != 404 else None), status, found
    if asking.keys.of_route(route) is None:
        return Access.MISSING, status, found
    status, found = question(asking, key=True)
    if status is None:
        return (Access.UNSENT if isinstance(asking.error, ssl.SSLCertVerificationError) else None), None, found
    return (Access.REFUSED if status in _REFUSALS else Access.ACCEPTED), status, found


def _refused_form(asking: Asking, *, key: bool) -> tuple[int | None, None]:
    """Whether the route lets us in, and nothing else."""
    return asking.json(CHECKER, method="POST", body=_REFUSED_FORM, key=key)[0], None


def _refuses_as_sglang(asking: Asking) -> bool:
    """Not a proxy that has users of its own, and refuses ``/ready`` too."""
    return asking.json(MODEL_INFO, key=False)[1].get("error") == "Unauthorized"


def _key_error(asking: Asking, access: Access | None) -> Why | None:
    return why(asking.error, asking.url) if access is Access.UNSENT and asking.error is not None else None


def _routes(asking: Asking, key: bool) -> dict[str, bool]:
    """Which routes are there; those that OPTIONS does not tell are looked up in what the server says of itself."""
    statuses = {route: asking.json(route, method="OPTIONS", key=False)[0] for route in WEIGHT_ROUTES}
    found = {route: status == 405 for route, status in statuses.items() if status in {404, 405}}
    if len(found) < len(statuses):
        _, described = asking.json(OPENAPI, MAX_SERVER_INFO, key=key)
        paths = described.get("paths")
        if isinstance(paths, dict):
            found = {route: route in paths for route in WEIGHT_ROUTES}
    return found


def _router_or_server(asking: Asking, routes: dict[str, bool], key: bool) -> Program:
    """A router answers for its workers, and has a list of them (its documentation)."""
    if routes.get(UPDATE, False):
        return Program.SGLANG
    workers = asking.json("/workers", key=key)[1].get("workers")
    return Program.SGLANG_ROUTER if isinstance(workers, list) else Program.SGLANG


def _server_info(asking: Asking, key: bool) -> tuple[int | None, dict[str, Any]]:
    status, fields = asking.json(SERVER_INFO, MAX_SERVER_INFO, key=key)
    if status == 404:
        status, fields = asking.json(OLD_SERVER_INFO, MAX_SERVER_INFO, key=key)
    return status, fields if status == 200 else {}


def _other(asking: Asking, ready: Response) -> tuple[Program, str, str | None]:
    """What it is if it is not SGLang; vLLM has ``/version`` and owns its models (its source)."""
    status, models = asking.json("/v1/models")
    data = models.get("data")
    owner = text_of(data[0], "owned_by") if isinstance(data, list) and data and isinstance(data[0], dict) else None
    version = version_of(asking.json("/version")[1]) if owner is not None or status in _REFUSALS else None
    if owner == "vllm" or (owner is None and version is not None):
        return Program.VLLM, f"vLLM {version}" if version is not None else "vLLM", version
    if owner is not None:
        return Program.OTHER, f"a server of the OpenAI API by {owner!r}", version
    if ready.server is not None and ready.server != "uvicorn":
        return Program.OTHER, ready.server, None
    return Program.OTHER, "another program", None


def _live(settings: dict[str, Any]) -> tuple[Label, ...]:
    states = settings.get("internal_states")
    replicas = states[:_MAX_REPLICAS] if isinstance(states, list) else ()
    return tuple(_label(state) for state in replicas if isinstance(state, dict))


def _label(settings: dict[str, Any]) -> Label:
    """Three of its fields; among the others are both keys, so that what is read is named here and above."""
    return Label(
        model_path=text_of(settings, "model_path"),
        weight_version=text_of(settings, "weight_version"),
        load_format=text_of(settings, "load_format"),
    )
