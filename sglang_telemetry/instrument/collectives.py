"""The process group beside a sync: how long its collectives wait, and what the ranks agree on.

No collective of ours: the ranks agree through the key-value store that the group was made with.
"""

import contextlib
from datetime import timedelta
from typing import Any

from sglang_telemetry.identity import process_group

AGREE_SECONDS = 10.0
"""How long a rank waits for what the coordinator has decided, when both are past the engine's last collective."""


def time_out_seconds() -> float | None:
    """Longest wait of a collective of the default group; None without a group, or where it does not tell."""
    group = process_group()
    if group is None:
        return None
    with contextlib.suppress(Exception):  # torch's own internals, which may go: then nothing is known
        default = group.distributed_c10d._get_default_group()
        times = [default._get_backend(device).options._timeout for device in default._device_types]
        return float(min(times).total_seconds()) if times else None
    return None


def agree(key: str, goes_on: bool) -> bool:
    """On the coordinator: say what was decided; false when the others did not wait for it, and will not go on."""
    store = _store()
    return goes_on if store is None else _first(store, key, goes_on)


def agreed(key: str) -> bool:
    """On any other rank: what the coordinator decided; false, for all of them, when it does not say within 10 s."""
    store = _store()
    if store is None:
        return False
    with contextlib.suppress(Exception):  # a time-out, or the store has gone with its rank
        store.wait([key], timedelta(seconds=AGREE_SECONDS))
    return _first(store, key, False)


def _first(store: Any, key: str, goes_on: bool) -> bool:
    """What the first of all ranks has said, which may be this one: nobody acts on anything else."""
    try:
        return bool(store.compare_set(key, "", "1" if goes_on else "0") == b"1")
    except Exception:
        return False


def _store() -> Any:
    group = process_group()
    if group is None or group.get_world_size() == 1:
        return None
    with contextlib.suppress(AttributeError):
        return group.distributed_c10d._get_default_store()
    return None
