"""A folder is put in the place of another by rename, so that no reader sees one that is half written.

The exchange of two names is one step of the file system: there is no moment without a folder. Where the kernel or the
file system has none (NFS, SMB and most of FUSE answer EINVAL) two renames do it, with a moment in between in which the
path leads nowhere.
"""

import contextlib
import ctypes
import errno
import functools
import os
import platform
import sys
from collections.abc import Callable
from enum import StrEnum

Swap = Callable[[str, str], None]
"""What exchanges two paths, or raises OSError."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# arch/*/entry/syscalls/syscall*.tbl and include/uapi/asm-generic/unistd.h of Linux: musl has no wrapper before 1.2.6.
_NUMBERS = {
    "x86_64": 316,
    "aarch64": 276,
    "riscv64": 276,
    "loongarch64": 276,
    "ppc64le": 357,
    "ppc64": 357,
    "s390x": 347,
}
# EPERM is what an old container runtime's seccomp filter says to a system call that it does not know.
_NO_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM})


class Way(StrEnum):
    """How a folder was put in the place of another."""

    EXCHANGED = "exchanged"
    RENAMED = "two renames"


def exchange(a: str, b: str) -> None:
    """Exchange two paths of one file system in one step.

    Args:
        a: A path; both have to be there.
        b: The other.

    Raises:
        OSError: It did not happen; ``cannot_exchange`` tells whether it never will here.
    """
    first, second = os.fsencode(a), os.fsencode(b)
    if b"\0" in first + second:
        raise OSError(errno.EINVAL, "a NUL in a path", a, None, b)
    ctypes.set_errno(0)
    if _renameat2()(first, second) != 0:
        number = ctypes.get_errno() or errno.EIO
        raise OSError(number, os.strerror(number), a, None, b)


def cannot_exchange(error: OSError) -> bool:
    """Does this error mean that the kernel or the file system knows no exchange?"""
    return error.errno in _NO_EXCHANGE


def replace(staging: str, folder: str, aside: str, *, swap: Swap = exchange) -> Way:
    """Put a folder in the place of another.

    Args:
        staging: The new one.
        folder: The one that is there.
        aside: A free name beside both, for when there is no exchange.
        swap: What exchanges two paths.

    Returns:
        The way it went: after an exchange the old folder is at ``staging``, after two renames at ``aside``.

    Raises:
        OSError: It did not happen, and ``folder`` is what it was. Where even the way back failed, which the note on the
            error says, it is at ``aside``.
    """
    try:
        swap(staging, folder)
        return Way.EXCHANGED
    except OSError as error:
        if not cannot_exchange(error):
            raise
    os.rename(folder, aside)
    try:
        os.rename(staging, folder)
    except BaseException as error:
        try:
            os.rename(aside, folder)
        except OSError as second:
            error.add_note(f"and the folder could not be put back from {aside!r}: {second}")
        raise
    return Way.RENAMED


@functools.cache
def _renameat2() -> Callable[[bytes, bytes], int]:
    """Calls the wrapper of the C library, or the system call by its number; answers ENOSYS where there is neither."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        with contextlib.suppress(AttributeError):
            return _wrapper(libc)
        return _by_number(libc)
    return _missing


def _wrapper(libc: ctypes.CDLL) -> Callable[[bytes, bytes], int]:
    call = libc.renameat2
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    call.restype = ctypes.c_int
    return lambda a, b: int(call(_AT_FDCWD, a, _AT_FDCWD, b, _RENAME_EXCHANGE))


def _by_number(libc: ctypes.CDLL) -> Callable[[bytes, bytes], int]:
    # A process of 32 bits on a kernel of 64 has other numbers than its machine's name says.
    number = _NUMBERS.get(platform.machine()) if sys.maxsize > 2**32 and sys.platform == "linux" else None
    if number is None:
        return _missing
    call = libc.syscall
    call.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_long, ctypes.c_char_p, ctypes.c_long)
    call.restype = ctypes.c_long
    return lambda a, b: int(call(number, _AT_FDCWD, a, _AT_FDCWD, b, _RENAME_EXCHANGE))


def _missing(a: bytes, b: bytes) -> int:
    ctypes.set_errno(errno.ENOSYS)
    return -1
