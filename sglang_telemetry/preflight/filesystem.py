"""What kind of file system the folder is on, and what that means for whoever reads it on another host.

An NFS client keeps what it knows of a folder, also that a name is not in it, for 60 s at most unless it is mounted
otherwise: ``acdirmax`` and ``lookupcache`` in nfs(5). A file that is opened is asked for anew (close-to-open, there
too). How long other remote file systems keep it, their own options say.
"""

from sglang_telemetry.checkpoint.filesystem import FolderFacts
from sglang_telemetry.preflight.findings import Check, Finding, ok, warn

_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_MOUNT_NFS = "mount it on the server with lookupcache=positive"
_REMOTE = ("nfs", "cifs", "smb", "fuse.", "9p")


def filesystem(facts: FolderFacts, *, same_host: bool, proved: bool) -> Finding | None:
    """What its kind means; None when the system does not tell.

    Args:
        facts: Of the folder.
        same_host: All servers run on this host.
        proved: A dry run showed that all servers see the folder.
    """
    kind = facts.fs_type
    if kind is None:
        return None
    if kind in _MEMORY:
        if proved or same_host:
            return ok(Check.FILESYSTEM, f"{kind}: what is written there takes memory of this host")
        return warn(
            Check.FILESYSTEM,
            f"{kind}: it is memory of this host, which no other host sees",
            "give a folder on a file system that the server mounts too",
        )
    if kind == "overlay":
        if proved:
            return ok(Check.FILESYSTEM, "overlay, the own layer of a container, and the server sees it")
        return warn(
            Check.FILESYSTEM,
            "overlay: this is the own layer of a container, which nobody outside of it sees",
            "give a folder on a volume that both containers mount",
        )
    if kind.startswith(_REMOTE) and proved:
        return ok(
            Check.FILESYSTEM,
            f"{kind}: the server saw a new folder at once; a name that it has looked for before can stay "
            f"unseen{_while(kind)}",
        )
    if kind.startswith(_REMOTE):
        return warn(
            Check.FILESYSTEM,
            f"{kind}: the other side keeps what it knows of a folder, so that a new file can stay unseen{_while(kind)}",
            f"{_MOUNT_NFS}, or sync to a new folder name each time"
            if kind.startswith("nfs")
            else "mount it on the server with the shortest caching that it has, or sync to a new folder name each time",
        )
    return ok(Check.FILESYSTEM, kind)


def _while(kind: str) -> str:
    return " for up to 60 s" if kind.startswith("nfs") else " for a while"
