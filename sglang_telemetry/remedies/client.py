"""The engine's own HTTP client, used for further requests to the same server, and answers that no server gave.

Further requests go the engine's way: its client knows the proxy, the certificates and the keys, and what the engine's
update carried (``headers``, ``auth``, ...) they carry too.
"""

import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson

_CARRIED = ("headers", "auth", "verify", "cert", "proxies", "cookies")
_OF_BODY = frozenset({"content-length", "content-type", "transfer-encoding", "content-encoding"})
_BODIES = frozenset({"json", "data", "content", "files"})
_POLL_SECONDS = 2.0
_SENDING = ("post", "request", "send")
"""What a call goes through before a client of requests or httpx returns an answer."""
_OF_HOOKS: Mapping[str, Any] = {"timeout": None, "verify": True, "cert": None, "proxies": {}, "stream": False}
"""Keyword arguments that requests gives to hooks, and what they are where neither the call nor the session says."""


class Refused(RuntimeError):
    """An update was not sent; in the place of an answer, for clients of which no answer can be made."""


class Client:
    """Sends to the server that an update goes to.

    Args:
        url: The update's.
        arguments: Keyword arguments of the engine's call.
        post: Sends as the engine would, and is recorded.
        get: The client's own ``get``; not recorded, for questions that are asked again and again. None where it has
            none.
        kind: What the engine's client is.
    """

    def __init__(
        self,
        url: str,
        arguments: Mapping[str, Any],
        *,
        post: Callable[..., Any],
        get: Callable[..., Any] | None,
        kind: Any,
    ) -> None:
        self.url, self.kind = url, kind
        # Whoever keeps this must not keep the body: that of update_weights_from_tensor is the whole model.
        self.arguments = {name: value for name, value in arguments.items() if name not in _BODIES}
        self._post, self._get = post, get
        self._carried = {name: arguments[name] for name in _CARRIED if name in arguments}
        headers = self._carried.get("headers")
        if isinstance(headers, Mapping):
            kept = {name: value for name, value in headers.items() if str(name).lower() not in _OF_BODY}
            self._carried["headers"] = kept

    def post(self, route: str, body: Mapping[str, Any] | None, seconds: float) -> tuple[int, str]:
        """Status and text of an answer. It raises what the client raises.

        Args:
            route: Such as ``/pause_generation``; it may have a query.
            body: Sent as JSON.
            seconds: The time-out.
        """
        named = self._carried if body is None else self._carried | {"json": dict(body)}
        answer = self._post(self._at(route), timeout=seconds, **named)
        return int(answer.status_code), str(answer.text)

    @property
    def can_ask(self) -> bool:
        """Can it be asked for a status at all?"""
        return self._get is not None

    def status(self, route: str) -> int | None:
        """Status of a GET, None when there was no answer within 2 s, or when it cannot be asked."""
        if self._get is None:
            return None
        try:
            return int(self._get(self._at(route), timeout=_POLL_SECONDS, **self._carried).status_code)
        except Exception:  # whatever the engine's client raises when nobody answers
            return None

    def fields(self, route: str) -> Mapping[str, Any] | None:
        """The JSON object that a GET is answered with; None when there was no such answer within 2 s."""
        if self._get is None:
            return None
        try:
            answer = self._get(self._at(route), timeout=_POLL_SECONDS, **self._carried)
            fields = answer.json() if answer.status_code == 200 else None
        except Exception:  # as above, or no JSON
            return None
        return fields if isinstance(fields, Mapping) else None

    def _at(self, route: str) -> str:
        parts = urlsplit(self.url)
        before = parts.path.partition("/update_weights_from_")[0]
        return urlunsplit((parts.scheme, parts.netloc, before, "", "")) + route


def can_refuse(client: Any) -> bool:
    """Can an answer be made that this client's callers take for one of a server that refuses?"""
    return _of_requests(client) is not None or _of_httpx(client) is not None


def refusal(client: Any, url: str, message: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """The answer of a server that refuses an update: 400, in the shape of SGLang's (0.5.23, measured).

    It passes the hooks of the client as every answer does: they may raise for a status, or give another answer.

    Args:
        client: What the engine sends with.
        url: The update's, as the engine wrote it.
        message: Why it is refused.
        arguments: Keyword arguments of the engine's call.

    Raises:
        Refused: No answer can be made for this client.
        Exception: The client's own for a status, where the client sends in its own way: that may raise for a status,
            and an engine that knows of no other failure would take an answer for a success.
    """
    body = orjson.dumps({"success": False, "message": message, "num_paused_requests": 0})
    requests = _of_requests(client)
    if requests is not None:
        return _by_requests(requests, client, url, message, body, arguments or {})
    httpx = _of_httpx(client)
    if httpx is not None:
        return _by_httpx(httpx, client, url, message, body)
    raise Refused(message)


def _by_requests(requests: Any, client: Any, url: str, message: str, body: bytes, arguments: Mapping[str, Any]) -> Any:
    # Not prepared by requests, which refuses an address that is relative: the session may know the rest of it.
    request, asked = requests.PreparedRequest(), requests.Request("POST", url, hooks=arguments.get("hooks"))
    request.method, request.url, request.hooks = "POST", url, asked.hooks
    request.headers = requests.structures.CaseInsensitiveDict()
    answer = requests.Response()
    answer.status_code, answer.reason, answer.url, answer.encoding = 400, "Bad Request", url, "utf-8"
    answer.headers["Content-Type"] = "application/json"
    answer._content, answer._content_consumed, answer.request = body, True, request
    if client is not requests:
        if _sends_in_its_own_way(client, requests.Session):
            raise requests.HTTPError(message, response=answer)
        request.hooks = requests.sessions.merge_hooks(asked.hooks, client.hooks)
    named = {
        name: _first(arguments.get(name), getattr(client, name, None), default) for name, default in _OF_HOOKS.items()
    }
    return requests.hooks.dispatch_hook("response", request.hooks, answer, **named)


def _by_httpx(httpx: Any, client: Any, url: str, message: str, body: bytes) -> Any:
    request = httpx.Request("POST", url) if client is httpx else httpx.Client.build_request(client, "POST", url)
    answer = httpx.Response(400, headers={"Content-Type": "application/json"}, content=body, request=request)
    answer.elapsed = timedelta()
    if client is not httpx:
        if _sends_in_its_own_way(client, httpx.Client):
            raise httpx.HTTPStatusError(message, request=request, response=answer)
        for hook in client.event_hooks["response"]:
            hook(answer)
    return answer


def _sends_in_its_own_way(client: Any, base: type) -> bool:
    """Is one of the methods that a call goes through not that of the base?"""
    own = vars(client)
    return any(name in own or getattr(type(client), name) is not getattr(base, name) for name in _SENDING)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _of_requests(client: Any) -> Any:
    """The module ``requests``, when the client is that or one of its sessions; it is never imported for this."""
    requests = sys.modules.get("requests")
    known = requests is not None and (client is requests or isinstance(client, requests.Session))
    return requests if known else None


def _of_httpx(client: Any) -> Any:
    httpx = sys.modules.get("httpx")
    return httpx if httpx is not None and (client is httpx or isinstance(client, httpx.Client)) else None
