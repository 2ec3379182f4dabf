"""Records the engine's HTTP exchanges: a proxy in front of whatever ``engine.http`` is, and what an answer says."""

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import orjson

from sglang_telemetry.classify import Recorded, first_errno
from sglang_telemetry.events import Exchange
from sglang_telemetry.instrument.rollouts import is_generation
from sglang_telemetry.names import UPDATE_ROUTE, Transport
from sglang_telemetry.text import clean, clean_url, server_of

MAX_JSON_BYTES = 64 << 10
TRACEPARENT = "traceparent"
_NAMES = (TRACEPARENT, TRACEPARENT.encode())

_TRANSPORTS = {transport.value: transport for transport in Transport}
_CLIENTS = frozenset({"requests", "httpx", "aiohttp"})
_METHODS = frozenset({"get", "post", "put", "patch", "delete", "request"})


class Request(Protocol):
    """One request that is being sent."""

    traceparent: str | None
    json: dict[str, Any] | None
    """What is sent in the place of the engine's ``json`` argument; None when that goes out as it is."""

    def ended(self, recorded: Recorded) -> None:
        """It was answered, or will not be."""


Around = Callable[[Callable[[dict[str, Any]], Any], dict[str, Any]], Any]
"""Takes what sends a request with other keyword arguments, and those of the engine; returns what the engine gets."""


class Listener(Protocol):
    """Who is told of requests."""

    def request_started(self, method: str, url: str, arguments: dict[str, Any]) -> Request | None:
        """A request begins; None when nobody wants to know of it."""

    def around(self, url: str, sender: "Sender") -> "Around | None":
        """What is done around a request; None for most, which are sent as they are."""

    def generated(self, body: bytes | None) -> None:
        """A route that generates has answered 200; None when the body cannot be read without touching a stream."""

    def failed(self, error: BaseException) -> None:
        """Recording it failed; the request itself is not touched."""


class RecordingHttp:
    """Looks like what it stands for, and tells a listener of each call that sends something.

    Args:
        target: The ``requests`` module, a Session, or anything with their methods.
        listener: Told before and after.
    """

    def __init__(self, target: Any, listener: Listener) -> None:
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_listener", listener)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # so that isinstance(engine.http, requests.Session) stays what it was
        return type(self._target)

    def __getattr__(self, name: str) -> Any:
        value = getattr(object.__getattribute__(self, "_target"), name)
        if name in _METHODS and callable(value):
            return Sender(self._target, name, value, object.__getattribute__(self, "_listener"))
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)

    def __enter__(self) -> Any:
        self._target.__enter__()
        return self

    def __exit__(self, *exception: Any) -> Any:
        return self._target.__exit__(*exception)

    def __reduce__(self) -> Any:
        return _same, (self._target,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._target


def _same(value: Any) -> Any:
    return value


class Sender:
    """One method of a client that sends.

    Args:
        client: Whose method it is.
        method: Its name.
        send: The method.
        listener: Told before and after.
    """

    def __init__(self, client: Any, method: str, send: Callable[..., Any], listener: Listener) -> None:
        self.client = client
        self._method, self._send, self._listener = method, send, listener

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Send, and tell."""
        method, url = self._guarded(_method_and_url, self._method, args, kwargs) or ("", "")
        if is_update(url):
            args, kwargs = self._guarded(_by_name, self._send, args, kwargs, self._method) or (args, kwargs)
        around: Around | None = self._guarded(self._listener.around, url, self)
        if around is None:
            return self._once(method, url, args, kwargs)
        return around(lambda arguments: self._once(method, url, args, arguments), kwargs)

    def post(self, url: str, **kwargs: Any) -> Any:
        """Another request by the same client, told like all others."""
        return Sender(self.client, "post", self.client.post, self._listener)._once("POST", url, (url,), kwargs)

    def _once(self, method: str, url: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request: Request | None = self._guarded(self._listener.request_started, method, url, kwargs)
        if request is not None and request.traceparent is not None:
            kwargs = self._guarded(with_traceparent, self._send, args, kwargs, request.traceparent) or kwargs
        if request is not None and request.json is not None:
            kwargs = kwargs | {"json": request.json}
        try:
            answer = self._send(*args, **kwargs)
        except BaseException as error:
            self._ended(request, _of_error, method, url, error)
            raise
        # Not when it is a context manager as well: `async with client.post(...)` wants that, not a coroutine.
        if inspect.isawaitable(answer) and not hasattr(answer, "__aenter__"):
            return self._awaited(request, answer, method, url)
        streamed = kwargs.get("stream", getattr(getattr(self._send, "__self__", None), "stream", False)) is True
        self._answered(request, method, url, answer, streamed)
        return answer

    async def _awaited(self, request: Request | None, pending: Any, method: str, url: str) -> Any:
        try:
            answer = await pending
        except BaseException as error:
            self._ended(request, _of_error, method, url, error)
            raise
        self._answered(request, method, url, answer, False)
        return answer

    def _answered(self, request: Request | None, method: str, url: str, answer: Any, streamed: bool) -> None:
        self._ended(request, _of_answer, method, url, answer, streamed)
        if is_generation(url):
            self._guarded(self._generated, answer, streamed)

    def _generated(self, answer: Any, streamed: bool) -> None:
        if getattr(answer, "status_code", None) == 200:
            body = None if streamed else getattr(answer, "content", None)
            self._listener.generated(body if isinstance(body, bytes) else None)

    def _ended(self, request: Request | None, record: Callable[..., Recorded], *what: Any) -> None:
        recorded = None if request is None else self._guarded(record, *what)
        if request is not None and recorded is not None:
            self._guarded(request.ended, recorded)

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        # Answers and exceptions are whatever the engine's client makes; even their text can raise.
        try:
            return function(*args)
        except Exception as error:
            self._listener.failed(error)
            return None


def with_traceparent(
    send: Callable[..., Any], positional: tuple[Any, ...], arguments: dict[str, Any], traceparent: str
) -> dict[str, Any] | None:
    """The arguments with the header added; None where it is set already, or where it cannot be known to be welcome."""
    owner, given = getattr(send, "__self__", None), arguments.get("headers")
    if _has(getattr(owner, "headers", None)) or _has(given):
        return None
    takes, known, place = _headers_of(getattr(send, "__func__", send), cast(Hashable, type(owner)))
    if not takes or (place is not None and len(positional) + hasattr(send, "__func__") > place):
        return None
    if given is None:
        # A client that is not known may have headers of its own for whoever gives it none, such as a key.
        return arguments | {"headers": {TRACEPARENT: traceparent}} if known else None
    if not isinstance(given, Mapping):
        return None
    headers = {**given, TRACEPARENT: traceparent}
    return arguments | {"headers": headers}


def _has(headers: Any) -> bool:
    return isinstance(headers, Mapping) and any(name.lower() in _NAMES for name in headers)


@functools.lru_cache(maxsize=64)
def _headers_of(send: Hashable, owner: Hashable) -> tuple[bool, bool, int | None]:
    """Does this function take ``headers``, is it one of a known client, and their place among positional arguments."""
    parameters = inspect.signature(cast(Callable[..., Any], send)).parameters
    modules = {getattr(send, "__module__", None) or "", *(one.__module__ for one in cast(type, owner).__mro__)}
    known = any(name.partition(".")[0] in _CLIENTS for name in modules)
    if "headers" in parameters:
        by_keyword = parameters["headers"].kind is inspect.Parameter.KEYWORD_ONLY
        return True, known, None if by_keyword else list(parameters).index("headers")
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return takes_any and known, known, None


def is_update(url: str) -> bool:
    """Does this URL send weights?"""
    return UPDATE_ROUTE in url


def transport_of(url: str) -> Transport:
    """The way the weights travel, from the route."""
    tail = url.partition(UPDATE_ROUTE)[2].partition("?")[0].strip("/")
    return _TRANSPORTS.get(tail, Transport.DISK)


def _method_and_url(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
    if method == "request":
        verb = args[0] if args else kwargs.get("method", "")
        url = args[1] if len(args) > 1 else kwargs.get("url", "")
        return str(verb).upper(), str(url)
    return method.upper(), str(args[0] if args else kwargs.get("url", ""))


def _by_name(
    send: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], method: str
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The same arguments with names for what comes after the URL, such as the body; None where that cannot be."""
    first = 2 if method == "request" else 1
    if len(args) <= first:
        return None
    names = list(inspect.signature(send).parameters.values())[: len(args)]
    if len(names) < len(args) or any(one.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for one in names[first:]):
        return None
    given = {one.name: value for one, value in zip(names[first:], args[first:], strict=True)}
    return None if given.keys() & kwargs.keys() else (args[:first], kwargs | given)


def _of_error(method: str, url: str, error: BaseException) -> Recorded:
    exchange = Exchange(
        method=method,
        url=clean_url(url),
        error_type=type(error).__name__,
        error_text=clean(str(error)),
        error_errno=first_errno(error),
    )
    return Recorded(exchange=exchange, error=error)


def _of_answer(method: str, url: str, answer: Any, streamed: bool) -> Recorded:
    status = getattr(answer, "status_code", None)
    body = b"" if streamed else getattr(answer, "content", None)
    if not isinstance(body, bytes):
        body = None
    if not is_update(url):  # what a rollout answers is long, and nobody's business
        size = None if body is None or streamed else len(body)
        status = status if isinstance(status, int) else None
        return Recorded(exchange=Exchange(method=method, url=clean_url(url), status_code=status, response_bytes=size))
    exchange = Exchange(
        method=method,
        url=clean_url(url),
        status_code=status if isinstance(status, int) else None,
        response_text=None if body is None else clean(body[:MAX_JSON_BYTES].decode("utf-8", "replace")),
        response_bytes=None if body is None else len(body),
    )
    if body is None or streamed:
        return Recorded(exchange=exchange)
    shape, success = _read(body)
    return Recorded(exchange=exchange, is_sglang=shape, success=success)


def _read(body: bytes) -> tuple[bool, bool | None]:
    """Is this an answer of SGLang's (0.5.23: an object with success, error, object or detail), and its ``success``."""
    if body.strip() == b"Internal Server Error":
        return True, None
    try:
        answer = orjson.loads(body) if len(body) <= MAX_JSON_BYTES else None
    except ValueError:
        return False, None
    if not isinstance(answer, dict) or not {"success", "error", "object", "detail"} & answer.keys():
        return False, None
    success = answer.get("success")
    return True, success if isinstance(success, bool) else None


def path_in(arguments: dict[str, Any]) -> str | None:
    """The checkpoint folder that an update request names."""
    body = arguments.get("json")
    path = body.get("model_path") if isinstance(body, Mapping) else None
    return path if isinstance(path, str) else None


def server_in(url: str) -> str | None:
    """``host:port`` that a request goes to; None for a relative URL, whose first part is no host."""
    return server_of(url) if host_of(url) else None


def host_of(url: str) -> str | None:
    """Host name of a URL, None when there is none."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
