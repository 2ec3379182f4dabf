"""Where journals live: a private folder, the same for trainer and exporter without being told."""

import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sglang_telemetry.names import Env


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """``SGLANG_TELEMETRY_DIR``, else a folder of this user's below the system's temporary folder."""
    given = environ.get(Env.DIR)
    return Path(given) if given else Path(tempfile.gettempdir()) / f"sglang-telemetry-{os.getuid()}"


def make_private(folder: Path) -> None:
    """Make the folder with mode 0700 if it is not there.

    Raises:
        OSError: It cannot be made, is no folder, or belongs to another user (who could read or forge journals).
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = folder.stat()
    if not stat.S_ISDIR(there.st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    if there.st_uid not in {os.getuid(), 0}:
        raise PermissionError(f"{folder} belongs to user {there.st_uid}: set {Env.DIR} to a folder of your own")


def slug(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:60] or "run"
