"""What Linux says of this host and of a process, for when a record lock cannot be had; None where it says nothing."""

import os
from pathlib import Path


def boot_id() -> str | None:
    """The kernel's id of this boot, the same in every container of the host."""
    return _read(Path("/proc/sys/kernel/random/boot_id"))


def pid_namespace() -> str | None:
    """Which pid namespace this process counts in."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: tells a pid from its later owner."""
    text = _read(Path(f"/proc/{pid}/stat"))
    fields = text.rpartition(")")[2].split() if text else []
    return int(fields[19]) if len(fields) > 19 else None


def started_at(pid: int) -> float | None:
    """When a process started, in Unix seconds."""
    ticks = start_ticks(pid)
    booted = next((line for line in (_read(Path("/proc/stat")) or "").splitlines() if line.startswith("btime ")), None)
    if ticks is None or booted is None:
        return None
    return int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
