"""Small file systems with a fault: full, or read-only. Root ignores permission bits, but not these."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def tmpfs(where: Path, *, size: str = "256k", read_only: bool = False) -> Iterator[Path]:
    """Mount a tmpfs; skips the test where mounting is not allowed.

    Args:
        where: Mount point, made when missing.
        size: As mount(8) takes it.
        read_only: Mounted ``ro``.
    """
    where.mkdir(parents=True, exist_ok=True)
    options = f"size={size}{',ro' if read_only else ''}"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not allowed here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=False)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder that is there read-only; skips the test where mounting is not allowed."""
    for options in (("--bind", str(folder), str(folder)), ("-o", "remount,ro,bind", str(folder))):
        done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path, *, leave: int = 0) -> Path:
    """Fill a file system to the last byte but ``leave``; returns the file that does it."""
    path = folder / "ballast"
    with path.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
    if leave:
        os.truncate(path, max(0, path.stat().st_size - leave))
    return path
