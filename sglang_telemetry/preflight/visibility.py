"""Does the server see the folder that the trainer writes to? Proved by a dry run, or by a file of its own host."""

import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from sglang_telemetry.preflight.findings import A_DRY_RUN, Check, Finding, ok, warn
from sglang_telemetry.preflight.probe_files import FRESH_SECONDS, Probe


def visibility(probes: Sequence[Probe], *, same_host: bool) -> Finding:
    """What is known of that without a dry run.

    Args:
        probes: Of other hosts.
        same_host: The server runs on this host.
    """
    fresh = [one for one in probes if one.age <= FRESH_SECONDS]
    if fresh:
        more = f" and {len(fresh) - 1} more" if len(fresh) > 1 else ""
        said = f"shared with {fresh[0].host}{more}, whose exporter wrote there {fresh[0].age:.0f} s ago"
        return ok(Check.VISIBILITY, said)
    if same_host:
        return ok(Check.VISIBILITY, f"the server is on this host; {A_DRY_RUN} proves that it sees the folder")
    old = f"; {probes[0].host} wrote there {probes[0].age:.0f} s ago, and no more" if probes else ""
    return warn(
        Check.VISIBILITY,
        f"not proved: the server is on another host{old}",
        f"make {A_DRY_RUN}, or run `sglang-telemetry exporter --watch-path` beside the server",
    )


def is_here(url: str) -> bool:
    """Is this the address of this host? It asks the name service, which may hang."""
    host = urlsplit(url).hostname
    if host is None:
        return False
    try:
        addresses = {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    return bool(addresses) and all(map(_is_own, addresses))


def _is_own(address: str) -> bool:
    """Only an address of this host can be bound."""
    try:
        if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return True
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((address, 0))
    except (OSError, ValueError):
        return False
    return True
