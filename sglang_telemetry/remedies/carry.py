"""What the new folder keeps of the old one: files that the engine did not write this time, and who may read it.

Weights are not kept where new ones were written: shards of two policies in one folder are loaded as one. A folder into
which the engine wrote no weights, such as the checkpoints that a trainer keeps in subfolders, stays as it is.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Set

from sglang_telemetry.checkpoint.choice import BIN_INDEX, NO_WEIGHTS, SAFETENSORS_INDEX, WEIGHTS
from sglang_telemetry.remedies.trees import is_silly, reraise

Stamp = tuple[int, int, int]
"""Of a file: its number, its size in bytes, and when it was changed last, in nanoseconds."""

_INDEXES = (SAFETENSORS_INDEX, BIN_INDEX, *(f"{kind}.index.json" for kind in WEIGHTS))
# Another check of ours may be writing there right now (preflight); these names are gone in a moment.
_MOMENTARY = ".sglang-telemetry-check-"


def is_weights(name: str) -> bool:
    """Is a file weights, or an index of them, by its name?"""
    return name.endswith((*WEIGHTS, *_INDEXES)) and not name.endswith(NO_WEIGHTS)


def folders_with_weights(folder: str) -> frozenset[str]:
    """Which folders in a folder hold weights, by their paths in it; ``.`` is the folder itself.

    Raises:
        OSError: It cannot be read.
    """
    return frozenset(
        os.path.relpath(root, folder)
        for root, _, names in os.walk(folder, onerror=reraise)
        if any(name.endswith(WEIGHTS) and not name.endswith(NO_WEIGHTS) for name in names)
    )


def weights_in(folder: str) -> dict[str, Stamp]:
    """The files of weights in a folder, by their paths in it; none where there is no folder."""
    return {path: stamp for path, stamp in stamps_in(folder).items() if is_weights(os.path.basename(path))}


def stamps_in(folder: str) -> dict[str, Stamp]:
    """The files in a folder, by their paths in it; none where there is no folder."""
    found: dict[str, Stamp] = {}
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                there = os.stat(os.path.join(root, name))
                inside = os.path.normpath(os.path.join(os.path.relpath(root, folder), name))
                found[inside] = (there.st_ino, there.st_size, there.st_mtime_ns)
    return found


def move_into(source: str, target: str) -> None:
    """Move every file of one folder into another, over what is there.

    Raises:
        OSError: One could not be moved.
    """
    for root, folders, names in os.walk(source, onerror=reraise):
        there = os.path.normpath(os.path.join(target, os.path.relpath(root, source)))
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        os.makedirs(there, exist_ok=True)
        for name in names + links:
            os.replace(os.path.join(root, name), os.path.join(there, name))


def carry_over(old: str, new: str, written: Set[str]) -> int:
    """Put into the new folder what only the old one has.

    A file becomes a hard link, which takes no room, and a copy where there can be no link.

    Args:
        old: A folder; what disappears from it meanwhile is not missed.
        new: The folder that takes its place.
        written: Folders with new weights, as ``folders_with_weights`` calls them: they keep no old ones.

    Returns:
        How many files.

    Raises:
        OSError: One could not be kept; the old folder is what it was.
    """
    return _carry(old, new, ".", written)


def copy_attributes(source: str, target: str) -> None:
    """Give a folder the owner, the group, the mode and the access lists of another, as far as this user may.

    Raises:
        OSError: ``source`` cannot be read.
    """
    there = os.stat(source)
    for owner, group in ((-1, there.st_gid), (there.st_uid, -1)):
        with contextlib.suppress(OSError):
            os.chown(target, owner, group)
    with contextlib.suppress(OSError):
        os.chmod(target, stat.S_IMODE(there.st_mode))
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            with contextlib.suppress(OSError):
                os.setxattr(target, name, os.getxattr(source, name))


def _carry(old: str, new: str, inside: str, written: Set[str]) -> int:
    kept = 0
    try:
        with os.scandir(old) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return 0
    for name, is_folder in found:
        before, after = os.path.join(old, name), os.path.join(new, name)
        if is_folder:
            kept += _carry_folder(before, after, os.path.normpath(os.path.join(inside, name)), written)
        elif not (_is_left(name, weights=inside in written) or os.path.lexists(after)):
            kept += _keep(before, after)
    return kept


def _carry_folder(before: str, after: str, inside: str, written: Set[str]) -> int:
    if os.path.basename(before).startswith(_MOMENTARY):
        return 0
    try:
        os.mkdir(after)
    except FileExistsError:
        # The engine wrote a file, or a link, where a folder was: its own is the new one.
        return _carry(before, after, inside, written) if stat.S_ISDIR(os.lstat(after).st_mode) else 0
    kept = _carry(before, after, inside, written)
    with contextlib.suppress(FileNotFoundError):
        copy_attributes(before, after)  # now, because the folder may be one that nobody writes into
    return kept


def _is_left(name: str, *, weights: bool) -> bool:
    return (weights and is_weights(name)) or is_silly(name) or name.startswith(_MOMENTARY)


def _keep(before: str, after: str) -> int:
    try:
        os.link(before, after, follow_symlinks=False)
        return 1
    except FileExistsError:
        return 0
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
    # No hard links here, too many of them, or to another user's file (fs.protected_hardlinks).
    try:
        kind = os.lstat(before).st_mode
        if stat.S_ISLNK(kind):
            os.symlink(os.readlink(before), after)
        elif stat.S_ISREG(kind):
            _copy(before, after)
        else:
            return 0
    except FileNotFoundError:
        if os.path.lexists(before):
            raise
        return 0
    return 1


def _copy(before: str, after: str) -> None:
    with open(before, "rb") as source, open(after, "xb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
        target.flush()
        os.fsync(target.fileno())
        there = os.fstat(source.fileno())
    for owner, group in ((-1, there.st_gid), (there.st_uid, -1)):
        with contextlib.suppress(OSError):
            os.chown(after, owner, group)
    shutil.copystat(before, after)
