"""Continuing generation on servers that were left paused: what came of it, told by what ``/ready`` says afterwards."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from sglang_telemetry.preflight import Level, release
from sglang_telemetry.testing import FakeSGLang
from tests.harness.answers import Answers, give

CONTINUED = (200, b'{"message":"Generation continued successfully.","status":"ok"}')


def reasons(*servers: str) -> list[tuple[Level, str]]:
    """What was found."""
    return [(one.level, one.reason) for one in release(servers).findings]


def test_each_server_is_told_on_its_own() -> None:
    """One that is away keeps nobody from being released; the same one twice is one."""
    with FakeSGLang() as one, FakeSGLang() as two:
        assert requests.post(f"{two.url}/pause_generation", json={}, timeout=10).status_code == 200
        released = (Level.OK, "released: generation goes on")
        with FakeSGLang() as gone:
            pass
        found = reasons(gone.url, one.url, two.url, two.url)
        assert found[0][0] is Level.FAIL
        assert found[1:] == [(Level.OK, "it was not paused: /ready answers 200"), released]
        assert two.state().paused is None
    assert sum(request.path == "/continue_generation" for request in one.requests + two.requests) == 1


def test_a_server_that_is_gone_afterwards_is_no_success() -> None:
    """Whoever goes on by the exit code finds nobody there."""

    def last(handler: BaseHTTPRequestHandler) -> None:
        assert isinstance(handler.server, ThreadingHTTPServer)
        handler.server.shutdown()
        handler.server.server_close()
        give(handler, CONTINUED)

    with Answers(last) as server:
        [(level, reason)] = reasons(server.url)
    assert (level, reason.partition(":")[0]) == (Level.FAIL, "it was continued, and does not answer any more")


def test_a_server_that_does_not_say_whether_it_is_ready() -> None:
    """Another program, or a version without ``/ready``: it took the request, and no more is known."""
    with Answers(CONTINUED) as server:
        assert reasons(server.url) == [(Level.FAIL, "it was continued; /ready answers 404, which says nothing")]


@pytest.mark.parametrize("status", [404, 500])
def test_a_server_that_refuses(status: int) -> None:
    """With what it says."""
    with Answers((status, "{'detail': 'Nicht möglich →'}".encode())) as server:
        [(level, reason)] = reasons(server.url)
    assert (level, reason) == (Level.FAIL, f"/continue_generation answers {status}: {{'detail': 'Nicht möglich →'}}")
