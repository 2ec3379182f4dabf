"""What an exporter is told, checked before anything is opened."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sglang_telemetry.names import DEFAULT_LISTEN
from sglang_telemetry.server_truth.keys import Keys

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings:
    """Folder, address and retention of an exporter, and how often it asks the servers.

    Args:
        folder: Where the journals are.
        host: Address to bind.
        port: Port to bind, 0 for a free one.
        retention_seconds: How long a run that ended stays in the metrics and on disk.
        max_bytes: Size of all journals above which the oldest counted ones are removed.
        probe_seconds: From one look at a server to the next; 0 asks no server anything.
        checksums: Ask servers which bytes are loaded, where they tell.
        keys: What servers want to be shown, asked for anew with each look.
        watch_path: Folder that other hosts' exporters see too.
    """

    folder: Path
    host: str = "127.0.0.1"
    port: int = 9464
    retention_seconds: float = 24 * 3600.0
    max_bytes: int = 1 << 30
    probe_seconds: float = 5.0
    checksums: bool = True
    keys: Callable[[], Keys] = Keys
    watch_path: Path | None = None

    @property
    def shown_host(self) -> str:
        """The host as it can be asked for from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT``.

    Raises:
        ValueError: It is none of these.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]*)):(\d{1,5})", text.strip())
    if match is None or int(match[3]) > 65535:
        raise ValueError(f"--listen {text!r}: write HOST:PORT, such as {DEFAULT_LISTEN}")
    return match[1] or match[2] or "0.0.0.0", int(match[3])


def parse_duration(text: str) -> float:
    """Seconds of ``30s``, ``500ms``, ``15m``, ``24h``, ``7d`` or a bare number of seconds.

    Raises:
        ValueError: It is none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration: write 30s, 15m, 24h or 7d")
    return float(match[1]) * _UNITS[match[2] or "s"]


def parse_size(text: str) -> int:
    """Bytes of ``512M``, ``1G``, ``64k`` or a bare number.

    Raises:
        ValueError: It is none of these.
    """
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no size: write 512M or 1G")
    return int(match[1]) * _SIZES[match[2]]


def traces_wanted(environ: Mapping[str, str]) -> bool:
    """Does the environment ask for traces: an OTLP endpoint, or ``OTEL_TRACES_EXPORTER=otlp``?"""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    chosen = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if chosen:
        return "otlp" in re.split(r"\s*,\s*", chosen)
    return bool(environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))
