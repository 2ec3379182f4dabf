"""A checkpoint folder that is written beside its place, synced to the disk, and put there in one step.

What is left of a sync lies under a hidden name beside the folder, so that any later start finds it; a flock on it says
that its process lives.
"""

import errno
import fcntl
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator

from sglang_telemetry.checkpoint.choice import WEIGHTS
from sglang_telemetry.checkpoint.filesystem import facts_of, mount_points
from sglang_telemetry.remedies.forked import forget_in_child
from sglang_telemetry.remedies.rename import Swap, cannot_exchange, exchange, replace

_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_NETWORK = ("nfs", "cifs", "smb", "lustre", "ceph", "gpfs", "beegfs", "9p", "afs", "glusterfs", "fuse.")


class Publisher:
    """Publishes checkpoints of one folder.

    Args:
        folder: Where the server looks; of a symbolic link, what it leads to is exchanged, and the link stays.
        swap: Exchanges two paths.
        fs_type: Tells the type of a path's file system.

    Raises:
        ValueError: That folder cannot be exchanged; it says why, and what to do.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        swap: Swap = exchange,
        fs_type: Callable[[str], str | None] = lambda path: facts_of(path).fs_type,
    ) -> None:
        self._swap, self._given = swap, os.fspath(folder)
        self.live = os.path.realpath(self._given)
        parent, name = os.path.split(self.live)
        self._parent = parent
        self._staging = os.path.join(parent, f".{name}.sglang-telemetry")
        self._aside = f"{self._staging}.aside"
        _check(self._given, self.live, parent, swap)
        self._network = (fs_type(parent) or "").startswith(_NETWORK)
        self._fd: int | None = None
        self._removal: threading.Thread | None = None
        forget_in_child(self)

    def recover(self) -> str | None:
        """Remove what a crash has left, and put back a folder that it has moved aside.

        Returns:
            What was done, in words; None when there was nothing. What a living process uses is left alone.
        """
        done = []
        if os.path.lexists(self._aside) and not os.path.lexists(self.live):
            os.rename(self._aside, self.live)
            done.append(f"put back {self.live}")
        for path in (self._staging, self._aside):
            if os.path.lexists(path) and self._is_free(path):
                _remove(path)
                done.append(f"removed {path}")
        return ", ".join(done) or None

    def begin(self) -> str:
        """An empty folder to write into, beside the real one.

        Raises:
            OSError: It cannot be made; with EBUSY another process is writing this checkpoint.
        """
        self.close(None)
        for path in (self._staging, self._aside):
            if os.path.lexists(path):
                if self._is_free(path, unknown=True) is False:
                    raise OSError(errno.EBUSY, "another process writes this checkpoint", path)
                self._recover_aside()
                _remove(path, strict=True)
        os.mkdir(self._staging, 0o700)
        self._fd = _locked(self._staging)
        try:
            there = os.stat(self.live)
        except OSError:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(self._staging, 0o777 & ~umask)
        else:
            if (there.st_uid, there.st_gid) != (os.geteuid(), os.getegid()):
                _permitted(os.chown, self._staging, there.st_uid, there.st_gid)
            os.chmod(self._staging, stat.S_IMODE(there.st_mode))
        return self._staging

    def publish(self) -> str:
        """Sync what was written, and put it in its place; files that were not written again, but weights, are kept.

        Returns:
            How it was done, in words.

        Raises:
            OSError: It was not done, and what was there is what it was.
        """
        kept = _carry_over(self.live, self._staging)
        for path in _walk(self._staging):
            _sync(path)
        if os.path.lexists(self.live):
            way: str = replace(self._staging, self.live, self._aside, swap=self._swap)
            old = self._staging if os.path.lexists(self._staging) else self._aside
            self._relock(old)
        else:
            os.rename(self._staging, self.live)
            way, old = "the first one", None
            self._unlock()
        _permitted(_sync, self._parent)
        if old is not None and self._network:
            # Another host may know the old folder by its handle for a minute, and would load old weights from it: the
            # handle of one that is gone is stale, and the path is looked up again.
            _remove(old)
            way += ", the old one removed"
        return f"{way}{f', {kept} files kept' if kept else ''}"

    def confirmed(self) -> None:
        """The server has taken it: the old one goes, in a thread."""
        self._remove_later()

    def abandon(self) -> None:
        """It will not be published: it goes, in a thread."""
        self._remove_later()

    def close(self, seconds: float | None = 5.0) -> None:
        """Wait until what is being removed is gone.

        Args:
            seconds: Longest wait; None for any.
        """
        removal = self._removal
        if removal is not None:
            removal.join(seconds)
        self._unlock()

    def forget(self) -> None:
        """In a forked child: all of this is the parent's."""
        fd, self._fd, self._removal = self._fd, None, None
        if fd is not None:
            os.close(fd)

    def _remove_later(self) -> None:
        if self._removal is not None and self._removal.is_alive():
            return
        if not os.path.lexists(self._staging) and not os.path.lexists(self._aside):
            self._unlock()
            return
        try:
            self._removal = threading.Thread(target=self._work, name="sglang-telemetry-removal", daemon=True)
            self._removal.start()
        except RuntimeError:  # no thread is to be had: the next sync removes it
            self._removal = None

    def _work(self) -> None:
        for path in (self._staging, self._aside):
            _remove(path)
        self._unlock()

    def _recover_aside(self) -> None:
        if os.path.lexists(self._aside) and not os.path.lexists(self.live):
            os.rename(self._aside, self.live)

    def _is_free(self, path: str, *, unknown: bool = False) -> bool:
        """Does no living process use it; where there are no locks, ``unknown``."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return True  # it has gone, or is no folder of anybody's
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            return unknown if error.errno in _NO_LOCKS else False
        finally:
            os.close(fd)
        return True

    def _relock(self, path: str) -> None:
        """The old folder is this process's now, until it is removed."""
        self._unlock()
        self._fd = _locked(path)

    def _unlock(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            # A child that was forked has the descriptor too, until it has come to close it.
            _permitted(fcntl.flock, fd, fcntl.LOCK_UN)
            os.close(fd)


def _check(given: str, live: str, parent: str, swap: Swap) -> None:
    """Can that folder be exchanged?"""
    what = f"publish_atomically: {given!r}"
    if not os.path.isdir(parent):
        raise ValueError(
            f"{what}: {parent!r} is not there; make it, since the new checkpoint is written beside the old"
        )
    if os.path.lexists(live) and not os.path.isdir(live):
        raise ValueError(f"{what} is a file; name a folder")
    if live in mount_points() or (os.path.isdir(live) and os.stat(live).st_dev != os.stat(parent).st_dev):
        raise ValueError(
            f"{what} is a mount point, which cannot be renamed; let the engine save into a folder below it, "
            f"such as {os.path.join(given, 'policy')!r}"
        )
    pair = [os.path.join(parent, f".{os.getpid()}-{name}.sglang-telemetry-trial") for name in "ab"]
    try:
        for path in pair:
            os.mkdir(path)
        try:
            swap(*pair)
        except OSError as error:
            if not cannot_exchange(error):
                raise
            os.rename(pair[0], f"{pair[0]}c")
            os.rename(f"{pair[0]}c", pair[0])
    except OSError as error:
        raise ValueError(
            f"{what}: folders cannot be made and renamed in {parent!r} ({error.strerror}); "
            "give this user the right to, or name a folder elsewhere"
        ) from error
    finally:
        for path in (*pair, f"{pair[0]}c"):
            _remove(path)


def has_weights(folder: str) -> bool:
    """Is there a file of weights in a folder?"""
    return any(path.endswith(WEIGHTS) for path in _walk(folder))


def _carry_over(live: str, staging: str) -> int:
    """Keep what lies in the old folder and was not written again, but weights: old ones would be mixed with new."""
    kept = 0
    for path in _walk(live):
        relative = os.path.relpath(path, live)
        there = os.path.join(staging, relative)
        # What somebody else removes meanwhile is not missed.
        if os.path.isdir(path) and not os.path.islink(path):
            os.makedirs(there, exist_ok=True)
        elif not path.endswith((*WEIGHTS, ".index.json")) and not os.path.lexists(there):
            os.makedirs(os.path.dirname(there), exist_ok=True)
            try:
                os.link(path, there, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError:
                shutil.copy2(path, there, follow_symlinks=False)
            kept += 1
    return kept


def _walk(folder: str) -> Iterator[str]:
    """All files below a folder, then the folders, innermost first; nothing where there is none."""
    for where, _, files in os.walk(folder, topdown=False):
        yield from (os.path.join(where, name) for name in files)
        yield where


def _sync(path: str) -> None:
    """Have a file or a folder on the disk; what is neither, such as a link, is named by its folder."""
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EBADF}:  # what some file systems say of a folder
            raise
    finally:
        os.close(fd)


def _locked(folder: str) -> int | None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # there are no locks here, or somebody looks right now whether it is free
        os.close(fd)
        return None
    return fd


def _remove(path: str, *, strict: bool = False) -> None:
    """A folder with all that is in it; only with ``strict`` it is an error when that cannot be done."""
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
        _permitted(os.unlink, path)
    elif os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=not strict)


def _permitted(function: Callable[..., object], *args: object) -> None:
    """Do it where it is permitted."""
    try:
        function(*args)
    except OSError:
        return
