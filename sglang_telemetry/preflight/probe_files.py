"""The small files of ``sglang-telemetry exporter --watch-path``, by which hosts see that they share a folder."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from sglang_telemetry.names import PROBE_FOLDER, PROBE_SUFFIX, probe_host

FRESH_SECONDS = 60.0
"""One is written every 10 s, and NFS may show it that much later."""
_MAX_FILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What another host has written, and seconds ago."""

    host: str
    age: float


def probes_near(path: str, stamp_ns: int, *, host: Callable[[], str] = socket.gethostname) -> tuple[Probe, ...]:
    """Those of other hosts in a folder or the one above it, the newest first.

    Args:
        path: The shared folder.
        stamp_ns: The stamp of a file just written there: the file server's clock counts, not ours.
        host: This host.
    """
    own = probe_host(host())
    found: dict[str, float] = {}
    for folder in (path, os.path.dirname(path)):
        try:
            with os.scandir(os.path.join(folder, PROBE_FOLDER)) as entries:
                files = [entry for entry in entries if entry.name.endswith(PROBE_SUFFIX)][:_MAX_FILES]
            for entry in files:
                name = entry.name.removesuffix(PROBE_SUFFIX)
                age = max(0.0, (stamp_ns - entry.stat(follow_symlinks=False).st_mtime_ns) / 1e9)
                found[name] = min(age, found.get(name, age))
        except OSError:
            continue
    found.pop(own, None)
    return tuple(sorted((Probe(host=name, age=age) for name, age in found.items()), key=lambda one: one.age))
