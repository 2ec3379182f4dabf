"""The temporary folders beside a checkpoint folder: what they are called, and which of them somebody uses right now.

Who uses one holds a flock on the folder itself: no file is left beside it, and the kernel drops the lock at any death.
On a network file system such a lock is known to its own host alone, so the name says on which boot of which host it was
made, and one of another host is taken for dead only when nothing in it has changed for half an hour.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
from enum import StrEnum

from sglang_telemetry.platform import boot_id
from sglang_telemetry.remedies.forked import forget_in_child

QUIET_SECONDS = 1800.0
"""Longer than any fsync of a checkpoint takes, in which no time of a file changes."""

_MARK = ".sglang-telemetry-"
_TAIL = re.compile(r"(staging|aside|trial)-([0-9a-f]{8})-[0-9a-f]{8}")
_TAIL_BYTES = len("staging-01234567-01234567")
_NAME_MAX = 255


class Role(StrEnum):
    """What a temporary folder is for. Only one that is ASIDE is always complete, and may be put back."""

    STAGING = "staging"
    ASIDE = "aside"
    TRIAL = "trial"


class Claim:
    """A folder that this process uses, and its lock.

    Args:
        path: Where it is now.
        fd: The open folder; None when somebody else has the lock, which then guards it as well.
        locked: False where the file system has no locks: whether anybody uses the folder is not known.
    """

    def __init__(self, path: str, fd: int | None, *, locked: bool) -> None:
        self.path, self.locked = path, locked
        self._fd = fd
        forget_in_child(self)

    @classmethod
    def take(cls, path: str) -> "Claim | None":
        """Take the lock of a folder that is there.

        Returns:
            None when somebody else has it.

        Raises:
            OSError: It is gone, is no folder, or may not be opened.
        """
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        locked = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:  # ENOLCK, EOPNOTSUPP, ENOSYS: no locks here
            locked = False
        claim = cls(path, fd, locked=locked)
        if not claim.is_there():  # removed or exchanged between the two calls
            claim.release()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return claim

    def is_there(self) -> bool:
        """Is it still this very folder that the path leads to?"""
        if self._fd is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path, follow_symlinks=False))
        except OSError:
            return False

    def release(self) -> None:
        """Let go of it."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        # Closing is not enough when a child has the descriptor too.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    def forget(self) -> None:
        """In a forked child: it is the parent's."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class Beside:
    """The names beside one folder.

    Args:
        folder: Absolute, without symbolic links.
    """

    def __init__(self, folder: str) -> None:
        self.parent, name = os.path.split(folder)
        self._boot = (boot_id() or "").replace("-", "")[:8].ljust(8, "0")
        self._prefix = _prefix(name, _longest(self.parent) - _TAIL_BYTES)

    def free(self, role: Role) -> str:
        """A path that nobody has."""
        return os.path.join(self.parent, f"{self._prefix}{role}-{self._boot}-{secrets.token_hex(4)}")

    def make(self, role: Role) -> Claim:
        """Make a folder, and claim it before anybody takes it for a leftover.

        Raises:
            OSError: It cannot be made.
        """
        for _ in range(8):
            path = self.free(role)
            os.mkdir(path)
            # Somebody who tidies up may come between the two calls, and then takes it away.
            with contextlib.suppress(FileNotFoundError):
                if claim := Claim.take(path):
                    return claim
        raise OSError(errno.EBUSY, "somebody removes temporary folders as soon as they are made", self.parent)

    def all(self) -> list[str]:
        """Those that are there, folders that were put aside first and the newest of them before the others.

        Raises:
            OSError: The parent cannot be listed.
        """
        found: list[tuple[bool, int, str]] = []
        with os.scandir(self.parent) as entries:
            for entry in entries:
                if self.role(entry.name) is None:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        changed = entry.stat(follow_symlinks=False).st_ctime_ns
                        found.append((self.role(entry.name) is not Role.ASIDE, -changed, entry.path))
        return [path for _, _, path in sorted(found)]

    def role(self, path: str) -> Role | None:
        """What a path beside the folder is for; None when it is nothing of ours."""
        match = self._match(path)
        return Role(match[1]) if match else None

    def may_live_elsewhere(self, path: str) -> bool:
        """Was it made on another host, or an earlier boot of this one, and used lately by the file server's clock?"""
        match = self._match(path)
        if match is None or match[2] == self._boot:
            return False
        with contextlib.suppress(OSError):
            claim = self.make(Role.TRIAL)
            try:
                now = os.stat(claim.path).st_mtime
            finally:
                os.rmdir(claim.path)
                claim.release()
            return now - _changed(path) < QUIET_SECONDS
        return True

    def _match(self, path: str) -> re.Match[str] | None:
        name = os.path.basename(path)
        return _TAIL.fullmatch(name.removeprefix(self._prefix)) if name.startswith(self._prefix) else None


def as_staging(path: str) -> str:
    """The same path with the role of one that is never put back; nothing else of it changes."""
    before, mark, tail = path.rpartition(_MARK)
    role = f"{Role.ASIDE}-"
    return f"{before}{mark}{Role.STAGING}-{tail.removeprefix(role)}" if mark and tail.startswith(role) else path


def is_temporary(name: str) -> bool:
    """Is that what such a folder is called, whichever it is beside?"""
    before, mark, tail = name.rpartition(_MARK)
    return bool(mark) and before.startswith(".") and _TAIL.fullmatch(tail) is not None


def _changed(folder: str) -> float:
    """When anything in it changed last, subfolders' own content aside."""
    last = os.stat(folder, follow_symlinks=False).st_mtime
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                last = max(last, entry.stat(follow_symlinks=False).st_mtime)
    return last


def _prefix(name: str, longest: int) -> str:
    raw = os.fsencode(name)
    room = longest - len(f".{_MARK}")
    if len(raw) > room:  # two long names must not become one
        name = os.fsdecode(raw[: max(0, room - 9)]) + "-" + hashlib.sha256(raw).hexdigest()[:8]
    return f".{name}{_MARK}"


def _longest(parent: str) -> int:
    try:
        return os.pathconf(parent, "PC_NAME_MAX")
    except (OSError, ValueError):
        return _NAME_MAX
