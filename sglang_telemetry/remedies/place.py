"""Where a checkpoint folder really is, and why it cannot be exchanged by rename there: said before the first sync."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from sglang_telemetry.checkpoint.filesystem import mount_points
from sglang_telemetry.remedies.claims import Beside, Claim, Role
from sglang_telemetry.remedies.rename import Swap, cannot_exchange
from sglang_telemetry.remedies.trees import remove

_MARKER = "marker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder that a path leads to.

    Args:
        folder: Absolute, without symbolic links; it need not be there yet.
        parent: The folder that it is in.
    """

    folder: str
    parent: str


def look(given: str) -> Place:
    """Find the folder, and what is wrong with it as far as looking tells.

    Args:
        given: A path; symbolic links are followed, also one that leads to nothing yet.

    Raises:
        ValueError: What is wrong, and what to do.
    """
    what = f"publish_atomically: {given!r}"
    if not given:
        raise ValueError("publish_atomically: the checkpoint folder has no name; give the engine a path")
    folder = os.path.realpath(given)
    parent = os.path.dirname(folder)
    try:
        above, here = os.stat(parent), _lstat(folder)
    except OSError as error:
        if os.path.lexists(parent) and not isinstance(error, NotADirectoryError):
            raise ValueError(f"{what} cannot be looked at ({error.strerror}); name a folder elsewhere") from error
        raise ValueError(
            f"{what}: {parent!r} is not there; make it, since the new checkpoint is written beside the old"
        ) from error
    if not stat.S_ISDIR(above.st_mode):
        raise ValueError(f"{what}: {parent!r} is a file; name a folder elsewhere")
    if here is not None:
        _check(what, folder, here, parent, above)
    return Place(folder=folder, parent=parent)


def try_out(place: Place, swap: Swap) -> None:
    """Exchange two small temporary folders there, or rename one where there is no exchange.

    Args:
        place: Where.
        swap: What exchanges two paths.

    Raises:
        ValueError: What is wrong, and what to do.
    """
    beside = Beside(place.folder)
    claims: list[Claim] = []
    away = beside.free(Role.TRIAL)
    try:
        beside.all()
        claims += [beside.make(Role.TRIAL)]
        claims += [beside.make(Role.TRIAL)]
        _renames(claims[0].path, claims[1].path, away, swap)
    except OSError as error:
        raise ValueError(
            f"publish_atomically: {place.folder!r}: folders cannot be made and renamed in {place.parent!r} "
            f"({error.strerror}); give this user the right to, or name a folder elsewhere"
        ) from error
    finally:
        for path in (away, *(claim.path for claim in claims)):
            remove(path)
        for claim in claims:
            claim.release()


def mounts_below(folder: str) -> list[str]:
    """Mount points inside of a folder; none where the system does not tell.

    Args:
        folder: Absolute, without symbolic links.
    """
    # One that is covered by another mount is listed too.
    return sorted(path for path in mount_points() if path.startswith(f"{folder}/") and is_mount_point(path))


def is_mount_point(path: str) -> bool:
    """Is a folder mounted there, also a folder of the same file system, which ``os.path.ismount`` does not see?"""
    here, above = _mount_id(path), _mount_id(os.path.dirname(path))
    return os.path.ismount(path) if here is None or above is None else here != above


def _check(what: str, folder: str, here: os.stat_result, parent: str, above: os.stat_result) -> None:
    if stat.S_ISLNK(here.st_mode):
        raise ValueError(f"{what}: its symbolic links lead in a circle; let them lead to a folder")
    if not stat.S_ISDIR(here.st_mode):
        raise ValueError(f"{what} is a file; name a folder")
    inside = f"let the engine save into a folder below it, such as {os.path.join(folder, 'policy')!r}"
    if folder == parent or is_mount_point(folder):
        raise ValueError(f"{what} is a mount point, which cannot be renamed; {inside}")
    if here.st_dev != above.st_dev:
        raise ValueError(f"{what} is on another file system, or subvolume, than the folder it is in; {inside}")
    if mounts := mounts_below(folder):
        raise ValueError(f"{what}: {mounts[0]!r} inside of it is a mount point; mount that elsewhere, or {inside}")
    if _is_worked_in(folder):
        raise ValueError(f"{what} is the working directory, or one above; start the trainer elsewhere, or {inside}")
    # In a folder such as /tmp only the owner of a name may rename it.
    if above.st_mode & stat.S_ISVTX and os.geteuid() not in (0, here.st_uid, above.st_uid):
        raise ValueError(
            f"{what} belongs to another user, and {parent!r} has the sticky bit; name a folder that is this user's own"
        )


def _renames(first: str, second: str, away: str, swap: Swap) -> None:
    marker = os.path.join(first, _MARKER)
    with open(marker, "wb") as file:
        file.write(b"1")
    try:
        swap(first, second)
    except OSError as error:
        if not cannot_exchange(error):
            raise
    else:
        os.stat(os.path.join(second, _MARKER))
        return
    os.rename(first, away)
    os.rename(away, first)
    os.stat(marker)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _is_worked_in(folder: str) -> bool:
    try:
        return os.path.commonpath((folder, os.path.realpath(os.getcwd()))) == folder
    except (OSError, ValueError):  # it was removed
        return False


def _mount_id(path: str) -> int | None:
    """The kernel's number of the mount that a path is on."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), None)
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(fd)
