"""Why a request brought no answer, as a closed set and in words that say what to do."""

import socket
import ssl
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException, RemoteDisconnected
from urllib.parse import urlsplit

from sglang_telemetry.text import clean, clean_url, server_of

_MAX_TEXT = 300


class NoAnswer(StrEnum):
    """Why there is none."""

    REFUSED = "refused"
    UNKNOWN_HOST = "unknown_host"
    TIMEOUT = "timeout"
    TLS = "tls"
    CLOSED = "closed"
    NOT_HTTP = "not_http"
    UNREACHABLE = "unreachable"
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why there is none, in words.

    Args:
        failure: The same as one of a closed set.
        reason: What was seen.
        guess: What that may mean.
        advice: What to do, where that is known.
    """

    failure: NoAnswer
    reason: str
    guess: str = ""
    advice: str = ""

    @property
    def line(self) -> str:
        """All of it for the user, in one line."""
        return ": ".join(filter(None, (self.reason, self.guess, self.advice)))


def why(error: Exception, url: str) -> Why:
    """What an error of :func:`~sglang_telemetry.server_truth.bounded.request` means.

    Args:
        error: What it raised.
        url: What was asked.
    """
    place = server_of(url) or clean_url(url)
    match error:
        case ssl.SSLCertVerificationError():
            reason = clean(error.verify_message or "unknown reason", limit=_MAX_TEXT)
            return Why(
                failure=NoAnswer.TLS,
                reason=f"the certificate of {place} is not trusted ({reason}), so no key was sent",
                advice="set SSL_CERT_FILE to the certificate of its authority",
            )
        case ssl.SSLError():
            failed = f"TLS with {place} failed ({_reason(error)})"
            return Why(failure=NoAnswer.TLS, reason=failed, guess="does it speak plain http://?")
        case ConnectionRefusedError():
            return Why(
                failure=NoAnswer.REFUSED,
                reason=f"nobody listens on {place}",
                guess="is it started, and is this its port? SGLang listens only when it is ready",
            )
        case TimeoutError():
            return Why(
                failure=NoAnswer.TIMEOUT,
                reason=f"{place} did not answer in time",
                guess="it hangs, or a firewall drops what is sent",
            )
        case socket.gaierror():
            unresolved = f"the name of {place} cannot be resolved here ({_reason(error)})"
            return Why(failure=NoAnswer.UNKNOWN_HOST, reason=unresolved)
        case RemoteDisconnected() | ConnectionResetError() | BrokenPipeError():
            return Why(failure=NoAnswer.CLOSED, reason=f"{place} closed the connection without an answer")
        case HTTPException():
            secured = urlsplit(url).scheme == "http" and "\x15\x03" in str(error)
            return Why(
                failure=NoAnswer.NOT_HTTP,
                reason=f"what {place} answers is not HTTP ({type(error).__name__})",
                guess="it speaks TLS" if secured else "another program listens there",
                advice="write https://" if secured else "",
            )
        case OSError():
            return Why(failure=NoAnswer.UNREACHABLE, reason=f"{place} cannot be reached ({_reason(error)})")
        case _:
            said = clean(str(error), limit=_MAX_TEXT)
            return Why(failure=NoAnswer.UNUSABLE, reason=f"{place} cannot be asked ({said})")


def _reason(error: OSError) -> str:
    return clean(error.strerror or str(error) or type(error).__name__, limit=_MAX_TEXT)
