"""Who speaks: run, run id, rank, world size.

torch is never imported here: it is looked at only when the trainer has imported it already.
"""

import os
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from sglang_telemetry.events import Identity
from sglang_telemetry.names import Env
from sglang_telemetry.platform import started_at
from sglang_telemetry.text import clean

_STORE_KEY = "sglang_telemetry/run_id"


class IdentitySource:
    """Looks the identity up anew at each sync: the process group may come up, or go, in between.

    Args:
        run: Stable name of the training job; default ``SGLANG_TELEMETRY_RUN``, then the script's name.
        rank: Rank, if the caller knows better than environment and process group.
        world_size: Number of ranks, likewise.
        run_id: Id of this start, the same on all ranks.
        environ: The environment to read.

    Raises:
        ValueError: ``rank`` or ``world_size`` make no sense.
    """

    def __init__(
        self,
        *,
        run: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        run_id: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if rank is not None and rank < 0:
            raise ValueError(f"rank={rank} is negative: ranks count from 0")
        if world_size is not None and world_size <= (rank or 0):
            raise ValueError(f"world_size={world_size} is too small for rank={rank or 0}")
        self.run = label_value(run or environ.get(Env.RUN) or script_name(sys.argv[0] if sys.argv else ""))
        self._rank = rank
        self._world_size = world_size
        self._environ = environ
        self._given_run_id = run_id or _run_id_from(environ)
        self._shared_run_id: str | None = None
        self._candidate = uuid.uuid4().hex
        self._host = socket.gethostname()
        self._last: Identity | None = None

    def current(self) -> Identity:
        """The identity as of now; the same object as long as nothing changed."""
        group = process_group()
        rank, world_size = self._place(group)
        now = Identity(
            run=self.run,
            run_id=self._run_id(group),
            rank=rank,
            world_size=world_size,
            host=self._host,
            pid=os.getpid(),
        )
        if now != self._last:
            self._last = now
        return self._last or now

    def is_coordinator(self) -> bool:
        """Does this process make the request, and so count the sync? Rank 0, or a process without a process group."""
        if self._rank is not None:
            return self._rank == 0
        group = process_group()
        return group is None or group.get_rank() == 0

    def _place(self, group: Any) -> tuple[int, int]:
        rank = self._rank
        if rank is None:
            rank = env_int(self._environ, "RANK")
        if rank is None:
            rank = group.get_rank() if group else 0
        world_size = self._world_size
        if world_size is None:
            world_size = env_int(self._environ, "WORLD_SIZE")
        if world_size is None:
            world_size = group.get_world_size() if group else 1
        return rank, max(world_size, rank + 1)

    def _run_id(self, group: Any) -> str:
        if self._given_run_id:
            return self._given_run_id
        if self._shared_run_id is None and group is not None and group.get_world_size() > 1:
            restarts = env_int(self._environ, "TORCHELASTIC_RESTART_COUNT") or 0
            self._shared_run_id = _agree(group, self._candidate, f"{_STORE_KEY}/{restarts}", started_at(os.getpid()))
        return self._shared_run_id or self._candidate


def process_group() -> Any:
    """``torch.distributed`` when the trainer imported it and its default group is up, else None."""
    distributed: ModuleType | None = sys.modules.get("torch.distributed")
    if distributed is None:
        return None
    try:
        return distributed if distributed.is_available() and distributed.is_initialized() else None
    except AttributeError:  # torch is being imported right now
        return None


def _agree(group: Any, candidate: str, key: str, born: float | None) -> str | None:
    """The first rank to ask puts its candidate into the group's key-value store; all get that one.

    One or two round trips to the store that the group was made with, once in a run. No rank waits for another. The
    store can outlive a start (torchrun keeps it over restarts): an id that was made before this process was born is
    of an earlier start, and is replaced. All ranks of a start are born before the first of them can get here.
    """
    try:
        store = group.distributed_c10d._get_default_store()
        mine = f"{candidate}@{time.time():.3f}"
        agreed = bytes(store.compare_set(key, "", mine)).decode()
        if born is not None and float(agreed.partition("@")[2]) < born:
            agreed = bytes(store.compare_set(key, agreed, mine)).decode()
        return agreed.partition("@")[0]
    except (AttributeError, RuntimeError, ValueError):
        return None


def _run_id_from(environ: Mapping[str, str]) -> str | None:
    """A run id that was set for the job, told apart by torchrun's restarts, which keep the environment."""
    given = environ.get(Env.RUN_ID)
    restarts = env_int(environ, "TORCHELASTIC_RESTART_COUNT") or 0
    return f"{given}.{restarts}" if given and restarts else given or None


def env_int(environ: Mapping[str, str], name: str) -> int | None:
    """A whole number >= 0 from the environment; None for anything else, such as a platform's ``tcp://...``."""
    value = environ.get(name, "").strip()
    return int(value) if value.isascii() and value.isdigit() else None


def script_name(argv0: str) -> str:
    """``train_grpo`` for ``.../trainer/train_grpo.py``; ``python`` where there is no script."""
    name = os.path.splitext(os.path.basename(argv0))[0]
    return name if name not in {"", "-c", "-m", "-"} else "python"


def label_value(name: str) -> str:
    """A run name as a label value: printable, at most 120 bytes."""
    return clean(name, limit=120).replace("\n", " ").strip() or "python"
