"""Why a checkpoint was not read: it is broken, or it cannot be checked from here.

The one decision: what may be our own trouble is never a fault of the checkpoint. A fault of a sync that succeeded pages
somebody; a file server that hiccups, a limit of this package and a mistake in it must not.
"""

import errno
from collections.abc import Collection

from sglang_telemetry.text import clean

_NAMED = 3


class CheckpointError(Exception):
    """A checkpoint was not read; the text is one line that names the file."""


class Faulty(CheckpointError):
    """Something is wrong with it; a server that loads it refuses, dies, or mixes old and new weights."""


class Unchecked(CheckpointError):
    """Nothing is known to be wrong: a kind that needs torch, a limit or a mistake of ours, a read that failed here."""


_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR})


def of_os_error(error: OSError, name: str = "") -> CheckpointError:
    """What a file or folder means that cannot be looked at.

    Args:
        error: What came of it. Only that it is not there is a fault; the server may well read what fails here, as
            with ``EACCES``, ``EIO`` or ``ESTALE``.
        name: Of the file; empty for the folder itself.
    """
    said = error.strerror or str(error)
    kind = Faulty if error.errno in _NOT_THERE else Unchecked
    return kind(f"{name}: {said}" if name else said)


def line(text: str, *, limit: int = 500) -> str:
    """The text as one clean line.

    Args:
        text: May hold names out of a file, which can be anything.
        limit: Longest result in bytes of UTF-8.
    """
    return clean(" ".join(text[: 2 * limit].split()), limit=limit)


def listed(names: Collection[str]) -> str:
    """The first few names in order, and how many more there are."""
    first = sorted(names)[:_NAMED]
    more = len(names) - len(first)
    return ", ".join(name[:120] for name in first) + (f" and {more} more" if more else "")
