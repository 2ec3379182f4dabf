"""Answers that no server gave are of the client's own kind, and further requests go the engine's way."""

from typing import Any

import httpx
import pytest
import requests

from sglang_telemetry.remedies.client import Client, Refused, can_refuse, refusal

URL = "http://10.0.0.7:30000/v0/update_weights_from_disk"


@pytest.mark.parametrize("client", [requests, requests.Session()])
def test_of_requests(client: Any) -> None:
    """A real answer of 400, with SGLang's body."""
    answer = refusal(client, URL, "not sent: cut short")
    assert can_refuse(client)
    assert isinstance(answer, requests.Response)
    assert (answer.status_code, answer.ok, answer.url) == (400, False, URL)
    assert answer.json() == {"success": False, "message": "not sent: cut short", "num_paused_requests": 0}
    with pytest.raises(requests.HTTPError, match="400 Client Error: Bad Request"):
        answer.raise_for_status()


@pytest.mark.parametrize("client", [httpx, httpx.Client()])
def test_of_httpx(client: Any) -> None:
    """The same for those that send with httpx."""
    answer = refusal(client, URL, "not sent")
    assert can_refuse(client)
    assert isinstance(answer, httpx.Response)
    assert answer.json()["message"] == "not sent"
    with pytest.raises(httpx.HTTPStatusError, match="400 Bad Request"):
        answer.raise_for_status()


def test_of_another_client() -> None:
    """It has to be an exception, and `instrument()` refuses the remedy before."""
    assert not can_refuse(object())
    with pytest.raises(Refused, match="not sent"):
        refusal(object(), URL, "not sent")


def test_what_is_carried() -> None:
    """Keys and certificates, but nothing that is about the update's body; below the same path."""
    sent: list[Any] = []

    def post(url: str, **named: Any) -> httpx.Response:
        sent.append((url, named))
        return httpx.Response(200, text="ok")

    headers = {"Authorization": "Bearer k", "Content-Length": "44", "content-type": "application/json"}
    arguments = {"headers": headers, "verify": "/ca.pem", "timeout": 9, "json": {"model_path": "/w"}}
    client = Client(URL, arguments, post=post, get=post, kind=requests)
    assert client.post("/flush_cache?timeout=3", None, 5.0) == (200, "ok")
    carried = {"headers": {"Authorization": "Bearer k"}, "verify": "/ca.pem"}
    assert sent == [("http://10.0.0.7:30000/v0/flush_cache?timeout=3", carried | {"timeout": 5.0})]
    assert client.status("/ready") == 200
    assert headers["Content-Length"] == "44"


def test_a_client_that_raises_has_no_answer() -> None:
    """Whatever it raises."""

    def get(url: str, **named: Any) -> None:
        raise httpx.ConnectError("refused")

    assert Client(URL, {}, post=get, get=get, kind=httpx).status("/ready") is None
