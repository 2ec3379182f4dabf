"""A look at servers of all kinds: the stand-in for SGLang, older ones, broken ones, and those that never answer."""

import socket
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from sglang_telemetry.server_truth.asking import MAX_BODY
from sglang_telemetry.server_truth.client import MAX_CHECKSUMS, Checksum, Look, ModelInfo, Reach, StartedWith, look
from sglang_telemetry.server_truth.keys import Keys
from sglang_telemetry.testing import FakeSGLang
from tests.harness.processes import free_port
from tests.server_truth.sites import Certificate, Routes, body, make_certificate, never, site, talker

INFO: dict[str, Any] = {"model_path": "/w", "weight_version": "default", "tokenizer_path": "/start"}
SHORT = 0.4


def test_sglang() -> None:
    """Ready, what it loaded, and its version, each asked by its name; it is told who asks."""
    with FakeSGLang("/models/start") as server:
        assert look(server.url, version=True) == Look(
            reach=Reach.ANSWERED,
            ready=True,
            info=ModelInfo(model_path="/models/start", weight_version="default", tokenizer_path="/models/start"),
            version="0.5.23",
            started_with=StartedWith(tokenizer_workers=1, memory_saver=False),
            status=200,
            info_status=200,
        )
        asked = server.requests
    assert [one.path for one in asked] == ["/ready", "/model_info", "/v1/loads?include=core", "/server_info"]
    assert {one.headers["user-agent"].split("/")[0] for one in asked} == {"sglang-telemetry"}
    assert {one.method for one in asked} == {"GET"}


def test_nothing_is_asked_that_was_not_wanted() -> None:
    """During a sync only what costs nothing."""
    with FakeSGLang() as server:
        assert look(server.url, info=False) == Look(reach=Reach.ANSWERED, ready=True, status=200)
        assert [one.path for one in server.requests] == ["/ready"]


def test_refused() -> None:
    """Nobody listens."""
    assert look(f"http://127.0.0.1:{free_port()}") == Look(reach=Reach.REFUSED)


def test_refused_by_the_one_address_family_that_is_there() -> None:
    """``localhost`` is two addresses on most machines."""
    assert look(f"http://localhost:{free_port()}") == Look(reach=Reach.REFUSED)


@pytest.mark.parametrize(
    "url", ["http://no-such-host.invalid:1", "http://127.0.0.1:99999", "http://[::1", "http://", "x"]
)
def test_no_address(url: str) -> None:
    """It cannot even be tried; that says nothing of a restart."""
    assert look(url) == Look(reach=Reach.SILENT)


def short(url: str) -> Look:
    """A look of ``SHORT`` seconds; were it not bounded, the time-out of the test would end it."""
    return look(url, version=True, seconds=SHORT)


def test_black_hole() -> None:
    """The kernel takes the connection, and nobody ever reads."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        assert short(f"http://127.0.0.1:{hole.getsockname()[1]}") == Look(reach=Reach.SILENT)


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n"],
    ids=["status line", "one header", "between headers"],
)
def test_answer_that_drips_and_never_ends(head: bytes) -> None:
    """A byte now and then would reset the time-out of each read."""
    with talker(head, every=0.02, forever=b"x") as url:
        assert short(url) == Look(reach=Reach.SILENT)


def test_endless_100_continue() -> None:
    """An answer that is always still to come."""
    with talker(every=0.01, forever=b"HTTP/1.1 100 Continue\r\n\r\n") as url:
        assert short(url) == Look(reach=Reach.SILENT)


def test_body_that_drips() -> None:
    """The status is known, so that it is up; of the rest nothing is."""

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" ")
                handler.wfile.flush()
                time.sleep(0.02)
        except OSError:
            return

    with site({"/ready": drip, "/model_info": drip, "/v1/loads": drip}) as server:
        assert short(server.url) == Look(reach=Reach.ANSWERED, ready=True, status=200)


def test_huge_body() -> None:
    """Read up to the bound, and then not believed."""
    huge = body(**INFO, padding="x" * MAX_BODY)
    with site({"/ready": (200, b""), "/model_info": huge}) as server:
        assert look(server.url) == Look(reach=Reach.ANSWERED, ready=True, status=200)
    with talker(b"HTTP/1.1 200 OK\r\n\r\n", forever=b"x" * 65536) as url:
        assert short(url) == Look(reach=Reach.ANSWERED, ready=True, status=200)


def test_no_http_at_all() -> None:
    """Something listens that says what is no HTTP."""
    with talker(b"220 mail ready\r\n") as url:
        assert look(url) == Look(reach=Reach.SILENT)


def test_hangs_up() -> None:
    """The connection is closed without a word."""
    with talker() as url:
        assert look(url) == Look(reach=Reach.SILENT)


def test_no_https_where_it_was_expected() -> None:
    """The handshake fails: that is no answer, and no refusal."""
    with FakeSGLang() as server:
        assert look(server.url.replace("http:", "https:")) == Look(reach=Reach.SILENT)


@pytest.mark.parametrize(
    ("status", "ready"), [(200, True), (503, False), (404, None), (401, None), (500, None), (307, None)]
)
def test_ready(status: int, ready: bool | None) -> None:
    """200 and 503 are its two answers; any other is none, and it is up all the same."""
    with site({"/ready": (status, b"")}) as server:
        assert look(server.url, info=False) == Look(reach=Reach.ANSWERED, ready=ready, status=status)


def test_paused() -> None:
    """SGLang 0.5.23 says 503 while it is paused."""
    with FakeSGLang() as server:
        server._life.engine.pause("retract")
        found = look(server.url)
    assert (found.reach, found.ready, found.info is not None) == (Reach.ANSWERED, False, True)


def test_old_names() -> None:
    """Before ``/model_info`` there was ``/get_model_info``, and the version stood in ``/get_server_info`` alone."""
    old = {"/get_model_info": body(model_path="/w"), "/get_server_info": body(version="0.4.1", admin_api_key="k")}
    with site(old) as server:
        assert look(server.url, version=True) == Look(
            reach=Reach.ANSWERED, info=ModelInfo(model_path="/w"), version="0.4.1", status=404, info_status=200
        )


def test_key_wanted() -> None:
    """401 is no answer to the question, and is not asked for twice."""
    refused = (401, b'{"error":"Unauthorized"}')
    routes = dict.fromkeys(("/model_info", "/get_model_info", "/v1/loads", "/server_info"), refused)
    with site({"/ready": (200, b""), **routes}) as server:
        assert look(server.url, version=True) == Look(reach=Reach.ANSWERED, ready=True, status=200, info_status=401)
        assert server.paths == ["/ready", "/model_info", "/v1/loads?include=core", "/server_info"]


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>Welcome to nginx!</html>"),
        (200, b""),
        (200, b"\xff\xfe"),
        (200, b"null"),
        (200, b"[" * 60_000),
        (200, b'["model_path"]'),
        (200, b'{"model_path": null}'),
        (200, b'{"model_path": 7}'),
        (200, b'{"model_path": {"a": 1}}'),
        (500, b'{"model_path": "/w"}'),
    ],
)
def test_what_is_not_sglangs(answer: tuple[int, bytes]) -> None:
    """Pages, other JSON, other types: unknown."""
    with site(dict.fromkeys(("/model_info", "/get_model_info", "/v1/loads", "/server_info"), answer)) as server:
        assert look(server.url, version=True) == Look(reach=Reach.ANSWERED, status=404, info_status=answer[0])


def test_other_types_beside_a_path() -> None:
    """What can be read is."""
    with site({"/model_info": body(model_path="/w", weight_version=3, tokenizer_path=[])}) as server:
        assert look(server.url).info == ModelInfo(model_path="/w")


def test_text_is_cleaned() -> None:
    """Terminal control characters and secrets of a server do not get further than here."""
    with site({"/model_info": body(model_path="/w\x1b[2J token=abcdef123", weight_version="v\u202e1")}) as server:
        assert look(server.url).info == ModelInfo(model_path="/w token=[redacted]", weight_version="v1")


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("0.5.23", "0.5.23"),
        ("0.5.24.dev1+g12ab-x", "0.5.24.dev1+g12ab-x"),
        ("0.5\n<script>", "0.5"),
        ("9" * 99, "9" * 40),
        ("<b>", None),
        ("", None),
        (5, None),
    ],
)
def test_version_is_of_a_closed_form(said: object, version: str | None) -> None:
    """It becomes a label value."""
    with site({"/v1/loads": body(version=said)}) as server:
        assert look(server.url, version=True).version == version


def test_big_server_info() -> None:
    """37 KB were measured; ten times that is read, for one key of it."""
    with site({"/server_info": body(version="0.5.1", args="x" * 400_000)}) as server:
        assert look(server.url, version=True).version == "0.5.1"


def test_redirects_are_not_followed() -> None:
    """What a redirect leads to is another server."""
    with site({"/ready": (200, b""), "/model_info": body(model_path="/other")}) as other:

        def elsewhere(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(307)
            handler.send_header("Location", f"{other.url}{handler.path}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        with site(dict.fromkeys(("/ready", "/model_info", "/v1/loads"), elsewhere)) as server:
            assert look(server.url, version=True) == Look(reach=Reach.ANSWERED, status=307, info_status=307)
        assert other.asked == []


def test_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's proxy variables apply to the trainer, not to this."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FakeSGLang() as server:
        assert look(server.url).reach is Reach.ANSWERED


def test_base_path_and_hostile_path() -> None:
    """Routes stand below the path that the trainer used; nothing in it becomes a header of ours."""
    with site({"/pool/a/ready": (200, b"")}) as server:
        assert look(f"{server.url}/pool/a/", info=False).ready is True
        look(f"{server.url}/a\r\nX-Evil: 1\r\n b", info=False)
        assert server.paths[1].endswith("b/ready")
        assert "X-Evil:%201" in server.paths[1]


KEY, ADMIN = "k-7d21-normal", "k-90ab-admin"


def test_what_describes_the_model_is_told_and_compared_by_nobody() -> None:
    """A server of another version may not tell it, and is no other server for that."""
    with FakeSGLang("/models/start") as server:
        info = look(server.url).info
    assert info is not None
    assert (info.model_type, info.architectures) == ("qwen2", ("Qwen2ForCausalLM",))
    assert info == ModelInfo(model_path="/models/start", weight_version="default", tokenizer_path="/models/start")


@pytest.mark.parametrize("said", [None, "Qwen2ForCausalLM", 5, [5, None], {"a": 1}])
def test_architectures_that_are_none(said: object) -> None:
    """A list of texts, or nothing."""
    with site({"/model_info": body(**INFO, architectures=said, model_type=["x"])}) as server:
        info = look(server.url).info
    assert info is not None
    assert (info.architectures, info.model_type) == ((), None)


def test_checksum() -> None:
    """Which bytes are loaded, how many tensors they are, and how long it took to say so; asked for last."""
    with FakeSGLang() as server:
        first, again = look(server.url, checksum=True), look(server.url, checksum=True)
        assert first.checksum == again.checksum == Checksum(engine=server.state().checksum)
        assert first.checksum is not None
        assert first.checksum.seconds > 0
        last = server.requests[-1]
        assert (last.method, last.path, last.body) == ("GET", "/weights_checker", b"")


def test_checksum_of_several_ranks() -> None:
    """One for all of them; the tensors are counted over all ranks."""
    ranks = [{"checksums": {"a": "0" * 16, "b": "1" * 16}}, {"checksums": {"a": "0" * 16}}, "x", {"checksums": 3}]
    with site({"/weights_checker": body(success=True, ranks=ranks, per_engine_checksum="ab" * 32)}) as server:
        found = look(server.url, info=False, checksum=True)
    assert found.checksum is not None
    assert (found.checksum.engine, found.checksum.tensors, found.checksum_status) == ("ab" * 32, 3, 200)


@pytest.mark.parametrize(
    "answer",
    [
        body(success=True, ranks=[]),
        body(success=True, per_engine_checksum=None),
        body(success=True, per_engine_checksum=17),
        body(success=True, per_engine_checksum="<script>alert(1)</script>"),
        (200, b"null"),
        (200, b"<html>"),
        (400, b'{"success":false,"message":"x","per_engine_checksum":"abcdefabcdef"}'),
        (404, b'{"detail":"Not Found"}'),
        (401, b'{"error":"Unauthorized"}'),
    ],
)
def test_no_checksum(answer: tuple[int, bytes]) -> None:
    """The status says why; what is no checksum is none."""
    with site({"/ready": (200, b""), "/weights_checker": answer}) as server:
        assert look(server.url, info=False, checksum=True) == Look(
            reach=Reach.ANSWERED, ready=True, status=200, checksum_status=answer[0]
        )


def test_checksums_of_a_big_model() -> None:
    """Thousands of tensors on eight ranks are read; what has no end is not."""
    checksums = {
        f"model.layers.{layer}.mlp.experts.{part}.weight": "0" * 16 for layer in range(60) for part in range(90)
    }
    big = body(success=True, ranks=[{"checksums": checksums}] * 8, per_engine_checksum="cd" * 32)
    assert 2 << 20 < len(big[1]) < MAX_CHECKSUMS
    with site({"/weights_checker": big}) as server:
        found = look(server.url, info=False, checksum=True, checksum_seconds=30.0)
        assert found.checksum is not None
        assert found.checksum.tensors == 8 * 60 * 90
    with site({"/weights_checker": body(per_engine_checksum="cd" * 32, padding="x" * MAX_CHECKSUMS)}) as server:
        found = look(server.url, info=False, checksum=True, checksum_seconds=30.0)
        assert (found.checksum, found.checksum_status) == (None, None)


def test_checksum_that_does_not_come_in_time() -> None:
    """The scheduler is busy with a load: everything else is known all the same."""
    held: Routes = {"/ready": (200, b""), "/model_info": body(**INFO), "/weights_checker": never}
    with site(held) as server:
        found = look(server.url, checksum=True, checksum_seconds=SHORT)
    assert found == Look(reach=Reach.ANSWERED, ready=True, info=ModelInfo(**INFO), status=200, info_status=200)


def test_each_route_gets_its_own_key() -> None:
    """``/ready`` none, the checksum the administrator's, the others the other one."""
    with FakeSGLang(api_key=KEY, admin_api_key=ADMIN) as server:
        found = look(server.url, version=True, checksum=True, keys=Keys(api_key=KEY, admin_api_key=ADMIN))
        assert (found.info_status, found.checksum_status, found.version) == (200, 200, "0.5.23")
        assert [(one.path, one.headers.get("authorization")) for one in server.requests] == [
            ("/ready", None),
            ("/model_info", "Bearer ***"),
            ("/v1/loads?include=core", "Bearer ***"),
            ("/server_info", "Bearer ***"),
            ("/weights_checker", "Bearer ***"),
        ]
    asked = ("/ready", "/model_info", "/weights_checker")
    with site(dict.fromkeys(asked, (401, b""))) as plain:
        look(plain.url, checksum=True, keys=Keys(api_key=KEY, admin_api_key=ADMIN))
        assert plain.authorizations == [None, f"Bearer {KEY}", f"Bearer {ADMIN}"]


@pytest.mark.parametrize(
    ("server_keys", "keys", "statuses"),
    [
        ({}, Keys(), (200, 200)),
        ({}, Keys(api_key=KEY, admin_api_key=ADMIN), (200, 200)),
        ({"api_key": KEY}, Keys(), (401, 401)),
        ({"api_key": KEY}, Keys(api_key=KEY), (200, 200)),
        ({"api_key": KEY}, Keys(admin_api_key=KEY), (401, 200)),
        ({"admin_api_key": ADMIN}, Keys(), (200, 401)),
        ({"admin_api_key": ADMIN}, Keys(admin_api_key=ADMIN), (200, 200)),
        ({"api_key": KEY, "admin_api_key": ADMIN}, Keys(api_key=KEY), (200, 401)),
        ({"api_key": KEY, "admin_api_key": ADMIN}, Keys(admin_api_key=ADMIN), (401, 200)),
        ({"api_key": KEY, "admin_api_key": ADMIN}, Keys(api_key=ADMIN, admin_api_key=KEY), (401, 401)),
    ],
)
def test_keys_of_server_and_client(server_keys: dict[str, str], keys: Keys, statuses: tuple[int, int]) -> None:
    """The table of SGLang: which of its routes refuses whom, told by the status alone."""
    with FakeSGLang(**server_keys) as server:  # type: ignore[arg-type]
        found = look(server.url, checksum=True, keys=keys)
    assert (found.reach, found.ready, found.info_status, found.checksum_status) == (Reach.ANSWERED, True, *statuses)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Of a server that is nobody's."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_a_key_stays_here_where_the_certificate_is_not_trusted(certificate: Certificate) -> None:
    """It is up, and more is not known; without a key the same server is looked at as before."""
    with site({"/ready": (200, b""), "/model_info": body(**INFO)}, tls=certificate.context) as server:
        found = look(server.url, checksum=True, keys=Keys(api_key=KEY, admin_api_key=ADMIN))
        assert found == Look(reach=Reach.ANSWERED, ready=True, status=200)
        assert server.paths == ["/ready"]
        assert look(server.url).info == ModelInfo(**INFO)
        assert set(server.authorizations) == {None}
