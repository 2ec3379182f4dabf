"""Records the engine's HTTP exchanges: a proxy in front of whatever ``engine.http`` is, and what an answer says."""

import inspect
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import orjson

from sglang_telemetry.classify import Recorded, first_errno
from sglang_telemetry.events import Exchange
from sglang_telemetry.names import Transport
from sglang_telemetry.text import clean, clean_url

UPDATE_PREFIX = "/update_weights_from_"
MAX_JSON_BYTES = 64 << 10

_TRANSPORTS = {transport.value: transport for transport in Transport}
_METHODS = frozenset({"get", "post", "put", "patch", "delete", "request"})


class Listener(Protocol):
    """Who is told of exchanges."""

    def request_started(self, url: str, arguments: dict[str, Any]) -> bool:
        """An exchange begins; True when it is to be recorded."""

    def request_ended(self, recorded: Recorded) -> None:
        """A recorded exchange is over."""

    def failed(self, error: BaseException) -> None:
        """Recording it failed; the exchange itself is not touched."""


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
            return _Sender(name, value, object.__getattribute__(self, "_listener"))
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


class _Sender:
    def __init__(self, method: str, send: Callable[..., Any], listener: Listener) -> None:
        self._method, self._send, self._listener = method, send, listener

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method, url = self._guarded(_method_and_url, self._method, args, kwargs) or ("", "")
        if not self._listener.request_started(url, kwargs):
            return self._send(*args, **kwargs)
        start = time.monotonic_ns()
        try:
            answer = self._send(*args, **kwargs)
        except BaseException as error:
            self._ended(_of_error, method, url, start, error)
            raise
        # Not when it is a context manager as well: `async with client.post(...)` wants that, not a coroutine.
        if inspect.isawaitable(answer) and not hasattr(answer, "__aenter__"):
            return self._awaited(answer, method, url, start)
        streamed = kwargs.get("stream", getattr(getattr(self._send, "__self__", None), "stream", False)) is True
        self._ended(_of_answer, method, url, start, answer, streamed)
        return answer

    async def _awaited(self, pending: Any, method: str, url: str, start: int) -> Any:
        try:
            answer = await pending
        except BaseException as error:
            self._ended(_of_error, method, url, start, error)
            raise
        self._ended(_of_answer, method, url, start, answer, False)
        return answer

    def _ended(self, record: Callable[..., Recorded], method: str, url: str, start: int, *what: Any) -> None:
        recorded = self._guarded(record, method, url, time.monotonic_ns() - start, *what)
        if recorded is not None:
            self._listener.request_ended(recorded)

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        # Answers and exceptions are whatever the engine's client makes; even their text can raise.
        try:
            return function(*args)
        except Exception as error:
            self._listener.failed(error)
            return None


def is_update(url: str) -> bool:
    """Does this URL send weights?"""
    return UPDATE_PREFIX in url


def transport_of(url: str) -> Transport:
    """The way the weights travel, from the route."""
    tail = url.partition(UPDATE_PREFIX)[2].partition("?")[0].strip("/")
    return _TRANSPORTS.get(tail, Transport.DISK)


def timeout_of(value: Any) -> float | None:
    """Seconds of a ``timeout`` argument: a number, or the read part of a (connect, read) pair."""
    if isinstance(value, tuple) and len(value) == 2:
        value = value[1]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _method_and_url(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
    if method == "request":
        verb = args[0] if args else kwargs.get("method", "")
        url = args[1] if len(args) > 1 else kwargs.get("url", "")
        return str(verb).upper(), str(url)
    return method.upper(), str(args[0] if args else kwargs.get("url", ""))


def _of_error(method: str, url: str, duration: int, error: BaseException) -> Recorded:
    exchange = Exchange(
        method=method,
        url=clean_url(url),
        duration_ns=duration,
        error_type=type(error).__name__,
        error_text=clean(str(error)),
        error_errno=first_errno(error),
    )
    return Recorded(exchange=exchange, error=error)


def _of_answer(method: str, url: str, duration: int, answer: Any, streamed: bool) -> Recorded:
    status = getattr(answer, "status_code", None)
    body = b"" if streamed else getattr(answer, "content", None)
    if not isinstance(body, bytes):
        body = None
    exchange = Exchange(
        method=method,
        url=clean_url(url),
        status_code=status if isinstance(status, int) else None,
        response_text=None if body is None else clean(body[:MAX_JSON_BYTES].decode("utf-8", "replace")),
        response_bytes=None if body is None else len(body),
        duration_ns=duration,
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
    path = body.get("model_path") if isinstance(body, dict) else None
    return path if isinstance(path, str) else None


def host_of(url: str) -> str | None:
    """Host name of a URL, None when there is none."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
