"""The keys that SGLang's routes want: where they come from, which of them a route gets, and that nothing shows them.

Which key opens what (SGLang 0.5.23, measured):

| server started with | admin routes | other routes |
| --- | --- | --- |
| no key | open | open |
| only ``--api-key`` | api key | api key |
| only ``--admin-api-key`` | admin key | open |
| both | admin key alone | api key alone |

``/ready``, ``/health`` and ``/metrics`` are always open.

The one decision: a key is never in a message, a repr or an event. A file is read anew when it has changed, so that a
secret can be rotated; while it cannot be read, the key that was read last still counts.
"""

import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from sglang_telemetry.names import UPDATE_ROUTE, Env
from sglang_telemetry.server_truth.routes import BEGIN_UPDATE, CHECKER, CONTINUE, FLUSH, PAUSE, READY, UPDATE_VERSION

MAX_KEY_BYTES = 8192
ADMIN_ROUTES: Final = frozenset(
    (
        "/abort_request",
        BEGIN_UPDATE,
        CONTINUE,
        "/destroy_weights_update_group",
        "/end_weight_update",
        FLUSH,
        "/get_weights_by_name",
        "/init_weights_update_group",
        PAUSE,
        "/release_memory_occupation",
        "/resume_memory_occupation",
        UPDATE_VERSION,
        CHECKER,
    )
)
"""Those of weights, pauses, memory and cache, besides ``/update_weights_from_*`` (source of SGLang 0.5.23)."""
_OPEN = ("/health", READY, "/metrics")
_PRINTABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class Keys:
    """The keys for one look or more; whoever holds it may keep it for as long as it asks.

    Args:
        api_key: SGLang's ``--api-key``.
        admin_api_key: SGLang's ``--admin-api-key``.

    Raises:
        ValueError: One of them cannot be sent in a header.
    """

    __slots__ = ("_admin_api_key", "_api_key")

    def __init__(self, *, api_key: str | None = None, admin_api_key: str | None = None) -> None:
        self._api_key = _Secret(checked_key(api_key) if api_key is not None else None)
        self._admin_api_key = _Secret(checked_key(admin_api_key) if admin_api_key is not None else None)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Keys":
        """The keys that the environment gives, each itself or in a file; an empty variable is none.

        Args:
            environ: ``os.environ``.

        Raises:
            ValueError: A key is given twice, its file cannot be read or is empty, or it cannot be sent.
        """
        keys = cls()
        keys._api_key = _secret(environ, Env.API_KEY, Env.API_KEY_FILE)
        keys._admin_api_key = _secret(environ, Env.ADMIN_API_KEY, Env.ADMIN_API_KEY_FILE)
        return keys

    @property
    def api_key(self) -> str | None:
        """The key for all routes, or for those that are not an administrator's."""
        return self._api_key.now()

    @property
    def admin_api_key(self) -> str | None:
        """The administrator's key."""
        return self._admin_api_key.now()

    def of_route(self, path: str) -> str | None:
        """The key to be sent to a route; None where it needs none or none is set.

        Args:
            path: The route, with or without a query.
        """
        route = urlsplit(path).path
        if route.startswith(_OPEN):
            return None
        if is_admin_route(route):
            return self.admin_api_key or self.api_key
        return self.api_key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Keys):
            return NotImplemented
        return (self.api_key, self.admin_api_key) == (other.api_key, other.admin_api_key)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = {True: "'***'", False: "None"}
        return f"Keys(api_key={shown[self._api_key.given]}, admin_api_key={shown[self._admin_api_key.given]})"


def is_admin_route(route: str) -> bool:
    """Does this route want the administrator's key where there is one?"""
    return route in ADMIN_ROUTES or route.startswith(UPDATE_ROUTE)


def checked_key(key: str) -> str:
    """The key, if it can be sent in a header.

    Raises:
        ValueError: It is empty, too long, or has a line break, a control character, a blank at an end or a character
            beyond ASCII; SGLang 0.5.23 compares ASCII alone (source). The message does not contain it.
    """
    if not key:
        raise ValueError("the key is empty: leave it out, or give one")
    if len(key) > MAX_KEY_BYTES:
        raise ValueError(f"the key has more than {MAX_KEY_BYTES} characters: is that another file?")
    if not _PRINTABLE.fullmatch(key):
        raise ValueError(
            "the key cannot be sent in a header: it has a line break, a control character, a blank at its start or "
            "end, or a character beyond ASCII; write it again without"
        )
    return key


class _Secret:
    """A key, or the file that it lies in."""

    __slots__ = ("_file", "_key", "_seen")

    def __init__(self, key: str | None = None, *, file: str | None = None) -> None:
        self._key, self._file = key, file
        self._seen: tuple[int, ...] | None = None
        if file is not None:
            self._seen = _version_of(file)
            self._key = _read(file)

    @property
    def given(self) -> bool:
        return self._key is not None

    def now(self) -> str | None:
        if self._file is not None:
            try:
                version = _version_of(self._file)
                if version != self._seen:
                    self._key = _read(self._file)
                    self._seen = version
            except (OSError, ValueError):
                pass  # it is just being replaced; the next look reads it
        return self._key

    def __repr__(self) -> str:
        return "_Secret(***)"


def _secret(environ: Mapping[str, str], variable: Env, file_variable: Env) -> _Secret:
    key, file = environ.get(variable, ""), environ.get(file_variable, "")
    if key and file:
        raise ValueError(f"{variable} and {file_variable} are both set: unset one of them")
    try:
        if file:
            return _Secret(file=file)
        return _Secret(checked_key(key) if key else None)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        shown = file if "/" in file else "its file"  # somebody may have written the key itself there
        told = f"{file_variable}: {shown} cannot be read ({reason}): name a file with the key in it"
        raise ValueError(told) from None
    except ValueError as error:
        raise ValueError(f"{file_variable if file else variable}: {error}") from None


def _version_of(file: str) -> tuple[int, ...]:
    """Another one after the file was written or replaced, also by the links of a Kubernetes secret."""
    status = os.stat(file)
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev


def _read(file: str) -> str:
    with open(file, "rb") as opened:
        content = opened.read(MAX_KEY_BYTES + 2)
    # Latin-1 takes any byte, so that the message about a bad one is ours and does not quote it.
    key = content.decode("latin-1").removesuffix("\n").removesuffix("\r")
    if not key.strip():
        raise ValueError(f"{file} is empty: write the key into it")
    return checked_key(key)


NO_KEYS: Final = Keys()
"""Nothing is sent."""
