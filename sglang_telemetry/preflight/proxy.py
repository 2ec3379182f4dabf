"""Would the trainer's requests go through a proxy that the environment names?

``requests``, which engines send with, asks the environment; the loopback is no exception. It understands networks such
as ``10.0.0.0/8`` in ``NO_PROXY`` where the address is an IPv4 one (``utils.should_bypass_proxies`` of requests 2.34.2).
``urllib`` of Python 3.11 and httpx 0.29.0 do not (measured), ``curl`` does since 7.86.0 (CURLOPT_NOPROXY(3)).
"""

import ipaddress
import re
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from sglang_telemetry.preflight.findings import Check, Finding, fail, ok, warn
from sglang_telemetry.text import server_of

_SCHEMES = frozenset({"http", "https", "socks4", "socks4a", "socks5", "socks5h"})


class _Set(NamedTuple):
    """A variable and its value; of the value nothing is ever shown but host and port."""

    variable: str
    value: str


def proxy(url: str, environ: Mapping[str, str]) -> Finding:
    """Does a proxy variable apply to this server?

    Args:
        url: Its base URL.
        environ: Of the trainer.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    variables = _variables(environ)
    chosen = variables.get(parts.scheme) or variables.get("all")
    exceptions = variables.get("no")
    if chosen is None:
        return ok(Check.PROXY, "no proxy variable applies to it")
    if exceptions is not None and _left_out(host, parts.netloc, exceptions.value):
        return ok(Check.PROXY, f"{chosen.variable} is set, and {exceptions.variable} leaves this host out")
    fault = _fault(chosen.value)
    if fault is not None:
        return fail(
            Check.PROXY,
            f"{chosen.variable} applies to it and is malformed ({fault}): no request will be sent",
            f"write {chosen.variable} like http://proxy:3128, or unset it",
        )
    variable = "NO_PROXY" if exceptions is None else exceptions.variable
    fix = f'export {variable}="{host}"' if exceptions is None else f'export {variable}="${variable},{host}"'
    network = _network(host, exceptions.value) if exceptions is not None else None
    if network is not None:
        return warn(
            Check.PROXY,
            f"only requests understands {network} in {variable}; by other clients it is asked through the proxy of "
            f"{chosen.variable}",
            fix,
        )
    through = server_of(chosen.value) or "a proxy"
    return warn(
        Check.PROXY,
        f"{chosen.variable} applies to it: the trainer's requests go to {through}, whose answers are not SGLang's",
        fix,
    )


def _variables(environ: Mapping[str, str]) -> dict[str, _Set]:
    """By scheme, as :func:`urllib.request.getproxies_environment` reads them: in lower case they win, also empty."""
    found: dict[str, _Set] = {}
    for name, value in environ.items():
        if value and name.lower().endswith("_proxy"):
            found[name.lower()[:-6]] = _Set(name, value)
    if "REQUEST_METHOD" in environ:  # in a CGI script HTTP_PROXY may be what a client sent
        found.pop("http", None)
    for name, value in environ.items():
        if name.endswith("_proxy") and name == name.lower():
            if value:
                found[name[:-6]] = _Set(name, value)
            else:
                found.pop(name[:-6], None)
    return found


def _left_out(host: str, netloc: str, exceptions: str) -> bool:
    """As ``requests`` decides but for networks: a name also with its port, an IP only without."""
    listed = {"no": exceptions.replace(" ", "")}
    names = [host] if _ip(host) is not None else [host, netloc]
    return any(urllib.request.proxy_bypass_environment(name, listed) for name in names)  # type: ignore[attr-defined]


def _network(host: str, exceptions: str) -> str | None:
    """The IPv4 network in ``NO_PROXY`` that the host is in."""
    ip = _ip(host)
    for text in exceptions.replace(" ", "").split(","):
        try:
            if ip is not None and ip.version == 4 and "/" in text and ip in ipaddress.ip_network(text, strict=False):
                return str(ipaddress.ip_network(text, strict=False))
        except ValueError:
            continue
    return None


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _fault(value: str) -> str | None:
    """What is wrong with the address of a proxy; the value itself may hold a password."""
    if re.search(r"\s", value.strip()):
        return "there is a blank in it"
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)", value):
        return "one slash is missing"
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "there is no host and port in it"
    if not host:
        return "there is no host in it"
    return None if parts.scheme.lower() in _SCHEMES else "its scheme is none of a proxy"
