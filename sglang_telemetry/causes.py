"""Why a sync failed: the closed set of causes, each with the first thing to do.

How a cause is told from the evidence stands in :mod:`sglang_telemetry.classify`.
"""

from enum import StrEnum


class FailureCause(StrEnum):
    """Why a sync failed; a cause says whose move it is."""

    PEER = "peer"
    DISK_FULL = "disk_full"
    OUT_OF_MEMORY = "out_of_memory"
    CHECKPOINT_WRITE = "checkpoint_write"
    PROXY_INTERCEPTED = "proxy_intercepted"
    UNAUTHORIZED = "unauthorized"
    UNREACHABLE = "unreachable"
    SERVER_DIED = "server_died"
    TIMEOUT = "timeout"
    CHECKPOINT_INVALID = "checkpoint_invalid"
    PATH_NOT_VISIBLE = "path_not_visible"
    SERVER_BUSY = "server_busy"
    PROTOCOL = "protocol"
    SERVER_ERROR = "server_error"
    NOT_APPLIED = "not_applied"
    TRAINER_LOST = "trainer_lost"
    UNKNOWN = "unknown"

    @property
    def hint(self) -> str:
        """The first thing to do, in one line."""
        return _HINTS[self]

    @property
    def runbook(self) -> str:
        """The section of the runbook, relative to the folder ``alerts/``."""
        return f"runbooks/WeightSyncFailed.md#{self.value}"


_HINTS = {
    FailureCause.PEER: "look at rank 0's record; on rank 0 itself, look which other rank died",
    FailureCause.DISK_FULL: "free space on the file system of the checkpoint folder (is it /dev/shm?)",
    FailureCause.OUT_OF_MEMORY: "the phase says whose memory: request is the server's, any other the trainer's",
    FailureCause.CHECKPOINT_WRITE: "check permissions and mount of the shared folder on the trainer's side",
    FailureCause.PROXY_INTERCEPTED: "put the server's host into NO_PROXY, literally (not as a CIDR)",
    FailureCause.UNAUTHORIZED: "the server wants its admin API key: set the same key on both sides",
    FailureCause.UNREACHABLE: "is the server up, and is this its address?",
    FailureCause.SERVER_DIED: "check the checkpoint before a restart: it very likely killed the server, "
    "which comes back with its START weights",
    FailureCause.TIMEOUT: "ask the server for its weight version before sending again: the update may still be applied",
    FailureCause.CHECKPOINT_INVALID: "look at what was written: is it complete, and of the model that the server runs?",
    FailureCause.PATH_NOT_VISIBLE: "mount the checkpoint folder at the same path on the server (NFS cache?): "
    "the files are complete here",
    FailureCause.SERVER_BUSY: "pause or drain generation before a sync, and never send two updates at once",
    FailureCause.PROTOCOL: "is this an SGLang server, and of a version that has this route?",
    FailureCause.SERVER_ERROR: "read the server's log at that second",
    FailureCause.NOT_APPLIED: "do not trust rollouts since the last confirmed sync",
    FailureCause.TRAINER_LOST: "look for the out-of-memory killer, the node and the scheduler",
    FailureCause.UNKNOWN: "read the text below: no rule knows it yet",
}
