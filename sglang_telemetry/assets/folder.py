"""Puts an export into a folder: all of it or nothing, and never half a file that a reload could read.

Everything is written beside its place first and renamed when all of it is on the disk.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sglang_telemetry.assets.error import AssetError


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of an export.

    Args:
        written: Paths of new or changed files.
        unchanged: Paths of files that were there already, the same.
        strangers: Rules and dashboards beside ours that are not part of this export.
    """

    written: tuple[str, ...]
    unchanged: tuple[str, ...]
    strangers: tuple[str, ...]


def write(folder: Path, files: Mapping[str, str], *, force: bool) -> Written:
    """Write the files.

    Args:
        folder: Made when missing.
        files: Text by relative path.
        force: May a file that is there and differs be replaced?

    Raises:
        AssetError: A file is there and differs.
        OSError: The folder cannot be used.
    """
    unchanged = tuple(path for path, text in files.items() if _same(folder / path, text))
    changed = tuple(path for path in files if path not in unchanged)
    in_the_way = [path for path in changed if os.path.lexists(folder / path)]
    if in_the_way and not force:
        more = f" and {len(in_the_way) - 3} more" if len(in_the_way) > 3 else ""
        raise AssetError(
            f"{', '.join(in_the_way[:3])}{more} in {folder} differ from this export: give --force to replace them, "
            "or another folder; nothing was written"
        )
    _replace(folder, {path: files[path] for path in changed})
    return Written(written=changed, unchanged=unchanged, strangers=_strangers(folder, files))


def _same(path: Path, text: str) -> bool:
    try:
        return path.is_file() and path.read_bytes() == text.encode()
    except NotADirectoryError:
        return False


def _replace(folder: Path, files: Mapping[str, str]) -> None:
    beside = {path: (folder / path).with_name(f".{PurePosixPath(path).name}.{os.getpid()}.new") for path in files}
    try:
        for path, text in files.items():
            beside[path].parent.mkdir(parents=True, exist_ok=True)
            with beside[path].open("wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            if (folder / path).is_dir():
                raise IsADirectoryError(21, "Is a directory", str(folder / path))
        for path in files:
            os.replace(beside[path], folder / path)
    finally:
        for temporary in beside.values():
            with contextlib.suppress(OSError):
                temporary.unlink()


def _strangers(folder: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """Prometheus, Grafana and kubectl load whatever matches.

    A rule file of an earlier version would be a second alert for each failure, and kubectl stops at a bare dashboard of
    another format.
    """
    patterns = {(str(PurePosixPath(path).parent), PurePosixPath(path).suffix) for path in files if _is_loaded(path)}
    if any(parent == "dashboards" for parent, _ in patterns):
        patterns |= {("dashboards", ".json"), ("dashboards", ".yml")}
    found = {
        str(one.relative_to(folder)) for parent, suffix in patterns for one in (folder / parent).glob(f"*{suffix}")
    }
    return tuple(sorted(path for path in found - files.keys() if _is_loaded(path)))


def _is_loaded(path: str) -> bool:
    return path.startswith(("rules/", "prometheusrule-")) or str(PurePosixPath(path).parent) == "dashboards"
