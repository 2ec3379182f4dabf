"""The address of a server as a user writes it, checked before anything is asked."""

import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

from sglang_telemetry.server_truth import routes
from sglang_telemetry.server_truth.keys import is_admin_route
from sglang_telemetry.text import clean

EXAMPLE = "http://10.0.0.7:30000"
_OF_OTHERS = frozenset(("chat", "completions", "docs", "generate", "health", "health_generate", "metrics", "v1"))
_ASKED = (
    routes.READY,
    routes.PING,
    routes.MODEL_INFO,
    routes.OLD_MODEL_INFO,
    routes.SERVER_INFO,
    routes.OLD_SERVER_INFO,
    routes.OPENAPI,
)
_ROUTES = _OF_OTHERS | {route.removeprefix("/") for route in _ASKED}
"""What stands at the end of an address that is more than one; the routes of weights besides."""


class BadAddress(ValueError):
    """An address that is none.

    Args:
        reason: What is wrong with it.
        advice: What to write.
    """

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}: {advice}")
        self.reason, self.advice = reason, advice


def base_url(text: str) -> str:
    """The address of a server, without a slash at its end.

    Args:
        text: Such as ``http://10.0.0.7:30000``, or with a path that all routes stand below.

    Raises:
        BadAddress: It is none; the line says what to write. User, password and query are not in it.
    """
    if not text.strip():
        raise BadAddress("the address is empty", f"write {EXAMPLE}")
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise BadAddress("the address has a blank or a line break in it", f"write {EXAMPLE}")
    if "@" in text:
        raise BadAddress("the address has a user or a password in it", f"write {EXAMPLE} and set the key apart")
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise _no_scheme(text)
    if scheme.lower() not in {"http", "https"}:
        raise BadAddress(f"{_shown(scheme)}:// cannot be asked", f"write http:// or https://, such as {EXAMPLE}")
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:
        raise BadAddress(f"{_shown(rest.partition('/')[0])} is no host and port", f"write {EXAMPLE}") from None
    if not host:
        raise BadAddress("there is no host in the address", f"write {EXAMPLE}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise BadAddress(f"{_shown(parts.netloc)} has no port from 1 to 65535", f"write {EXAMPLE}")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise BadAddress("the address goes on after its path", f"write {_shown(_base(parts, parts.path))}")
    path = _before_route(parts.path)
    if path is not None:
        raise BadAddress(f"{_shown(parts.path)} is a route, not a server", f"write {_shown(_base(parts, path))}")
    return _base(parts, parts.path)


def _no_scheme(text: str) -> BadAddress:
    place = re.sub(r"^https?:/*", "", text.lstrip("/")).partition("?")[0]
    if not re.fullmatch(r"[\w.:\[\]/-]+", place):
        return BadAddress("the address has no scheme", f"write {EXAMPLE}")
    return BadAddress(f"{_shown(place)} has no scheme", f"write http://{_shown(place)}")


def _before_route(path: str) -> str | None:
    """What stands before an SGLang route in a path; None where there is no route."""
    segments = path.split("/")
    for at, segment in enumerate(segments):
        if segment in _ROUTES or is_admin_route(f"/{segment}"):
            return "/".join(segments[:at])
    return None


def _base(parts: SplitResult, path: str) -> str:
    return urlunsplit((parts.scheme.lower(), parts.netloc, path.rstrip("/"), "", ""))


def _shown(text: str) -> str:
    return clean(text, limit=200)
