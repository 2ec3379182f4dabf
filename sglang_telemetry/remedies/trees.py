"""Whole folders: written to disk, and removed. Neither follows a link out of it."""

import contextlib
import errno
import os
import re
import stat

# nfs(5): a file that is removed while somebody on this host has it open gets such a name until it is closed.
_SILLY = re.compile(r"\.nfs[0-9a-f]{8,}")
_NOT_FOR_FOLDERS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF})
# A link that leads to nothing, or to what is not this user's: the engine did not write it.
_NOT_FOR_LINKS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY}
)
_LOOK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_silly(name: str) -> bool:
    """Is it a file that an NFS client has removed already, and keeps for who has it open?"""
    return _SILLY.fullmatch(name) is not None


def reraise(error: OSError) -> None:
    """For ``os.walk``, which leaves out what it cannot read unless it is told otherwise."""
    raise error


def remove(path: str) -> OSError | None:
    """Remove a folder with all that is in it, but nothing on another file system.

    It goes on after what cannot be removed. What an NFS client still keeps for a reader goes with that reader.

    Args:
        path: The folder; it may be gone.

    Returns:
        The first thing that went wrong, or None.
    """
    errors: list[OSError] = []
    parent, name = os.path.split(path)
    try:
        above = os.open(parent or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    try:
        _remove(above, name, None, errors)
    except FileNotFoundError:
        return None
    except (OSError, RecursionError) as error:
        errors.append(
            error if isinstance(error, OSError) else OSError(errno.ELOOP, "too many folders in folders", path)
        )
    finally:
        os.close(above)
    return errors[0] if errors else None


def sync_files(folder: str) -> None:
    """Have every file in a folder written to disk, also one that a link leads to.

    Raises:
        OSError: One could not be.
    """
    for root, _, names in os.walk(folder, onerror=reraise):
        for name in names:
            path = os.path.join(root, name)
            if not os.path.islink(path):
                _sync_file(path)
                continue
            try:
                _sync_file(path)
            except OSError as error:
                if error.errno not in _NOT_FOR_LINKS:
                    raise


def sync_folders(folder: str) -> None:
    """Have the names in a folder and its subfolders written to disk, the innermost first.

    Raises:
        OSError: They could not be.
    """
    for root, _, _ in os.walk(folder, topdown=False, onerror=reraise):
        sync_folder(root)


def sync_folder(folder: str) -> None:
    """Have the names in one folder written to disk, where its file system can.

    Raises:
        OSError: They could not be.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise
    finally:
        os.close(fd)


def own_links(folder: str, *, was: str) -> None:
    """Make links that lead into a folder by its whole path relative: the path will be another one.

    Args:
        folder: The folder.
        was: The path by which its writer knew it, without symbolic links.

    Raises:
        OSError: One could not be changed.
    """
    for root, folders, names in os.walk(folder, onerror=reraise):
        for name in (*folders, *names):
            path = os.path.join(root, name)
            if not os.path.islink(path):
                continue
            target = os.readlink(path)
            if not (target == was or target.startswith(f"{was}/")):
                continue
            inside = os.path.relpath(target, os.path.join(was, os.path.relpath(root, folder)))
            os.unlink(path)
            os.symlink(inside, path)


def _remove(above: int, name: str, device: int | None, errors: list[OSError]) -> None:
    fd = _open_folder(above, name)
    silly = False
    try:
        here = os.fstat(fd)
        if device is not None and here.st_dev != device:
            raise OSError(errno.EXDEV, "another file system is mounted there", name)
        if here.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            with contextlib.suppress(OSError):
                os.fchmod(fd, 0o700)
        with os.scandir(fd) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for inner, is_folder in found:
            try:
                if is_folder:
                    _remove(fd, inner, here.st_dev, errors)
                elif is_silly(inner):
                    silly = True
                else:
                    os.unlink(inner, dir_fd=fd)
            except FileNotFoundError:
                continue
            except OSError as error:
                errors.append(error)
        silly = silly or any(is_silly(inner) for inner in os.listdir(fd))
    finally:
        os.close(fd)
    try:
        os.rmdir(name, dir_fd=above)
    except OSError as error:
        if not silly or error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
            raise


def _open_folder(above: int, name: str) -> int:
    try:
        return os.open(name, _LOOK, dir_fd=above)
    except PermissionError:  # made without the right to read it
        os.chmod(name, 0o700, dir_fd=above)
        return os.open(name, _LOOK, dir_fd=above)


def _sync_file(path: str) -> None:
    # O_NONBLOCK: a named pipe must not be waited for.
    flags = os.O_NONBLOCK | os.O_CLOEXEC
    if not stat.S_ISREG(os.stat(path).st_mode):
        return
    try:
        fd = os.open(path, os.O_RDONLY | flags)
    except PermissionError:
        fd = os.open(path, os.O_WRONLY | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
