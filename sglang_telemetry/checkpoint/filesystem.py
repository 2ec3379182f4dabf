"""The file system that a folder is on: room, read-only or not, and its type. None is what the system does not say."""

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """What is known of the file system.

    Args:
        free_bytes: For this user.
        free_inodes: How many more files there can be; None where there is no fixed number, as on btrfs.
        read_only: It is mounted so here.
        fs_type: As the kernel calls it: ``ext4``, ``tmpfs``, ``nfs4``.
    """

    free_bytes: int | None = None
    free_inodes: int | None = None
    read_only: bool | None = None
    fs_type: str | None = None


def facts_of(path: str | os.PathLike[str]) -> FolderFacts:
    """What is known of the file system of a path; of its nearest folder when it is not there yet.

    Args:
        path: Any path.
    """
    try:
        where = os.path.realpath(path)
        while not os.path.lexists(where) and where != os.path.dirname(where):
            where = os.path.dirname(where)
        there, device = os.statvfs(where), os.stat(where).st_dev
    except (OSError, ValueError):
        return FolderFacts()
    return FolderFacts(
        free_bytes=there.f_bavail * there.f_frsize,
        free_inodes=there.f_favail if there.f_files else None,
        read_only=bool(there.f_flag & os.ST_RDONLY),
        fs_type=_here(where, device),
    )


def fs_type_of(path: str, mounts: str) -> str | None:
    """Type of the file system of a path.

    Args:
        path: Absolute, without symbolic links.
        mounts: Text of ``/proc/self/mountinfo``: https://docs.kernel.org/filesystems/proc.html
    """
    children: dict[tuple[str, str], tuple[str, str]] = {}
    points: dict[str, tuple[str, str]] = {}
    ids: set[str] = set()
    roots: list[tuple[str, str, str]] = []
    for text in mounts.splitlines():
        before, dash, after = text.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        number, parent, point = fields[0], fields[1], _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4])
        mount = (number, after.split(" ")[0])
        children[parent, point] = points[point] = mount
        ids.add(number)
        if point == "/":
            roots.append((number, parent, mount[1]))
    prefixes = _prefixes(path)
    root = next(((number, kind) for number, parent, kind in roots if parent not in ids or parent == number), None)
    if root is None:  # in a chroot the mount of the root is not listed
        return next((points[prefix][1] for prefix in reversed(prefixes) if prefix in points), None)
    # As the kernel walks: a mount that another one has covered, or whose parent has been, is not met.
    for prefix in prefixes:
        while (below := children.pop((root[0], prefix), None)) is not None:
            root = below
    return root[1]


def mount_points() -> frozenset[str]:
    """Paths that something is mounted on, as this process sees them; none where the system does not say."""
    try:
        text = os.fsdecode(_MOUNTS.read_bytes())
    except OSError:
        return frozenset()
    fields = (line.split(" ") for line in text.splitlines())
    return frozenset(_OCTAL.sub(lambda found: chr(int(found[1], 8)), one[4]) for one in fields if len(one) > 4)


@functools.lru_cache(maxsize=64)
def _here(path: str, device: int) -> str | None:
    """Asked once for a path on a device: a host can have thousands of mounts, and a sync is looked at each time."""
    try:
        return fs_type_of(path, os.fsdecode(_MOUNTS.read_bytes()))
    except (OSError, ValueError):
        return None


def _prefixes(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    return ["/", *("/" + "/".join(parts[: count + 1]) for count in range(len(parts)))]
