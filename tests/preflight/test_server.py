"""What listens there: program, version, routes, keys, state, loader, clock."""

from dataclasses import replace
from typing import Any

import pytest

from sglang_telemetry.names import Env
from sglang_telemetry.preflight.access import access
from sglang_telemetry.preflight.findings import Check, Finding, Level
from sglang_telemetry.preflight.loader import loader
from sglang_telemetry.preflight.program import program, routes, version
from sglang_telemetry.preflight.state import clock, ready, weights
from sglang_telemetry.server_truth.client import StartedWith
from sglang_telemetry.server_truth.examine import examine
from sglang_telemetry.server_truth.facts import Access, Label, Program, ServerFacts
from sglang_telemetry.server_truth.keys import NO_KEYS, Keys
from sglang_telemetry.server_truth.no_answer import NoAnswer, Why
from sglang_telemetry.testing import FakeSGLang
from tests.server_truth.sites import body, never, site

SGLANG = ServerFacts(url="http://h:1", program=Program.SGLANG, looks_like="SGLang 0.5.23")
LABEL = Label(model_path="/models/base", weight_version="7", load_format="auto")
NGINX = (404, b"<html><head><title>404 Not Found</title></head><body>nginx/1.25.3</body></html>")


def level_of(found: Finding | None) -> Level | None:
    return None if found is None else found.level


def test_sglang() -> None:
    """A server that is well has nothing but good findings."""
    with FakeSGLang("/models/base") as server:
        facts = examine(server.url)
    found = [program(facts), version(facts), routes(facts), access(facts, NO_KEYS), ready(facts), weights(facts)]
    found += [clock(facts), loader(facts)]
    assert [(one.name.value, one.level.value, one.reason) for one in found if one is not None] == [
        ("program", "ok", "SGLang 0.5.23"),
        ("version", "ok", "the one whose updates were measured"),
        ("routes", "ok", "all 5 that a sync uses are there"),
        ("keys", "ok", "it wants none"),
        ("ready", "ok", "/ready answers 200"),
        ("weights", "ok", "it runs /models/base as version default"),
        ("clock", "ok", "like ours, to a few seconds"),
        ("loader", "ok", "--load-format auto takes updates from disk"),
    ]


@pytest.mark.parametrize(
    ("answers", "name", "words"),
    [
        (dict.fromkeys(("/ready", "/model_info", "/v1/models"), NGINX), "nginx/1.25.3", "it looks like nginx/1.25.3"),
        (
            {"/version": body(version="0.11.2"), "/v1/models": body(data=[{"owned_by": "vllm"}])},
            "uvicorn",
            "it looks like vLLM 0.11.2",
        ),
        ({}, "uvicorn", "it looks like another program, and /model_info answers 404"),
    ],
)
def test_another_program(answers: Any, name: str, words: str) -> None:
    """What it looks like."""
    with site(answers, server=name) as server:
        found = program(examine(server.url))
    assert found is not None
    assert (found.level, found.fix) == (Level.FAIL, "give the address of an SGLang server")
    assert words in found.reason


def test_router() -> None:
    """It passes no weights on."""
    with site({"/ready": (200, b""), "/get_model_info": body(model_path="/w"), "/workers": body(workers=[])}) as server:
        found = program(examine(server.url))
    assert found is not None
    assert (found.level, found.fix) == (Level.FAIL, "give the address of each worker: --server for each, or servers=")


def test_model_info_that_never_comes() -> None:
    """It answers one question and not the next."""
    with site({"/ready": (200, b""), "/model_info": never}) as server:
        found = program(examine(server.url, seconds=0.6))
    assert found is not None
    assert (found.level, found.reason.startswith("it answers /ready and then not /model_info: ")) == (Level.FAIL, True)


def test_old_names() -> None:
    """Good, with a note; what is not there at all is a warning."""
    answers = {
        "/get_model_info": body(model_path="/w"),
        "/get_server_info": body(model_path="/w", version="0.4.1", load_format="auto"),
        "/update_weights_from_disk": (405, b""),
    }
    with site(answers) as server:
        facts = examine(server.url)
    found = routes(facts)
    assert found == Finding(
        Check.ROUTES,
        Level.WARN,
        "it has /update_weights_from_disk, and not /weights_checker, /flush_cache, /pause_generation, "
        "/continue_generation",
        "upgrade SGLang to 0.5.23",
    )
    whole = dict.fromkeys(("/update_weights_from_disk", "/flush_cache"), True)
    known = routes(replace(SGLANG, routes=whole, old_names=True))
    assert known is not None
    assert (known.level, known.reason.endswith("its other routes have their old names (/get_model_info)")) == (
        Level.OK,
        True,
    )
    assert level_of(version(facts)) is Level.WARN


def test_no_update_route() -> None:
    """The embedded Rust server has none."""
    found = routes(replace(SGLANG, routes={"/update_weights_from_disk": False}))
    assert level_of(found) is Level.FAIL
    assert routes(SGLANG) is None


@pytest.mark.parametrize(
    ("server_keys", "keys", "level", "words"),
    [
        ({}, Keys(), Level.OK, "it wants none"),
        ({}, Keys(admin_api_key="k-1"), Level.OK, "it wants none, although one is set here"),
        ({"admin_api_key": "k-1"}, Keys(admin_api_key="k-1"), Level.OK, "the key that is set here is accepted"),
        ({"admin_api_key": "k-1"}, Keys(), Level.FAIL, Env.ADMIN_API_KEY_FILE),
        ({"admin_api_key": "k-1"}, Keys(admin_api_key="k-2"), Level.FAIL, "refused on its routes of weights"),
        ({"api_key": "k-1"}, Keys(), Level.FAIL, f"set {Env.API_KEY} or {Env.API_KEY_FILE}"),
        ({"api_key": "k-1"}, Keys(api_key="k-2"), Level.FAIL, "refused on all its routes"),
        (
            {"api_key": "k-1", "admin_api_key": "k-2"},
            Keys(api_key="k-1"),
            Level.FAIL,
            f"refuses the API key that is set here | set {Env.ADMIN_API_KEY} or",
        ),
    ],
)
def test_keys(server_keys: dict[str, str], keys: Keys, level: Level, words: str) -> None:
    """Which variable is to be set, and never its value."""
    with FakeSGLang(**server_keys) as server:  # type: ignore[arg-type]
        found = access(examine(server.url, keys=keys), keys)
    assert found is not None
    assert found.level is level
    assert words in f"{found.reason} | {found.fix}"
    assert "k-1" not in repr(found)
    assert "k-2" not in repr(found)


def test_key_that_is_not_sent_and_one_that_is_not_asked_for() -> None:
    """An untrusted certificate, and more than one tokenizer worker."""
    why = Why(failure=NoAnswer.TLS, reason="not trusted: self-signed", advice="set SSL_CERT_FILE to it")
    unsent = access(replace(SGLANG, access=Access.UNSENT, key_error=why), Keys(api_key="k"))
    assert unsent == Finding(Check.KEYS, Level.FAIL, "not trusted: self-signed", "set SSL_CERT_FILE to it")
    open_to_all = replace(
        SGLANG, access=Access.OPEN, admin_access=Access.OPEN, started_with=StartedWith(tokenizer_workers=4)
    )
    assert level_of(access(open_to_all, Keys(admin_api_key="k"))) is Level.WARN


def test_paused() -> None:
    """The one request that ends it."""
    with FakeSGLang() as server:
        server._life.engine.pause("retract")
        found = ready(examine(server.url))
        server._life.routes._healthy = False
        unhealthy = ready(examine(server.url))
    assert found == Finding(
        Check.READY,
        Level.FAIL,
        "it is paused: /ready answers 503, /ping 200",
        "POST /continue_generation {}",
    )
    assert unhealthy is not None
    assert (unhealthy.level, unhealthy.reason) == (
        Level.FAIL,
        "it calls itself unhealthy: /ready and /ping answer 503",
    )
    unknown = ready(replace(SGLANG, ready=False))
    assert unknown is not None
    assert unknown.reason == "it is paused or unhealthy: /ready answers 503, /ping does not tell which"


def test_scheduler_that_does_not_answer() -> None:
    """It loads, or it hangs: somebody has to look again."""
    answers = {"/ready": (200, b""), "/model_info": body(model_path="/w"), "/server_info": never}
    with site(answers) as server:
        found = ready(examine(server.url, seconds=1.0))
    assert level_of(found) is Level.WARN


def test_update_that_was_not_flushed() -> None:
    """``/model_info`` and the scheduler differ; so may replicas."""
    with FakeSGLang("/models/base") as server:
        scheduler = server._life.engine.scheduler
        server._life.engine.scheduler = replace(scheduler, weight_version="8")
        found = weights(examine(server.url))
    assert found is not None
    assert (found.level, found.reason) == (
        Level.WARN,
        "an update was not flushed: /model_info says /models/base as version default, its scheduler /models/base as "
        "version 8",
    )
    states = [{"model_path": "/w", "weight_version": version} for version in ("7", "6")]
    answers = {"/ready": (200, b""), "/model_info": body(model_path="/w"), "/server_info": body(internal_states=states)}
    with site(answers) as site_:
        replicas = weights(examine(site_.url))
    assert level_of(replicas) is Level.FAIL


@pytest.mark.parametrize(
    ("skew", "level", "words"),
    [
        (2.0, Level.OK, "like ours"),
        (-7.0, Level.WARN, "its clock is 7 s behind ours"),
        (300.0, Level.WARN, "its clock is 300 s ahead of ours; alerts that compare stamps of both hosts are wrong"),
    ],
)
def test_clock(skew: float, level: Level, words: str) -> None:
    """Alerts compare stamps of both hosts."""
    found = clock(replace(SGLANG, clock_skew=skew))
    assert found is not None
    assert (found.level, words in found.reason) == (level, True)
    assert clock(SGLANG) is None


@pytest.mark.parametrize(
    ("load_format", "settings", "level"),
    [
        ("auto", {}, Level.OK),
        ("safetensors", {"weight_cache_mode": "off"}, Level.OK),
        ("dummy", {}, Level.FAIL),
        ("sharded_state", {}, Level.FAIL),
        ("gguf", {}, Level.FAIL),
        ("bitsandbytes", {}, Level.FAIL),
        ("pt", {}, Level.WARN),
        ("auto", {"weight_cache_mode": "ipc"}, Level.FAIL),
        ("auto", {"draft_model": "/d"}, Level.WARN),
        ("auto", {"quantization": "fp8"}, Level.WARN),
        (None, {}, None),
    ],
)
def test_loader(load_format: str | None, settings: dict[str, Any], level: Level | None) -> None:
    """Which ways of loading refuse an update from disk, or die of it."""
    facts = replace(SGLANG, live=(replace(LABEL, load_format=load_format),), **settings)
    assert level_of(loader(facts)) is level
