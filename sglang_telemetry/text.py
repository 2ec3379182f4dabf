"""Text that came from outside is data: cut, cleaned of control characters, and without secrets, once, at the door."""

import functools
import re
from typing import TextIO
from urllib.parse import urlsplit, urlunsplit

MAX_BYTES = 8192
"""Longest text that leaves, in bytes of UTF-8; the true length is kept beside it."""

# C0 without tab and newline, DEL, C1, line and paragraph separators, and the marks that turn the reading direction.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_ANSI = re.compile("(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|\x1b[@-_]")
_HIDDEN = "[redacted]"
# Every repetition is bounded or cannot overlap itself: a hostile body must not cost a sync more than its length.
_SECRET_KEY = r"(?:(?:api|access|private)[_-]?key|token(?!s\b)|secret|passw(?:or)?d|pwd|credential|cookie)[\w.-]{0,40}"
# A quoted value may have escaped quotes inside, be JSON inside a JSON string itself, or be cut before its end.
_VALUE = r"""\\+["'][^"'\n]*(?:["']|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|[^\s,;&}"'\\]+"""
# Each with words of which one must be there: looking for those first is what makes a good sync cheap.
_SECRETS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (("bearer", "basic"), re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{4,}"), rf"\1 {_HIDDEN}"),
    (
        ("auth",),
        re.compile(r"(?i)(\bauthorization\\{0,8}[\"']?\s{0,8}[:=]\s{0,8}\\{0,8}[\"']?)[^\n\"'\\,}]+"),
        rf"\1{_HIDDEN}",
    ),
    (
        ("key", "token", "secret", "passw", "pwd", "credential", "cookie"),
        re.compile(rf"(?i)({_SECRET_KEY}\\{{0,8}}[\"']?\s{{0,8}}[:=]\s{{0,8}})(?:{_VALUE})"),
        rf"\1{_HIDDEN}",
    ),
    (("@",), re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^/\s\"'<>]*@"), r"\1"),
    # A slash in a password ends the host for every parser; a port does not look like one.
    (("@",), re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^/\s\"'<>:@]{1,64}:(?!\d+/)[^\s\"'<>]{1,256}@"), r"\1"),
    (("?",), re.compile(r"(?<=[\w/.])\?[\w.%-]+=[^\s\"'<>)]*"), f"?{_HIDDEN}"),
    (
        ("--",),
        re.compile(r"""(?i)(--[\w-]{0,20}(?:key|token|secret|password)(?:\s{1,8}|["'],\s{0,8}["']))[^\s"']+"""),
        rf"\1{_HIDDEN}",
    ),
    (
        ("sk", "hf", "gh", "github", "glpat", "xox"),
        re.compile(r"\b(?:sk|hf|gh[pousr]|github_pat|glpat|xox[bp])[-_][\w-]{8,}"),
        _HIDDEN,
    ),
    # A header that cannot be sent is shown whole by every client, such as a key with its file's last line's end. To the
    # end of the text, since not all put it in quotes.
    (
        ("header value", "header part"),
        re.compile(r"(?is)(\b(?:(?:invalid|illegal|in) header value|header part \()[:\s]{0,8}).+"),
        rf"\1{_HIDDEN}",
    ),
    (("akia", "eyj"), re.compile(r"\bAKIA[A-Z0-9]{12,}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), _HIDDEN),
)


def is_terminal(stream: TextIO | None) -> bool:
    """Does a person read this stream? A stream that is closed, or none, is no terminal."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):
        return False


def clean(text: str, *, limit: int = MAX_BYTES) -> str:
    """Make a text safe to log and to show: no terminal control characters, no secrets, at most ``limit`` bytes.

    Args:
        text: Any text, for instance the body of an answer.
        limit: Longest result in bytes of UTF-8.
    """
    # A prefix is enough: nothing behind it can survive the cut, and a 10 GB body must not cost its length.
    text = text[: 2 * limit]
    if not text.isprintable():
        text = _CONTROL.sub("", _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    lower = text.lower()
    for words, pattern, replacement in _SECRETS:
        if any(word in lower for word in words):
            text = pattern.sub(replacement, text)
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8", "replace")
    return raw[:limit].decode("utf-8", "ignore")


def said_by(error: BaseException) -> str:
    """An exception in one text, whatever it carries: its class and what it says, cleaned, at most 500 bytes."""
    try:
        return clean(f"{type(error).__name__}: {error}", limit=500)
    except Exception:  # one whose text raises
        return type(error).__name__


@functools.lru_cache(maxsize=64)
def clean_url(url: str) -> str:
    """The URL without user, password, query values and fragment; unparsable ones are cleaned as text."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return clean(urlunsplit((parts.scheme, host, parts.path, "", "")), limit=1024)
    except ValueError:
        return clean(url, limit=1024)


@functools.lru_cache(maxsize=64)
def server_of(url: str | None) -> str | None:
    """``host:port`` of a URL, the ``server`` label, or None when there is none to be read.

    Args:
        url: A base URL such as ``http://10.0.0.7:30000``.
    """
    if url is None:
        return None
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host:
        return None
    port = port or {"https": 443}.get(parts.scheme, 80)
    shown = f"[{host}]" if ":" in host else host
    return clean(f"{shown}:{port}", limit=256)
