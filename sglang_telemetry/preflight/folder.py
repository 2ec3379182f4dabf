"""The shared folder on this side: there or to be made, really writable, with room for what a sync writes."""

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from sglang_telemetry.checkpoint.filesystem import FolderFacts, facts_of
from sglang_telemetry.preflight.findings import THE_MODEL, Check, Finding, fail, ok, warn
from sglang_telemetry.preflight.probe_files import Probe, probes_near
from sglang_telemetry.preflight.speed import measure
from sglang_telemetry.preflight.temporary import temporary
from sglang_telemetry.preflight.units import shown_bytes

MIN_INODES = 1000
_CONTENT = b"sglang-telemetry check\n" * 180
_FIXES = {
    errno.ENOSPC: "free space or inodes on its file system",
    errno.EDQUOT: "free space, or raise the quota of this user",
    errno.EROFS: "mount it read-write on this host",
    errno.EACCES: "let the user of the trainer write there (chown or chmod)",
    errno.EPERM: "let the user of the trainer write there (chown or chmod)",
    errno.ENOTDIR: "remove the file that stands in its way, or give another folder",
    errno.ENOENT: "make the folder that its symbolic link leads to",
    errno.ESTALE: "unmount it and mount it again on this host",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderState:
    """What was seen of it.

    Args:
        path: Absolute.
        where: The nearest folder that is there: itself, or the one it would be made in.
        error: What writing there met.
        step: At which step.
        real: Where a symbolic link leads.
        mounted: It is a mount point itself.
        facts: Of its file system.
        bytes_per_second: How fast it takes data.
        probes: Of exporters of other hosts.
    """

    path: str
    where: str
    error: OSError | None = None
    step: str = ""
    real: str | None = None
    mounted: bool = False
    facts: FolderFacts = field(default_factory=FolderFacts)
    bytes_per_second: float | None = None
    probes: tuple[Probe, ...] = ()

    @property
    def exists(self) -> bool:
        """It is there, and has not to be made."""
        return self.where == self.path


def examine_folder(path: str) -> FolderState:
    """Look at a folder, write to it, and leave nothing behind; it may hang with the file system.

    Args:
        path: Absolute.
    """
    try:
        where = _nearest(path)
    except OSError as gone:  # a mount whose server has gone, for instance
        return FolderState(path=path, where=path, error=gone, step="looking")
    real = os.path.realpath(path)
    stamp_ns, step, error = _write(where)
    facts = facts_of(path)
    return FolderState(
        path=path,
        where=where,
        error=error,
        step=step,
        real=real if real != path else None,
        mounted=os.path.ismount(path),
        facts=facts,
        bytes_per_second=measure(where, facts.free_bytes) if error is None else None,
        probes=probes_near(path, stamp_ns) if stamp_ns is not None else (),
    )


def folder(state: FolderState) -> Finding:
    """Can the trainer write there?"""
    if state.error is not None:
        number = state.error.errno or 0
        said = state.error.strerror or type(state.error).__name__
        return fail(
            Check.FOLDER,
            f"{state.step} in {state.where} failed: {said} (errno {errno.errorcode.get(number, number)})",
            _FIXES.get(number, "look at its mount on this host"),
        )
    said = "written to, and cleaned up again" if state.exists else f"not there yet, and can be made in {state.where}"
    if state.mounted:
        said += "; it is a mount point"
    elif state.real is not None:
        said += f"; by a symbolic link it is {state.real}, which the server must be able to follow too"
    return ok(Check.FOLDER, said)


def room(state: FolderState, *, payload: int | None, present: int, unread: str = "") -> Finding | None:
    """Is there room for a sync? None when the folder cannot be written anyway, or its file system does not tell.

    Args:
        payload: How much one sync writes, None when that is not known.
        present: Bytes there that a sync overwrites.
        unread: Why the model that was given does not tell its size.
    """
    facts = state.facts
    if state.error is not None or facts.free_bytes is None:
        return None
    free = f"{shown_bytes(facts.free_bytes)} are free"
    if facts.free_inodes is not None and facts.free_inodes < MIN_INODES:
        return warn(Check.ROOM, f"only {facts.free_inodes} more files can be made there", "remove files there")
    if payload is None:
        how = f"what a sync writes is not known: {unread}" if unread else f"to compare that with a sync, {THE_MODEL}"
        return ok(Check.ROOM, f"{free}; {how}")
    usable = facts.free_bytes + present
    if usable < payload:
        return fail(
            Check.ROOM,
            f"{free}, and a sync writes about {shown_bytes(payload)}",
            f"free {shown_bytes(2 * payload - usable)} there, or give another folder",
        )
    if usable < 2 * payload:
        return warn(
            Check.ROOM,
            f"{free}, and a sync writes about {shown_bytes(payload)}: there is no room for a second one beside it",
            f"free {shown_bytes(2 * payload - usable)} there",
        )
    return ok(Check.ROOM, f"{free}, a sync writes about {shown_bytes(payload)}")


def _nearest(path: str) -> str:
    """The folder itself, or the first one above it that is there."""
    while True:
        try:
            os.lstat(path)
            return path
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)


@contextlib.contextmanager
def _removed_at_the_end(made: str) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for name in os.listdir(made):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(made, name))
        with contextlib.suppress(OSError):
            os.rmdir(made)


def _write(where: str) -> tuple[int | None, str, OSError | None]:
    """Make a folder, and in it write, flush, rename and remove a file: what a save does. The stamp, or what failed."""
    made = temporary(where)
    first, second = os.path.join(made, "a"), os.path.join(made, "b")
    step = "making a folder"
    try:
        os.mkdir(made)
        with _removed_at_the_end(made):
            step = "writing a file"
            file = os.open(first, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(file, _CONTENT)
                os.fsync(file)
            finally:
                os.close(file)
            step = "renaming a file"
            os.replace(first, second)
            stamp_ns = os.stat(second).st_mtime_ns
            step = "removing a file"
            os.unlink(second)
        return stamp_ns, "", None
    except OSError as error:
        return None, step, error
