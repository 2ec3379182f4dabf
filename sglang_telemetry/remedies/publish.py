"""A checkpoint folder that is written beside its place, synced to the disk, and put there in one step.

What is left of a sync lies under a hidden name beside the folder, so that any later start finds it; a flock on it says
that its process lives.
"""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable

from sglang_telemetry.checkpoint.filesystem import facts_of
from sglang_telemetry.remedies.carry import (
    Stamp,
    carry_over,
    copy_attributes,
    folders_with_weights,
    move_into,
    stamps_in,
    weights_in,
)
from sglang_telemetry.remedies.claims import Beside, Claim, Role
from sglang_telemetry.remedies.forked import forget_in_child
from sglang_telemetry.remedies.leftovers import Tidied, forsake, tidy
from sglang_telemetry.remedies.place import Place, look, mounts_below, try_out
from sglang_telemetry.remedies.rename import Swap, Way, exchange, replace
from sglang_telemetry.remedies.trees import own_links, sync_files, sync_folder, sync_folders

# File systems of which another host can know a folder by its handle. Of a type that is not known the same is thought:
# a load that fails is seen, and one of old weights is not.
_NETWORK = ("nfs", "cifs", "smb", "lustre", "ceph", "gpfs", "beegfs", "9p", "virtiofs", "afs", "glusterfs", "fuse.")
_FIRST = "the first one"


def has_files(folder: str) -> bool:
    """Is there anything but empty folders in a folder?"""
    return any(names for _, _, names in os.walk(folder))


def has_weights(folder: str) -> bool:
    """Is there a file of weights in a folder?"""
    try:
        return bool(folders_with_weights(folder))
    except OSError:
        return False


class Publisher:
    """Publishes checkpoints of one folder; one sync at a time.

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
        self._given = os.path.abspath(folder) if os.fspath(folder) else ""  # the process may change its folder
        self._swap, self._fs_type = swap, fs_type
        self._place = look(self._given)
        try_out(self._place, swap)
        self._staging: Claim | None = None
        self._path: str | None = None
        self._weights: dict[str, Stamp] = {}
        self._published: dict[str, Stamp] | None = None
        self._writer: threading.Thread | None = None
        self._old: Claim | None = None
        self._removals: list[threading.Thread] = []
        forget_in_child(self)

    def recover(self) -> Tidied | None:
        """Remove what a crash has left, and put back a folder that it has moved aside; never raises.

        Returns:
            What was done; None when there was nothing. What a living process uses is left alone.
        """
        try:
            tidied = tidy(self._place.folder, network=self._is_network(), certain=True)
        except OSError as error:
            return Tidied(done=(), used=(), failed=(error,))
        return tidied if tidied.done or tidied.failed else None

    def begin(self) -> str:
        """An empty folder to write into, beside the real one.

        Raises:
            OSError: It cannot be made; with EBUSY another process, or another thread of this one, is writing this
                checkpoint.
        """
        writer = self._writer
        if self._staging and writer and writer.is_alive() and writer is not threading.current_thread():
            raise OSError(errno.EBUSY, "another thread writes this checkpoint", self._staging.path)
        self.close(None)
        self._place = self._looked_at()
        beside = Beside(self._place.folder)
        self._tidied()
        staging = beside.make(Role.STAGING)
        try:
            with contextlib.suppress(FileNotFoundError):
                copy_attributes(self._place.folder, staging.path)  # before its files: they inherit group and lists
            self._tidied(but=staging.path)  # two that began in the same moment both see the other
        except BaseException:
            forsake(staging)
            raise
        self._staging, self._path, self._writer = staging, staging.path, threading.current_thread()
        self._published = None
        self._weights = weights_in(self._place.folder)
        return staging.path

    def publish(self) -> str:
        """Sync what was written, and put it in its place; what was not written again is kept, but for old weights.

        The weights of a folder are then those that were written, and no others. A folder inside of it into which no
        weights were written keeps its own. What was written stays where it is as well, as hard links, for an engine
        that goes on with it; what it writes there later can be published too.

        Returns:
            How it was done, in words.

        Raises:
            OSError: It was not done, and what was there is what it was.
        """
        staging, folder = self._saved(), self._place.folder
        if self._looked_at() != self._place:
            raise OSError(errno.ESTALE, "the path leads to another folder than when the save began", self._given)
        written = folders_with_weights(staging.path)
        if not written:
            raise OSError(errno.ENODATA, "no weights were saved", staging.path)
        self._check_weights(written)
        own_links(staging.path, was=staging.path)
        sync_files(staging.path)
        new = Beside(folder).make(Role.STAGING)
        try:
            copy_attributes(staging.path, new.path)
            carry_over(staging.path, new.path, frozenset())
            kept = carry_over(folder, new.path, written)
            with contextlib.suppress(FileNotFoundError):
                copy_attributes(folder, new.path)
            sync_folders(new.path)
            old, words = self._put_in_place(new)
        except BaseException:
            forsake(new)
            raise
        # From here on the new one is there, and nothing is an error any more.
        new.release()
        self._published = stamps_in(staging.path)
        with contextlib.suppress(OSError):
            sync_folder(self._place.parent)
        if old is not None:
            # What somebody else wrote into the old one since it was listed.
            with contextlib.suppress(OSError):
                if late := carry_over(old.path, folder, written):
                    kept += late
                    sync_folders(folder)
            words += self._retire(old)
        self._weights = weights_in(folder)
        return f"{words}{f', {kept} files kept' if kept else ''}"

    @property
    def is_published(self) -> bool:
        """All that was written so far."""
        return self._published is not None and self._path is not None and self._published == stamps_in(self._path)

    def merge(self) -> None:
        """Put what was written into the folder file by file, over what is there.

        Raises:
            OSError: Something of it could not be.
        """
        staging = self._saved()
        os.makedirs(self._place.folder, exist_ok=True)
        move_into(staging.path, self._place.folder)

    def withdraw(self) -> None:
        """Remove the folder, in a thread: its engine has removed what it had written; never raises."""
        with contextlib.suppress(OSError):
            gone, away = Claim.take(self._place.folder), Beside(self._place.folder).free(Role.STAGING)
            if gone is None or mounts_below(gone.path):
                return
            os.rename(gone.path, away)
            gone.path = away
            self._remove_later(gone)

    def confirmed(self) -> None:
        """The server has taken it: the old one goes, in a thread; never raises."""
        old, self._old = self._old, None
        self._remove_later(old)

    def finish(self) -> None:
        """What was written is not needed there any more: it goes, in a thread; never raises."""
        staging, path, self._staging, self._path = self._staging, self._path, None, None
        if staging is not None and not staging.is_there() and path is not None:  # the engine has made it anew
            with contextlib.suppress(OSError):
                staging.release()
                staging = Claim.take(path)
        self._remove_later(staging)

    def close(self, seconds: float | None = 5.0) -> None:
        """Wait until what is being removed is gone, and let go of the rest: the next start, or sync, removes it.

        Args:
            seconds: Longest wait; None for any.
        """
        end = None if seconds is None else time.monotonic() + seconds
        for removal in self._removals:
            removal.join(None if end is None else max(0.0, end - time.monotonic()))
        self._removals = [removal for removal in self._removals if removal.is_alive()]
        for claim in (self._staging, self._old):
            if claim is not None:
                claim.release()
        self._staging = self._old = None

    def forget(self) -> None:
        """In a forked child: all of this is the parent's."""
        self._staging = self._path = self._old = self._writer = None
        self._removals = []

    def _saved(self) -> Claim:
        """The staging folder, also where the engine has removed it and made another one before it wrote."""
        staging, path = self._staging, self._path
        if path is None:
            raise OSError(errno.ENOENT, "nothing is being saved", self._place.folder)
        if staging is not None and staging.is_there():
            return staging
        try:
            made = Claim.take(path)
        except FileNotFoundError as error:
            raise OSError(errno.ENOENT, "the folder that was saved into is gone", path) from error
        if made is None:
            raise OSError(errno.EBUSY, "another process writes this checkpoint", path)
        if staging is not None:
            staging.release()
        self._staging = made
        return made

    def _check_weights(self, written: frozenset[str]) -> None:
        """Another rank that writes its shards into the folder itself is not led elsewhere: they would be lost."""
        now = weights_in(self._place.folder)
        for path in sorted(now):
            if (os.path.dirname(path) or ".") in written and now[path] != self._weights.get(path):
                raise OSError(
                    errno.EBUSY,
                    "another rank or process has written weights there since the save began; leave publish_atomically "
                    "off where several ranks save one checkpoint",
                    os.path.join(self._place.folder, path),
                )

    def _looked_at(self) -> Place:
        try:
            return look(self._given)
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error), self._given) from error

    def _tidied(self, but: str | None = None) -> None:
        """Remove what is left of earlier syncs, as far as nobody uses it."""
        tidied = tidy(self._place.folder, network=self._is_network(), certain=False, but=but)
        if tidied.used:
            raise OSError(errno.EBUSY, "another process writes this checkpoint", tidied.used[0])
        if tidied.failed:
            raise tidied.failed[0]

    def _put_in_place(self, new: Claim) -> tuple[Claim | None, str]:
        """The old folder, None when there was none, and how it was done."""
        folder, beside = self._place.folder, Beside(self._place.folder)
        try:
            old = Claim.take(folder) or Claim(folder, None, locked=False)  # somebody else's lock guards it as well
        except FileNotFoundError:
            os.rename(new.path, folder)
            return None, _FIRST
        try:
            if mounts := mounts_below(folder):
                raise OSError(errno.EBUSY, "something is mounted inside of the checkpoint folder", mounts[0])
            aside = beside.free(Role.ASIDE)
            way = replace(new.path, folder, aside, swap=self._swap)
        except BaseException:
            old.release()
            raise
        old.path = new.path if way is Way.EXCHANGED else aside
        return old, str(way)

    def _retire(self, old: Claim) -> str:
        """What becomes of the old folder until the server has the new one, in words."""
        self.confirmed()  # of two in one sync, the first
        if not self._is_network():
            self._old = old
            return ""
        # Another host may know the old folder by its handle for a minute, and would load old weights from it: the
        # handle of one that is gone is stale, and the path is looked up again.
        error = forsake(old)
        return ", the old one removed" if error is None else f", the old one could not be removed: {error}"

    def _is_network(self) -> bool:
        kind = self._fs_type(self._place.parent)
        return kind is None or kind == "fuse" or kind.startswith(_NETWORK)

    def _remove_later(self, claim: Claim | None) -> None:
        if claim is None:
            return
        try:
            removal = threading.Thread(target=forsake, args=(claim,), name="sglang-telemetry-removal", daemon=True)
            removal.start()
        except RuntimeError:  # no thread is to be had: the next sync removes it
            claim.release()
        else:
            self._removals.append(removal)
