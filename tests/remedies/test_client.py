"""Answers that no server gave are of the client's own kind, and further requests go the engine's way."""

import json
from typing import Any

import httpx
import pytest
import requests

from sglang_telemetry.remedies.client import Client, Refused, can_refuse, refusal
from sglang_telemetry.remedies.retry import wait_until_ready

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


def _raise(answer: Any, *args: Any, **named: Any) -> None:
    answer.raise_for_status()


class Seen:
    """A hook that gives another answer in the place of the one it gets."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def __call__(self, answer: Any, **named: Any) -> Any:
        """Remember."""
        self.got.append((answer.status_code, answer.request.method, answer.request.url, named))
        return "its own"


def test_hooks_of_a_session_see_it() -> None:
    """As they see every answer; what they give is what the engine gets."""
    session, seen = requests.Session(), Seen()
    session.hooks["response"].append(seen)
    session.verify = "/ca.pem"
    assert refusal(session, URL, "not sent", {"timeout": 9}) == "its own"
    [(status, method, url, named)] = seen.got
    assert (status, method, url) == (400, "POST", URL)
    assert named == {"timeout": 9, "verify": "/ca.pem", "cert": None, "proxies": {}, "stream": False}


def test_hooks_that_raise_for_a_status_do() -> None:
    """The engine of such a session knows of no other failure."""
    session = requests.Session()
    session.hooks["response"] = [_raise]
    with pytest.raises(requests.HTTPError, match="400 Client Error") as raised:
        refusal(session, URL, "not sent")
    assert raised.value.response is not None
    assert raised.value.response.json()["message"] == "not sent"


@pytest.mark.parametrize("client", [requests, requests.Session()])
def test_hooks_of_the_call(client: Any) -> None:
    """They are the engine's too."""
    with pytest.raises(requests.HTTPError, match="400 Client Error"):
        refusal(client, URL, "not sent", {"hooks": {"response": _raise}})


def test_hooks_of_the_call_replace_those_of_the_session() -> None:
    """As with requests; where the call has none for answers, the session's stay."""
    session, seen = requests.Session(), Seen()
    session.hooks["response"] = [_raise]
    assert refusal(session, URL, "not sent", {"hooks": {"response": [seen]}}) == "its own"
    for hooks in (None, {}, {"response": []}):
        with pytest.raises(requests.HTTPError):
            refusal(session, URL, "not sent", {"hooks": hooks})


def test_event_hooks_of_httpx() -> None:
    """Each is called; what they return is nothing to httpx."""
    seen = Seen()
    client = httpx.Client(event_hooks={"response": [seen, _raise]})
    with pytest.raises(httpx.HTTPStatusError, match="400 Bad Request"):
        refusal(client, URL, "not sent")
    assert seen.got == [(400, "POST", URL, {})]
    client.event_hooks = {"response": [seen]}
    assert isinstance(refusal(client, URL, "not sent"), httpx.Response)


class Raises(requests.Session):
    """Raises for every status."""

    def request(self, *args: Any, **named: Any) -> requests.Response:  # type: ignore[override]
        """Send."""
        answer = super().request(*args, **named)
        answer.raise_for_status()
        return answer


class RaisesToo(httpx.Client):
    """Raises for every status."""

    def send(self, *args: Any, **named: Any) -> httpx.Response:
        """Send."""
        return super().send(*args, **named).raise_for_status()


def _own_post(session: Any) -> Any:
    session.post = session.request
    return session


@pytest.mark.parametrize("client", [Raises(), _own_post(requests.Session()), RaisesToo(), _own_post(httpx.Client())])
def test_a_client_that_sends_in_its_own_way(client: Any) -> None:
    """Whether it raises for a status nobody knows: an exception is a failure for every engine."""
    assert can_refuse(client)
    kind = requests.HTTPError if isinstance(client, requests.Session) else httpx.HTTPStatusError
    with pytest.raises(kind, match=r"^not sent: cut short$") as raised:
        refusal(client, URL, "not sent: cut short")
    assert (raised.value.response.status_code, raised.value.request.method) == (400, "POST")


def test_a_client_of_another_make_is_trusted() -> None:
    """A subclass that sends as its base does, and what is put in the place of a method for all sessions alike."""

    class Named(requests.Session):
        name = "policy"

    assert refusal(Named(), URL, "not sent").status_code == 400


def test_a_patch_of_all_sessions_is_none_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry puts its own ``send`` into the class."""
    kept = requests.Session.send
    monkeypatch.setattr(requests.Session, "send", lambda *args, **named: kept(*args, **named))
    assert refusal(requests.Session(), URL, "not sent").status_code == 400


@pytest.mark.parametrize("client", [requests, requests.Session(), httpx, httpx.Client(base_url="http://10.0.0.7:1")])
@pytest.mark.parametrize("url", ["/update_weights_from_disk", "update_weights_from_disk", "10.0.0.7:30000/x"])
def test_a_relative_address(client: Any, url: str) -> None:
    """The client may know the rest of it."""
    assert refusal(client, url, "not sent").json()["message"] == "not sent"


def test_the_base_of_an_address_is_the_clients() -> None:
    """What the engine's log shows of the answer is where it would have gone."""
    client = httpx.Client(base_url="http://10.0.0.7:30000/v0")
    assert str(refusal(client, "/update_weights_from_disk", "not sent").url) == URL


@pytest.mark.parametrize("client", [requests, httpx])
def test_it_can_be_read_in_every_way(client: Any) -> None:
    """As one that came over the wire."""
    answer = refusal(client, URL, "not sent")
    assert answer.elapsed.total_seconds() == 0
    assert json.loads("".join(answer.iter_lines() if client is httpx else answer.iter_lines(decode_unicode=True)))
    answer.close()


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


def test_a_client_that_cannot_ask() -> None:
    """Nothing is said of the server, and nobody waits for what cannot come."""
    client = Client(URL, {}, post=_raise, get=None, kind=requests)
    assert not client.can_ask
    assert client.status("/ready") is None
    assert not wait_until_ready(client, lambda: 3600.0, gone_first=True, sleep=pytest.fail)


def test_a_client_that_raises_has_no_answer() -> None:
    """Whatever it raises."""

    def get(url: str, **named: Any) -> None:
        raise httpx.ConnectError("refused")

    assert Client(URL, {}, post=get, get=get, kind=httpx).status("/ready") is None
