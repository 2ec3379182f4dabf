"""A POST that changes something: its answer, or why there is none."""

from pathlib import Path

import pytest

from sglang_telemetry.server_truth.control import Posted, post
from sglang_telemetry.server_truth.keys import Keys
from sglang_telemetry.testing import FakeSGLang
from sglang_telemetry.testing.fake_faults import Fault
from tests.harness.processes import free_port
from tests.server_truth.sites import make_certificate, site, talker

UPDATE = "/update_weights_from_disk"
KEY, ADMIN = "k-7d21-normal", "k-90ab-admin"


def test_continue() -> None:
    """A pause ends, with the administrator's key."""
    with FakeSGLang(api_key=KEY, admin_api_key=ADMIN) as server:
        server._life.engine.pause("retract")
        assert post(server.url, "/continue_generation", {}, keys=Keys(api_key=KEY)).status == 401
        done = post(server.url, "/continue_generation", {}, keys=Keys(admin_api_key=ADMIN))
        assert (done.status, done.message, done.success) == (200, "Generation continued successfully.", None)
        assert (server.state().paused, server.requests[-1].json()) == (None, {})


def test_update_of_a_folder_that_is_not_there() -> None:
    """What a dry run shows: the server's own words."""
    with FakeSGLang() as server:
        done = post(server.url, UPDATE, {"model_path": "/nope/x"})
    assert (done.status, done.success, done.error) == (400, False, None)
    assert done.message is not None
    assert done.message.startswith("Failed to get weights iterator: Repo id must be in the form")
    assert done.message in done.text


def test_refusal_is_told() -> None:
    """SGLang says it in a field of its own."""
    with FakeSGLang(admin_api_key=ADMIN) as server:
        assert post(server.url, UPDATE, {"model_path": "/x"}) == Posted(
            status=401, message="Unauthorized", text='{"error":"Unauthorized"}'
        )


def test_server_that_dies_of_it() -> None:
    """The connection is closed without a word."""
    with FakeSGLang(faults=[Fault.DIES_WITHOUT_ANSWER]) as server:
        done = post(server.url, UPDATE, {"model_path": "/x"})
        assert done.status is None
        assert done.error == f"{server.host_port} closed the connection without an answer"


def test_no_answer_in_time() -> None:
    """The request may be applied all the same; it is only not known."""
    with FakeSGLang(faults=[Fault.NEVER_ANSWERS]) as server:
        done = post(server.url, UPDATE, {"model_path": "/x"}, seconds=0.3)
    assert done.status is None
    assert (done.error or "").startswith(f"{server.host_port} did not answer in time")


def test_other_answers() -> None:
    """What has no fields still has a text, cleaned; what is no HTTP has a reason."""
    with site({"/x": (502, b"<h1>Bad Gateway</h1>\x1b[2J api_key=abcdef12345")}) as server:
        assert post(server.url, "/x", {}) == Posted(status=502, text="<h1>Bad Gateway</h1> api_key=[redacted]")
    with talker(b"220 mail ready\r\n") as url:
        assert "is not HTTP" in (post(url, "/x", {}).error or "")
    assert "nobody listens on" in (post(f"http://127.0.0.1:{free_port()}", "/x", {}).error or "")


@pytest.mark.parametrize("keys", [Keys(api_key=KEY), Keys(admin_api_key=ADMIN)])
def test_key_is_not_sent_where_the_certificate_is_not_trusted(tmp_path: Path, keys: Keys) -> None:
    """The reason says what to set; the server has seen nothing."""
    certificate = make_certificate(tmp_path)
    with site({}, tls=certificate.context) as server:
        done = post(server.url, UPDATE, {"model_path": "/x"}, keys=keys)
        assert server.paths == []
    assert done.error is not None
    assert "SSL_CERT_FILE" in done.error
