"""Examining servers of all kinds: what is found, and that nothing was changed or given away."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_telemetry.server_truth.client import ModelInfo, StartedWith
from sglang_telemetry.server_truth.examine import WEIGHT_ROUTES, examine
from sglang_telemetry.server_truth.facts import Access, Label, Program, ServerFacts
from sglang_telemetry.server_truth.keys import Keys
from sglang_telemetry.server_truth.no_answer import NoAnswer
from sglang_telemetry.testing import FakeSGLang
from sglang_telemetry.testing.fake_faults import Fault
from tests.harness.processes import free_port
from tests.server_truth.sites import Routes, body, make_certificate, never, site, talker

KEY, ADMIN = "k-7d21-normal", "k-90ab-admin"
START = Label(model_path="/models/start", weight_version="default", load_format="auto")
STAND_IN = {
    "/update_weights_from_disk",
    "/update_weight_version",
    "/weights_checker",
    "/flush_cache",
    "/pause_generation",
    "/continue_generation",
    "/v1/loads",
}
INFO: dict[str, Any] = {"model_path": "/w", "weight_version": "7", "tokenizer_path": "/w"}
NOT_FOUND = (404, b'{"detail":"Not Found"}')


def whole(server: FakeSGLang, access: Access = Access.OPEN, admin: Access = Access.OPEN) -> ServerFacts:
    """All that is known of an idle server that runs what it was started with."""
    return ServerFacts(
        url=server.url,
        program=Program.SGLANG,
        looks_like="SGLang 0.5.23",
        version="0.5.23",
        ready=True,
        ready_status=200,
        healthy=True,
        info=ModelInfo(model_path="/models/start", weight_version="default", tokenizer_path="/models/start"),
        info_status=200,
        start=START,
        live=(START,),
        server_info_status=200,
        started_with=StartedWith(tokenizer_workers=1, memory_saver=False),
        routes={route: route in STAND_IN for route in WEIGHT_ROUTES},
        access=access,
        admin_access=admin,
    )


def test_sglang() -> None:
    """Everything, and nothing was changed: no health check, no checksum, no route that does something."""
    with FakeSGLang("/models/start") as server:
        before = server.state()
        found = examine(server.url)
        assert found == whole(server)
        assert (found.paused, found.labels_agree, found.load_format) == (False, True, "auto")
        assert found.info is not None
        assert (found.info.model_type, found.info.architectures) == ("qwen2", ("Qwen2ForCausalLM",))
        assert server.state() == before
        asked = {(one.method, one.path.partition("?")[0]) for one in server.requests}
        [refused] = [one for one in server.requests if one.method not in {"GET", "OPTIONS"}]
    assert (refused.path, refused.json()) == ("/weights_checker", {"action": 3})
    assert ("GET", "/weights_checker") not in asked
    assert not {path for method, path in asked if "health" in path or (method == "GET" and "flush" in path)}


@pytest.mark.parametrize(("ahead", "skew"), [(0.0, 0.0), (-30.0, 30.0), (30.0, -30.0)])
def test_clock(ahead: float, skew: float) -> None:
    """The server's clock against ours, to a second: positive where it is ahead."""
    answer = b"HTTP/1.1 200 OK\r\nDate: Thu, 03 Dec 2026 02:13:30 GMT\r\nContent-Length: 0\r\n\r\n"
    with talker(answer) as url:
        found = examine(url, now=lambda: 1796264011.0 + ahead)
    assert found.clock_skew == skew


KEYS = [
    ({}, Keys(), Access.OPEN, Access.OPEN),
    ({}, Keys(api_key=KEY, admin_api_key=ADMIN), Access.OPEN, Access.OPEN),
    ({"api_key": KEY}, Keys(api_key=KEY), Access.ACCEPTED, Access.ACCEPTED),
    ({"admin_api_key": ADMIN}, Keys(admin_api_key=ADMIN), Access.OPEN, Access.ACCEPTED),
    (
        {"api_key": KEY, "admin_api_key": ADMIN},
        Keys(api_key=KEY, admin_api_key=ADMIN),
        Access.ACCEPTED,
        Access.ACCEPTED,
    ),
]


@pytest.mark.parametrize(("server_keys", "keys", "access", "admin"), KEYS)
def test_keys_that_are_right(server_keys: dict[str, str], keys: Keys, access: Access, admin: Access) -> None:
    """All is known, and it is told which of them was needed; no key is shown to a server that wants none."""
    with FakeSGLang("/models/start", **server_keys) as server:  # type: ignore[arg-type]
        assert examine(server.url, keys=keys) == whole(server, access, admin)
        if not server_keys:
            assert not [one for one in server.requests if "authorization" in one.headers]


def test_keys_that_are_missing_or_refused() -> None:
    """It is SGLang all the same, and each group of routes says what is wrong."""
    with FakeSGLang("/models/start", api_key=KEY, admin_api_key=ADMIN) as server:
        nothing = examine(server.url)
        wrong = examine(server.url, keys=Keys(api_key=ADMIN, admin_api_key=KEY))
        one = examine(server.url, keys=Keys(api_key=KEY))
        state = whole(server)
    assert nothing == ServerFacts(
        url=server.url,
        program=Program.SGLANG,
        looks_like="SGLang",
        ready=True,
        ready_status=200,
        info_status=401,
        server_info_status=401,
        routes=state.routes,
        access=Access.MISSING,
        admin_access=Access.MISSING,
    )
    assert wrong == replace(nothing, access=Access.REFUSED, admin_access=Access.REFUSED)
    assert one == replace(state, access=Access.ACCEPTED, admin_access=Access.REFUSED)


def test_no_key_is_in_what_was_found() -> None:
    """The real ``/server_info`` has both keys in it, in three places."""
    leak = {"api_key": KEY, "admin_api_key": ADMIN, "launch_command": f"--api-key {KEY}", "model_path": "/w"}
    routes = {"/ready": (200, b""), "/model_info": body(**INFO), "/server_info": body(**leak, internal_states=[leak])}
    with site(routes) as server:
        found = examine(server.url, keys=Keys(api_key=KEY, admin_api_key=ADMIN))
    assert found.start == Label(model_path="/w")
    assert (KEY in repr(found), ADMIN in repr(found)) == (False, False)


def test_how_it_was_started() -> None:
    """Three settings that decide what an update does, of an answer that holds keys too."""
    said = body(weight_cache_mode="ipc", quantization="fp8", speculative_draft_model_path="/d", api_key=KEY)
    routes: Routes = {"/ready": (200, b""), "/model_info": body(**INFO)}
    with site({**routes, "/server_info": said}) as server:
        found = examine(server.url)
    assert (found.weight_cache_mode, found.quantization, found.draft_model) == ("ipc", "fp8", "/d")
    with site({**routes, "/server_info": (500, said[1])}) as server:
        found = examine(server.url)
    assert (found.server_info_status, found.weight_cache_mode, found.start) == (500, None, None)


def test_labels_that_differ() -> None:
    """After a 400 whose weights are new, ``/model_info`` shows the old version, the scheduler the new one."""
    with FakeSGLang("/models/start", faults=[Fault.LABEL_WITHOUT_WEIGHTS]) as server:
        scheduler = server._life.engine.scheduler
        server._life.engine.scheduler = replace(scheduler, weight_version="8")
        found = examine(server.url)
    assert (found.live[0].weight_version, found.labels_agree) == ("8", False)
    assert found.info is not None
    assert found.info.weight_version == "default"


def test_replicas_that_differ() -> None:
    """One of two did not take the last update."""
    states = [{"model_path": "/w", "weight_version": version} for version in ("7", "6")]
    routes = {
        "/ready": (200, b""),
        "/model_info": body(**INFO),
        "/server_info": body(internal_states=states),
    }
    with site(routes) as server:
        found = examine(server.url)
    assert ([one.weight_version for one in found.live], found.labels_agree) == (["7", "6"], False)


def test_paused_and_unhealthy() -> None:
    """``/ready`` says 503 to both; ``/ping`` tells them apart."""
    with FakeSGLang() as server:
        server._life.engine.pause("retract")
        paused = examine(server.url)
        server._life.routes._healthy = False
        unhealthy = examine(server.url)
    assert (paused.ready, paused.healthy, paused.paused) == (False, True, True)
    assert (unhealthy.ready, unhealthy.healthy, unhealthy.paused) == (False, False, False)


def test_scheduler_that_is_busy() -> None:
    """During a load what goes through it does not come; the rest does."""

    routes: Routes = {
        "/ready": (200, b""),
        "/ping": (200, b""),
        "/model_info": body(**INFO),
        "/v1/loads": body(version="0.5.23"),
        "/server_info": never,
        "/weights_checker": (400, b"{}"),
    }
    with site(routes) as server:
        found = examine(server.url, seconds=1.0)
    assert (found.version, found.info, found.server_info_status) == ("0.5.23", ModelInfo(**INFO), None)
    assert (found.access, found.admin_access, found.labels_agree) == (Access.OPEN, Access.OPEN, None)


def test_old_names() -> None:
    """Servers from before ``/model_info`` and ``/server_info``, without a checksum."""
    routes = {
        "/ready": NOT_FOUND,
        "/get_model_info": body(model_path="/w"),
        "/get_server_info": body(model_path="/w", version="0.4.1", quantization="fp8", load_format="auto"),
        "/update_weights_from_disk": (405, b""),
    }
    with site(routes) as server:
        found = examine(server.url)
    assert (found.program, found.version, found.quantization, found.load_format) == (
        Program.SGLANG,
        "0.4.1",
        "fp8",
        "auto",
    )
    assert (found.ready, found.paused, found.old_names, found.admin_access) == (None, None, True, None)
    assert found.routes == {route: route == "/update_weights_from_disk" for route in WEIGHT_ROUTES}


def test_old_server_that_refuses_everything() -> None:
    """Without ``/ready``, so that this is refused too; it still refuses as SGLang does."""
    refused = (401, b'{"error":"Unauthorized"}')
    with site(dict.fromkeys(("/ready", "/model_info", "/server_info"), refused)) as server:
        found = examine(server.url)
    assert (found.program, found.access, found.ready_status) == (Program.SGLANG, Access.MISSING, 401)


def test_routes_that_options_does_not_tell() -> None:
    """A proxy answers it itself: then the server's own description is read."""
    routes = {
        **dict.fromkeys(WEIGHT_ROUTES, (204, b"")),
        "/ready": (200, b""),
        "/model_info": body(**INFO),
        "/openapi.json": body(paths={"/update_weights_from_disk": {"post": {}}, "/x": {}}),
    }
    with site(routes) as server:
        assert examine(server.url).routes == {route: route == "/update_weights_from_disk" for route in WEIGHT_ROUTES}
    with site(routes | {"/openapi.json": NOT_FOUND}) as server:
        assert examine(server.url).routes == {}


def test_router() -> None:
    """It answers for its workers, and passes no weights on."""
    routes = {"/ready": (200, b""), "/get_model_info": body(model_path="/w"), "/workers": body(workers=[], total=0)}
    with site(routes) as server:
        found = examine(server.url)
    assert (found.program, found.looks_like) == (Program.SGLANG_ROUTER, "SGLang router")


NGINX = (404, b"<html><head><title>404 Not Found</title></head><body>nginx/1.25.3</body></html>")
OTHERS: list[tuple[Routes, str, Program, str, str | None]] = [
    (
        {"/health": (200, b""), "/version": body(version="0.11.2"), "/v1/models": body(data=[{"owned_by": "vllm"}])},
        "uvicorn",
        Program.VLLM,
        "vLLM 0.11.2",
        "0.11.2",
    ),
    (
        {"/version": body(version="0.11.2"), "/v1/models": (401, b'{"error":"Unauthorized"}')},
        "uvicorn",
        Program.VLLM,
        "vLLM 0.11.2",
        "0.11.2",
    ),
    (
        {"/v1/models": body(data=[{"owned_by": "llamacpp"}])},
        "uvicorn",
        Program.OTHER,
        "a server of the OpenAI API by 'llamacpp'",
        None,
    ),
    (
        dict.fromkeys(("/ready", "/model_info", "/v1/models"), NGINX),
        "nginx/1.25.3",
        Program.OTHER,
        "nginx/1.25.3",
        None,
    ),
    (
        dict.fromkeys(("/ready", "/model_info", "/get_model_info", "/v1/models"), (401, b"<h1>401</h1>")),
        "nginx",
        Program.OTHER,
        "nginx",
        None,
    ),
    ({"/ready": (200, b""), "/model_info": (200, b"<html>")}, "uvicorn", Program.OTHER, "another program", None),
    ({"/v1/models": body(data=[5]), "/version": body(version=3)}, "uvicorn", Program.OTHER, "another program", None),
]


@pytest.mark.parametrize(("routes", "name", "program", "looks_like", "version"), OTHERS)
def test_what_is_not_sglang(routes: Routes, name: str, program: Program, looks_like: str, version: str | None) -> None:
    """What it is instead, as far as it says so."""
    with site(routes, server=name) as server:
        found = examine(server.url)
    assert (found.why, found.program, found.looks_like, found.version) == (None, program, looks_like, version)


def test_nobody_listens() -> None:
    """The line says what to look at."""
    port = free_port()
    found = examine(f"http://127.0.0.1:{port}")
    assert (found.ready_status, found.failure) == (None, NoAnswer.REFUSED)
    assert found.why is not None
    assert found.why.line == (
        f"nobody listens on 127.0.0.1:{port}: is it started, and is this its port? SGLang listens only when it is ready"
    )


@pytest.mark.parametrize(
    ("url", "failure"),
    [("http://no-such-host.invalid:1", NoAnswer.UNKNOWN_HOST), ("http://[::1", NoAnswer.UNUSABLE)],
)
def test_no_place(url: str, failure: NoAnswer) -> None:
    """It cannot even be tried."""
    found = examine(url)
    assert (found.ready_status, found.failure) == (None, failure)
    assert found.why is not None
    assert found.why.line


def test_black_hole() -> None:
    """The kernel takes the connection, and nobody ever reads."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        found = examine(f"http://127.0.0.1:{hole.getsockname()[1]}", seconds=0.6)
    assert (found.ready_status, found.failure) == (None, NoAnswer.TIMEOUT)


def test_model_info_that_never_comes() -> None:
    """It is up; what it is cannot be told, and that is not another program."""
    with site({"/ready": (200, b""), "/model_info": never}) as server:
        found = examine(server.url, seconds=0.6)
    assert (found.ready_status, found.program, found.failure) == (200, None, NoAnswer.TIMEOUT)


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        (b"220 mail ready\r\n", NoAnswer.NOT_HTTP),
        (b"", NoAnswer.CLOSED),
        (b"\x15\x03\x01\x00\x02\x02\x46", NoAnswer.NOT_HTTP),
    ],
)
def test_no_http(said: bytes, failure: NoAnswer) -> None:
    """Another protocol, or none; TLS is named."""
    with talker(said) as url:
        found = examine(url)
    assert (found.ready_status, found.failure) == (None, failure)
    assert found.why is not None
    assert (found.why.advice == "write https://") == said.startswith(b"\x15")


def test_no_tls_where_it_was_expected() -> None:
    """A plain server under https."""
    with FakeSGLang() as server:
        found = examine(server.url.replace("http:", "https:"))
    assert (found.ready_status, found.failure) == (None, NoAnswer.TLS)


def test_key_for_a_server_whose_certificate_is_not_trusted(tmp_path: Path) -> None:
    """It is asked without, and where it wants one that stays here; an open one is examined all the same."""
    certificate = make_certificate(tmp_path)
    refused = (401, b'{"error":"Unauthorized"}')
    keys = Keys(api_key=KEY, admin_api_key=ADMIN)
    with site(
        {"/ready": (200, b""), "/model_info": refused, "/weights_checker": refused}, tls=certificate.context
    ) as one:
        found = examine(one.url, keys=keys)
        assert (found.access, found.admin_access, set(one.authorizations)) == (Access.UNSENT, Access.UNSENT, {None})
    assert found.key_error is not None
    assert "SSL_CERT_FILE" in found.key_error.advice
    with site({"/ready": (200, b""), "/model_info": body(**INFO)}, tls=certificate.context) as one:
        found = examine(one.url, keys=keys)
        assert (found.info, found.access, found.key_error) == (ModelInfo(**INFO), Access.OPEN, None)
        assert set(one.authorizations) == {None}
