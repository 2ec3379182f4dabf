"""One GET that never takes longer than it is given, whatever the server does.

The one decision: the sockets are our own. A library's time-out is per read, and a server that drips bytes outlasts it.
So nothing goes through a proxy either, and no redirect is followed.
"""

import io
import socket
import ssl
from collections.abc import Callable
from http.client import HTTPResponse
from typing import Any
from urllib.parse import quote, urlsplit

from sglang_telemetry.version import own_version

CONNECT_SECONDS = 1.0
"""Longest wait for one of the addresses of a host."""


def get(url: str, path: str, *, limit: int, left: Callable[[], float]) -> tuple[int, bytes]:
    """Status and body of a GET, on a connection of its own.

    Args:
        url: Where the server is, with the path that its routes stand below.
        path: The route, with its query.
        limit: Longest body in bytes; a longer one is an error. With 0 the body is not read.
        left: Seconds that are left.

    Raises:
        ConnectionRefusedError: Every address of the host refused.
        OSError: It cannot be reached, or the time is over.
        HTTPException: What answered does not speak HTTP.
        ValueError: The URL is none, or the body is too long.
    """
    parts = urlsplit(url)
    host = parts.hostname
    if not host:
        raise ValueError("no host")
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    # What comes from a journal must not become a further header line.
    target = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=-._~") + path
    shown = quote(f"[{host}]" if ":" in host else host, safe="[]:.-_%")
    lines = (
        f"GET {target} HTTP/1.1",
        f"Host: {shown}:{port}",
        f"User-Agent: {_agent()}",
        "Accept: application/json",
        "Connection: close",
    )
    connection = _connect(host, port, left)
    try:
        if parts.scheme == "https":
            connection.settimeout(_some(left))
            connection = _unverified().wrap_socket(connection, server_hostname=host)
        connection.settimeout(_some(left))
        connection.sendall("\r\n".join((*lines, "", "")).encode("ascii"))
        response = HTTPResponse(_Bounded(connection, left), method="GET")  # type: ignore[arg-type]
        try:
            response.begin()
            body = response.read(limit + 1) if limit else b""
            if len(body) > limit:
                raise ValueError(f"more than {limit} bytes")
            return response.status, body
        finally:
            response.close()
    finally:
        connection.close()


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
    """Nothing secret is sent, and a server with a certificate of its own making is up: do not send a key over this."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _agent() -> str:
    version = own_version()
    return f"sglang-telemetry/{version}" if version is not None else "sglang-telemetry"


class _Bounded(io.RawIOBase):
    """A socket to read from until the time is over, however little comes at once; what ``HTTPResponse`` reads."""

    def __init__(self, connection: socket.socket, left: Callable[[], float]) -> None:
        self._connection, self._left = connection, left

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_some(self._left))
        return self._connection.recv_into(buffer)
