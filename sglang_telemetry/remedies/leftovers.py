"""What earlier syncs left beside a checkpoint folder: removed, or put back, unless a living process uses it."""

import errno
import os
from dataclasses import dataclass

from sglang_telemetry.remedies.claims import Beside, Claim, Role, as_staging
from sglang_telemetry.remedies.place import mounts_below
from sglang_telemetry.remedies.trees import remove


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """What came of it.

    Args:
        done: In words.
        used: Folders that somebody writes now, or keeps until a server has taken the new one.
        failed: What could not be removed or put back.
    """

    done: tuple[str, ...]
    used: tuple[str, ...]
    failed: tuple[OSError, ...]

    def __str__(self) -> str:
        """In words."""
        return ", ".join((*self.done, *(f"not done: {error}" for error in self.failed)))


def tidy(folder: str, *, network: bool, certain: bool, but: str | None = None) -> Tidied:
    """Remove what is left, and put the folder back if it was moved aside and is missing.

    Args:
        folder: The checkpoint folder, absolute and without symbolic links.
        network: Other hosts see it, whose locks are not known here.
        certain: Leave alone what may be in use, where the file system has no locks.
        but: A path of which nothing is to be done.

    Raises:
        OSError: The folder that they are in cannot be listed.
    """
    beside = Beside(folder)
    done: list[str] = []
    used: list[str] = []
    failed: list[OSError] = []
    for path in beside.all():
        if path == but:
            continue
        role = beside.role(path)
        try:
            claim = Claim.take(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            failed.append(error)
            continue
        if claim is None:
            if role is not Role.TRIAL:
                used.append(path)
            continue
        if role is Role.ASIDE and not os.path.lexists(folder):
            try:
                os.rename(path, folder)
                done.append(f"put back {folder}")
            except OSError as error:
                failed.append(error)
            claim.release()
        elif (certain and not claim.locked) or (network and beside.may_live_elsewhere(path)):
            claim.release()
        elif (fault := forsake(claim)) is None:
            done.append(f"removed {path}")
        else:
            failed.append(fault)
    return Tidied(done=tuple(done), used=tuple(used), failed=tuple(failed))


def forsake(claim: Claim) -> OSError | None:
    """Remove a claimed folder, and let go of it; never raises.

    Returns:
        What went wrong.
    """
    try:
        # Half removed it must not be put back, should the checkpoint folder be missing then.
        garbage = as_staging(claim.path)
        if garbage != claim.path:
            os.rename(claim.path, garbage)
            claim.path = garbage
        # Somebody may have mounted data of his own inside while it was the checkpoint folder.
        if mounts := mounts_below(claim.path):
            return OSError(errno.EBUSY, "something is mounted inside, so it is not removed", mounts[0])
        return remove(claim.path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    finally:
        claim.release()
