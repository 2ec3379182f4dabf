"""Is anybody there: the address itself, the connection, and a certificate that the trainer will take too."""

import importlib.util
import os
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from sglang_telemetry.preflight.findings import Check, Finding, fail, ok
from sglang_telemetry.server_truth.address import EXAMPLE, BadAddress, base_url
from sglang_telemetry.server_truth.facts import ServerFacts
from sglang_telemetry.server_truth.no_answer import NoAnswer, Why
from sglang_telemetry.text import clean

TLS_SECONDS = 1.5
_FIXES = {
    NoAnswer.REFUSED: "start SGLang, or correct the port: it listens only when its model is loaded",
    NoAnswer.UNKNOWN_HOST: "correct the name of the host, or use its IP address",
    NoAnswer.TIMEOUT: "open the port in the firewall between here and there, or restart the server if it hangs",
    NoAnswer.TLS: "write http:// if it speaks no TLS",
    NoAnswer.CLOSED: "look what listens on that port, and give the port of SGLang",
    NoAnswer.NOT_HTTP: "give the port of SGLang: another program listens there",
    NoAnswer.UNREACHABLE: "look for the route from here to that host (ip route get HOST)",
    NoAnswer.UNUSABLE: f"write the address like {EXAMPLE}",
}


def parsed(text: str) -> str | Finding:
    """The base URL of what the user wrote, or what is wrong with that."""
    try:
        return base_url(text)
    except BadAddress as error:
        return fail(Check.ADDRESS, error.reason, error.advice)


def answers(facts: ServerFacts, certificate: str | None = None) -> Finding:
    """Does anybody answer there?

    Args:
        certificate: What is wrong with its certificate, of :func:`certificate_fault`.
    """
    if facts.why is not None and facts.ready_status is None:
        reason, fix = no_answer(facts.why)
        return fail(Check.ADDRESS, f"{reason}; it was never reached", fix)
    if certificate is not None:
        return fail(
            Check.ADDRESS,
            f"its certificate is not trusted here ({certificate}), so that the trainer's requests will not be sent",
            "set REQUESTS_CA_BUNDLE in the trainer's environment to the certificate of its authority",
        )
    secure = urlsplit(facts.url).scheme == "https"
    return ok(Check.ADDRESS, "it answers, with a certificate that is trusted here" if secure else "it answers")


def no_answer(why: Why) -> tuple[str, str]:
    """What was seen, and what to do, of a request that brought no answer."""
    said = " (connection refused)" if why.failure is NoAnswer.REFUSED else ""
    return f"{why.reason}{said}", why.advice or _FIXES[why.failure]


def certificate_fault(url: str, environ: Mapping[str, str], *, seconds: float = TLS_SECONDS) -> str | None:
    """Why ``requests`` in the trainer will not take the certificate of a server; None where it will, or there is none.

    Args:
        url: Where the server is.
        environ: Of the trainer.
        seconds: Longest wait of each step.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.hostname is None:
        return None
    try:
        context = _as_requests_does(environ)
    except (OSError, ssl.SSLError) as error:
        return clean(f"the authorities cannot be read: {error.strerror or type(error).__name__}", limit=200)
    try:
        with socket.create_connection((parts.hostname, parts.port or 443), timeout=seconds) as connection:
            with context.wrap_socket(connection, server_hostname=parts.hostname):
                return None
    except ssl.SSLCertVerificationError as error:
        return clean(error.verify_message or "unknown reason", limit=200)
    except OSError:
        return None  # that it does not answer is said already


def _as_requests_does(environ: Mapping[str, str]) -> ssl.SSLContext:
    """It takes certifi's authorities, unless one of two variables names others."""
    given = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    if given:
        folder = os.path.isdir(given)
        return ssl.create_default_context(cafile=None if folder else given, capath=given if folder else None)
    if importlib.util.find_spec("certifi") is not None:
        import certifi

        return ssl.create_default_context(cafile=certifi.where())
    return ssl.create_default_context()
