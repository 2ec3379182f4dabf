"""From evidence to cause: the rules of the closed set, tried in order, without importing what raises the exceptions.

Exceptions are told by the names of their classes, so that the exporter, which shares the causes, never imports
``requests``, and an engine that sends with ``httpx`` is understood as well.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass

from sglang_telemetry.causes import FailureCause as Cause
from sglang_telemetry.events import Checkpoint, Exchange
from sglang_telemetry.names import Applied, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One HTTP exchange with what the cleaned event does not carry.

    Args:
        error: The exception that came instead of an answer.
        is_sglang: The body has the shape of SGLang's answers; None when it was not read.
        success: The body's own ``success``.
    """

    exchange: Exchange
    error: BaseException | None = None
    is_sglang: bool | None = None
    success: bool | None = None

    @property
    def failed(self) -> bool:
        """The server did not say that it took the weights."""
        status = self.exchange.status_code
        return (
            self.error is not None
            or status is None
            or not 200 <= status < 300
            or self.success is False
            or self.is_sglang is False
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one rank saw of a failed sync.

    Args:
        coordinator: This rank makes the request.
        recorded: The last update request, None when none was made.
        errors: Exceptions seen at the seams and in the engine's handlers, with the phase they came in, first to last.
        raised: What left ``update_policy``.
        phase: The phase that was open at the end.
        printed: What the engine printed.
        checkpoint: The checkpoint folder after the failure.
        last_payload_bytes: Size of the last good checkpoint.
        proxied: A proxy variable applies to the server's URL.
        accepting: A connection tried right after the failure was accepted (True) or refused (False).
    """

    coordinator: bool
    recorded: Recorded | None = None
    errors: tuple[tuple[Phase, BaseException], ...] = ()
    raised: BaseException | None = None
    phase: Phase = Phase.OTHER
    printed: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    last_payload_bytes: int | None = None
    proxied: bool = False
    accepting: bool | None = None


@dataclass(frozen=True, slots=True)
class ServerText:
    """A text of SGLang's and what it means; an unknown text falls through to the status code.

    Args:
        another: Another update, or a flush, is at work: nothing may be sent beside it.
    """

    fragment: str
    cause: Cause
    applied: Applied
    seen_in: str
    another: bool = False


SERVER_TEXTS: tuple[ServerText, ...] = (
    ServerText("cache was not flushed", Cause.SERVER_BUSY, Applied.YES, "0.5.23, measured"),
    ServerText("weight-update session is already open", Cause.SERVER_BUSY, Applied.NO, "0.5.23, source", another=True),
    ServerText(
        "another flush_cache is already in progress",
        Cause.SERVER_BUSY,
        Applied.UNKNOWN,
        "0.5.23, source",
        another=True,
    ),
    ServerText("pending requests", Cause.SERVER_BUSY, Applied.UNKNOWN, "0.5.23, source"),
    ServerText("already in progress", Cause.SERVER_BUSY, Applied.NO, "older than 0.5.23", another=True),
    # "Rolling back" does not roll back: a transient error leaves the new weights live.
    ServerText("failed to update weights", Cause.CHECKPOINT_INVALID, Applied.UNKNOWN, "0.5.23, source"),
    ServerText("attempted to load weight", Cause.CHECKPOINT_INVALID, Applied.UNKNOWN, "0.5.23, source"),
    ServerText("deserializing header", Cause.CHECKPOINT_INVALID, Applied.NO, "safetensors 0.6"),
    ServerText("size mismatch", Cause.CHECKPOINT_INVALID, Applied.UNKNOWN, "torch 2.13"),
    ServerText("unpickling", Cause.CHECKPOINT_INVALID, Applied.NO, "torch 2.13"),
    ServerText("unknown load_format", Cause.CHECKPOINT_INVALID, Applied.NO, "0.5.23, source"),
    ServerText("failed to get model loader", Cause.CHECKPOINT_INVALID, Applied.NO, "0.5.23, measured"),
    ServerText("incomplete download?", Cause.PATH_NOT_VISIBLE, Applied.NO, "0.5.23, source"),
    ServerText("cannot find any model weights", Cause.PATH_NOT_VISIBLE, Applied.NO, "0.5.23, measured"),
    ServerText("repo id must be", Cause.PATH_NOT_VISIBLE, Applied.NO, "0.5.23, measured"),
    ServerText("cannot find an appropriate cached snapshot", Cause.PATH_NOT_VISIBLE, Applied.NO, "0.5.23, measured"),
    ServerText("no such file or directory", Cause.PATH_NOT_VISIBLE, Applied.NO, "0.5.23, source"),
    ServerText("is not a local folder", Cause.PATH_NOT_VISIBLE, Applied.NO, "huggingface_hub 0.30"),
    ServerText("validation error", Cause.PROTOCOL, Applied.NO, "0.5.23, measured"),
)

_PROXY = {"ProxyError", "InvalidProxyURL", "ProxySchemeUnknown", "ProxySchemeUnsupported"}
# With one of these no connection came about, so that nothing was sent.
_NOT_CONNECTED = {
    "ConnectTimeout",
    "ConnectTimeoutError",
    "ConnectError",
    "NewConnectionError",
    "NameResolutionError",
    "ConnectionRefusedError",
    "gaierror",
    "ClientConnectorError",
    "SSLCertVerificationError",
    "CertificateError",
}
_NOT_CONNECTED_ERRNO = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL}
_HANDSHAKE = ("handshake", "wrong version number", "certificate", "unknown protocol", "unsupported protocol")
# These come while it connects, and also on a connection over which the update was sent.
_NO_ROUTE_ERRNO = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}
_CLOSED = {
    "RemoteDisconnected",
    "ConnectionResetError",
    "ConnectionAbortedError",
    "BrokenPipeError",
    "ProtocolError",
    "IncompleteRead",
    "ChunkedEncodingError",
    "RemoteProtocolError",
    "ReadError",
    "WriteError",
    "BadStatusLine",
    "ServerDisconnectedError",
}
_TIMED_OUT = {"ReadTimeout", "ReadTimeoutError", "TimeoutError", "WriteTimeout", "PoolTimeout", "SocketTimeout"}
# An engine that sends again in its handler: the first exception, of a connection that did not come about, is the
# context of the second.
_SENT = (_CLOSED | _TIMED_OUT) - {
    "ConnectionResetError",
    "ConnectionAbortedError",
    "BrokenPipeError",
    "TimeoutError",
    "PoolTimeout",
}
_BAD_URL = {
    "MissingSchema",
    "InvalidSchema",
    "InvalidURL",
    "LocationParseError",
    "LocationValueError",
    "UnsupportedProtocol",
    "TooManyRedirects",
    "ContentDecodingError",
    "InvalidHeader",
    "LocalProtocolError",
}
_OUT_OF_MEMORY = {"OutOfMemoryError", "MemoryError"}
_WRITER_FAILED = ("pytorchstreamwriter", "file write failed", "unexpected pos", "i/o error")
_LOCAL = {Phase.SETUP, Phase.STATE_DICT, Phase.SAVE}
_COLLECTIVE = {Phase.BROADCAST, Phase.BARRIER}


def classify(evidence: Evidence) -> tuple[Cause, Applied]:
    """Tell the cause of a failed sync, and whether the server took the weights."""
    if not evidence.coordinator and (evidence.recorded is None or not evidence.recorded.failed):
        own = _of_trainer(evidence)
        return own if own else (Cause.PEER, Applied.UNKNOWN)
    if evidence.recorded is not None and evidence.recorded.failed:
        return _of_exchange(evidence, evidence.recorded)
    # Either no request was made, or the server took the weights and the trouble came later.
    applied = Applied.NO if evidence.recorded is None else Applied.YES
    own = _of_trainer(evidence)
    if own:
        return own[0], applied
    if _of_collective(evidence):
        return Cause.PEER, applied
    return Cause.UNKNOWN, Applied.UNKNOWN if evidence.recorded is None else applied


def another_is_at_work(text: str | None) -> bool:
    """Does an answer say that the server is at work on another update, or on a flush?"""
    lower = (text or "").lower()
    return any(known.another and known.fragment in lower for known in SERVER_TEXTS)


def walk(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and all that it carries: causes, contexts, group members, ``reason`` and exceptions in its args."""
    todo, seen = [error], set[int]()
    while todo and len(seen) < 100:
        current = todo.pop(0)
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        todo += [current.__cause__, current.__context__, getattr(current, "reason", None)]
        todo += [arg for arg in current.args if isinstance(arg, BaseException)]
        todo += list(getattr(current, "exceptions", ()) or ()) if isinstance(current, BaseExceptionGroup) else []


def first_errno(error: BaseException | None) -> int | None:
    """The first errno in an exception's chain; every ``requests`` exception is an OSError whose own is None."""
    return next((e.errno for e in walk(error) if isinstance(e, OSError) and isinstance(e.errno, int)), None)


def _names(error: BaseException | None) -> set[str]:
    return {cls.__name__ for e in walk(error) for cls in type(e).__mro__}


def _of_trainer(evidence: Evidence) -> tuple[Cause, Applied] | None:
    """Rules 2 to 4: something went wrong before the request, on this side."""
    errors = list(evidence.errors)
    if evidence.raised is not None and all(evidence.raised is not error for _, error in errors):
        errors.append((evidence.phase, evidence.raised))
    local = [(phase, error) for phase, error in errors if phase not in _COLLECTIVE and phase is not Phase.REQUEST]
    for _, error in local:
        if first_errno(error) in {errno.ENOSPC, errno.EDQUOT} or any(
            "no space left on device" in text or "os error 28" in text for text in _texts(error)
        ):
            return Cause.DISK_FULL, Applied.NO
        if any(sign in text for text in _texts(error) for sign in _WRITER_FAILED) and _nearly_full(evidence):
            return Cause.DISK_FULL, Applied.NO
    for _, error in local:
        if (
            _names(error) & _OUT_OF_MEMORY
            or first_errno(error) == errno.ENOMEM
            or any("out of memory" in text for text in _texts(error))
        ):
            return Cause.OUT_OF_MEMORY, Applied.NO
    if evidence.recorded is None and any("out of memory" in text.lower() for text in evidence.printed):
        return Cause.OUT_OF_MEMORY, Applied.NO
    if evidence.recorded is None and any(
        phase in {Phase.STATE_DICT, Phase.SAVE} or (phase is Phase.SETUP and isinstance(error, OSError))
        for phase, error in local
    ):
        return Cause.CHECKPOINT_WRITE, Applied.NO
    return None


def _texts(error: BaseException) -> list[str]:
    return [str(e).lower() for e in walk(error)]


def _nearly_full(evidence: Evidence) -> bool:
    there = evidence.checkpoint
    if there is None or there.free_bytes is None:
        return False
    needed = evidence.last_payload_bytes or there.bytes or 0
    return there.free_bytes < max(needed, 1 << 20)


def _of_collective(evidence: Evidence) -> bool:
    return any(phase in _COLLECTIVE for phase, _ in evidence.errors) or (
        evidence.raised is not None and ("DistBackendError" in _names(evidence.raised) or evidence.phase in _COLLECTIVE)
    )


def _of_exchange(evidence: Evidence, recorded: Recorded) -> tuple[Cause, Applied]:
    """Rules 3 and 5 to 14: the update request failed."""
    return _of_http_error(evidence, recorded.error) if recorded.error else _of_answer(evidence, recorded)


def _of_http_error(evidence: Evidence, error: BaseException) -> tuple[Cause, Applied]:
    names = _names(error)
    if names & _OUT_OF_MEMORY or first_errno(error) == errno.ENOMEM:
        return Cause.OUT_OF_MEMORY, Applied.NO
    if names & _PROXY:
        return Cause.PROXY_INTERCEPTED, Applied.NO
    if not names & _SENT and (
        names & _NOT_CONNECTED or first_errno(error) in _NOT_CONNECTED_ERRNO or _in_handshake(error)
    ):
        return Cause.UNREACHABLE, Applied.NO
    if "SSLError" in names or first_errno(error) in _NO_ROUTE_ERRNO:
        return Cause.UNREACHABLE, Applied.UNKNOWN
    if names & _BAD_URL:
        return Cause.PROTOCOL, Applied.NO
    # A read time-out can be wrapped in a ConnectionError; a closed connection never is a time-out.
    if names & _CLOSED and not names & (_TIMED_OUT - {"TimeoutError"}):
        if evidence.accepting:
            return Cause.UNREACHABLE, Applied.UNKNOWN
        fault = evidence.checkpoint is not None and evidence.checkpoint.fault is not None
        return (Cause.CHECKPOINT_INVALID if fault else Cause.SERVER_DIED), Applied.NO
    if names & _TIMED_OUT:
        return Cause.TIMEOUT, Applied.UNKNOWN
    if isinstance(error, ValueError):
        return Cause.PROTOCOL, Applied.NO
    return Cause.UNKNOWN, Applied.UNKNOWN


def _in_handshake(error: BaseException) -> bool:
    """Did TLS fail before anything was sent? Only what ``ssl`` itself says tells: other texts hold the host's name."""
    return any(
        sign in str(e).lower()
        for e in walk(error)
        if any(cls.__module__ == "ssl" for cls in type(e).__mro__)
        for sign in _HANDSHAKE
    )


def _of_answer(evidence: Evidence, recorded: Recorded) -> tuple[Cause, Applied]:
    status = recorded.exchange.status_code or 0
    text = (recorded.exchange.response_text or "").lower()
    if "out of memory" in text:
        return Cause.OUT_OF_MEMORY, Applied.UNKNOWN
    if status == 407 or (status in {403, 502, 503, 504} and evidence.proxied and not recorded.is_sglang):
        return Cause.PROXY_INTERCEPTED, Applied.NO
    if status in {401, 403}:
        return Cause.UNAUTHORIZED, Applied.NO
    if recorded.is_sglang is not False or not 200 <= status < 300:
        for known in SERVER_TEXTS:
            if known.fragment in text:
                return _with_local_check(evidence, known)
    if status in {409, 423, 429}:
        return Cause.SERVER_BUSY, Applied.NO
    if status in {404, 405, 415, 422, 501} or 100 <= status < 200 or 300 <= status < 400:
        return Cause.PROTOCOL, Applied.NO
    if 200 <= status < 300 and recorded.success is not False:
        return Cause.PROTOCOL, Applied.UNKNOWN
    return Cause.SERVER_ERROR, Applied.UNKNOWN


def _with_local_check(evidence: Evidence, known: ServerText) -> tuple[Cause, Applied]:
    """The server sees no weights: is that its view of the folder, or is the folder really incomplete?"""
    there = evidence.checkpoint
    if known.cause is Cause.PATH_NOT_VISIBLE and there is not None and (there.fault or not there.files):
        return Cause.CHECKPOINT_INVALID, known.applied
    return known.cause, known.applied
