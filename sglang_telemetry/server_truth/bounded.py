"""One request that never takes longer than it is given, whatever the server does.

The one decision: the sockets are our own. A library's time-out is per read, and a server that drips bytes outlasts it.
So nothing goes through a proxy either, and no redirect is followed. A key is only sent over plain HTTP, or over TLS
whose certificate and host name were verified.
"""

import email.utils
import functools
import io
import os
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPResponse
from typing import Any
from urllib.parse import quote, urlsplit

from sglang_telemetry.server_truth.keys import checked_key
from sglang_telemetry.text import clean
from sglang_telemetry.version import own_version

CONNECT_SECONDS = 1.0
"""Longest wait for one of the addresses of a host."""
_METHOD = re.compile(r"[A-Z]{1,16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a server answered.

    Args:
        body: Its bytes, up to the limit that was set.
        date: The server's clock in Unix seconds, whole ones, from its ``Date`` header.
        server: What its ``Server`` header calls it, cleaned; SGLang's is ``uvicorn`` (SGLang 0.5.23, measured).
    """

    status: int
    body: bytes = field(default=b"", repr=False)
    date: float | None = None
    server: str | None = None


def request(
    url: str,
    path: str,
    *,
    limit: int,
    left: Callable[[], float],
    method: str = "GET",
    body: bytes | None = None,
    key: str | None = None,
) -> Response:
    """Ask once, on a connection of its own.

    Args:
        url: Where the server is, with the path that its routes stand below.
        path: The route, with its query.
        limit: Longest body in bytes; a longer one is an error. With 0 the body is not read.
        left: Seconds that are left.
        method: The HTTP method.
        body: JSON to be sent with it.
        key: Sent as a bearer token. With it TLS is verified against the machine's authorities, or those of
            ``SSL_CERT_FILE``; without it nothing secret is sent, and any certificate will do.

    Raises:
        ConnectionRefusedError: Every address of the host refused.
        OSError: It cannot be reached, the time is over, or its certificate is not trusted with a key.
        HTTPException: What answered does not speak HTTP.
        ValueError: The URL is none, the method or the key cannot be sent, or the body is too long.
    """
    parts = urlsplit(url)
    host = parts.hostname
    if not host:
        raise ValueError("no host")
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    head = _head(method, parts.path, path, host, port, body, key)
    connection = _connect(host, port, left)
    try:
        if parts.scheme == "https":
            connection.settimeout(_some(left))
            context = _unverified() if key is None else _verified()
            connection = context.wrap_socket(connection, server_hostname=host)
        _send(connection, head + (body or b""), left)
        response = HTTPResponse(_Bounded(connection, left, limit + _MAX_HEAD), method=method)  # type: ignore[arg-type]
        try:
            response.begin()
            content = response.read(limit + 1) if limit else b""
            if len(content) > limit:
                raise ValueError(f"more than {limit} bytes")
            shown = response.getheader("Server")
            return Response(
                status=response.status,
                body=content,
                date=_unix_seconds(response.getheader("Date")),
                server=clean(shown, limit=100) if shown else None,
            )
        finally:
            response.close()
    finally:
        connection.close()


def _head(
    method: str,
    base: str,
    path: str,
    host: str,
    port: int,
    body: bytes | None,
    key: str | None,
) -> bytes:
    """The request up to the body; nothing that came from outside becomes a further line of it."""
    if not _METHOD.fullmatch(method):
        raise ValueError("no HTTP method")
    target = quote(base.rstrip("/"), safe="/%:@!$&'()*+,;=-._~") + quote(path, safe="/%:@!$&'()*+,;=-._~?")
    shown = quote(f"[{host}]" if ":" in host else host, safe="[]:.-_%")
    lines = [
        f"{method} {target} HTTP/1.1",
        f"Host: {shown}:{port}",
        f"User-Agent: {_agent()}",
        "Accept: application/json",
        "Connection: close",
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if key is not None:
        lines.append(f"Authorization: Bearer {checked_key(key)}")
    return "\r\n".join((*lines, "", "")).encode("ascii")


def _send(connection: socket.socket, data: bytes, left: Callable[[], float]) -> None:
    """``sendall`` of a TLS socket waits anew for each piece that a slow reader takes."""
    rest = memoryview(data)
    while rest:
        connection.settimeout(_some(left))
        rest = rest[connection.send(rest) :]


def _connect(host: str, port: int, left: Callable[[], float]) -> socket.socket:
    errors: list[OSError] = []
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = None
        try:
            connection = socket.socket(family, kind, protocol)
            connection.settimeout(min(CONNECT_SECONDS, _some(left)))
            connection.connect(address)
            return connection
        except OSError as error:
            if connection is not None:
                connection.close()
            errors.append(error)
    # Silence says the least and goes first; of two address families one may not exist here, which says nothing.
    telling = [one for wanted in (TimeoutError, ConnectionRefusedError) for one in errors if isinstance(one, wanted)]
    raise telling[0] if telling else errors[0]


def _some(left: Callable[[], float]) -> float:
    seconds = left()
    if seconds <= 0:
        raise TimeoutError("the time of this look is over")
    return seconds


def _unverified() -> ssl.SSLContext:
    """Nothing secret is sent, and a server with a certificate of its own making is up: never send a key over this."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _verified() -> ssl.SSLContext:
    """Certificate and host name are checked against the machine's authorities or those of ``SSL_CERT_FILE``."""
    paths = ssl.get_default_verify_paths()
    stamps = []
    for path in (paths.cafile, paths.capath):
        try:
            stamps.append((path, os.stat(path).st_mtime_ns if path else 0))
        except OSError:
            stamps.append((path, 0))
    return _context_of(tuple(stamps))


@functools.lru_cache(maxsize=1)
def _context_of(_stamps: tuple[tuple[str | None, int], ...]) -> ssl.SSLContext:
    """Reading the authorities takes 18 ms, which each look would spend: they are read anew when they have changed."""
    return ssl.create_default_context()


def _unix_seconds(date: str | None) -> float | None:
    if date is None:
        return None
    try:
        read = email.utils.parsedate_tz(date)
        return float(email.utils.mktime_tz(read)) if read is not None else None
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _agent() -> str:
    version = own_version()
    return f"sglang-telemetry/{version}" if version is not None else "sglang-telemetry"


_MAX_HEAD = 1 << 20
"""More than ``http.client`` takes of status, headers and what stands between chunks."""


class _Bounded(io.RawIOBase):
    """A socket to read from until the time is over, however little comes at once; what ``HTTPResponse`` reads.

    No more than ``most`` bytes are read in all: to ``HTTPResponse`` a chunk of a negative length has no end.
    """

    def __init__(self, connection: socket.socket, left: Callable[[], float], most: int) -> None:
        self._connection, self._left, self._most = connection, left, most

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._most <= 0:
            raise ValueError("the answer has no end")
        self._connection.settimeout(_some(self._left))
        count = self._connection.recv_into(buffer)
        self._most -= count
        return count
