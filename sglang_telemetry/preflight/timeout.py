"""Is the engine's time-out long enough for a checkpoint of this size on this file system?

The server reads what was written here. Nobody knows how fast that is before the first sync: what is measured is how
fast the folder takes data, and three times of that is what a load should be given.
"""

import math

from sglang_telemetry.preflight.findings import THE_MODEL, Check, Finding, ok, warn
from sglang_telemetry.preflight.units import shown_bytes, shown_seconds

FACTOR = 3.0


def timeout(
    given: float | None,
    *,
    payload: int | None,
    bytes_per_second: float | None,
    loaded_in: float | None,
    unread: str = "",
) -> Finding | None:
    """Compare them; None when nothing is known.

    Args:
        given: The engine's time-out in seconds.
        payload: How much one sync writes.
        bytes_per_second: How fast the folder takes data.
        loaded_in: Seconds that the update of a dry run took.
        unread: Why the model that was given does not tell its size.
    """
    written_in = payload / bytes_per_second if payload is not None and bytes_per_second else None
    if written_in is None and loaded_in is None:
        if given is None:
            return None
        if payload is not None:
            how = "how fast the folder takes data is not known"
        elif unread:
            how = f"the size of a checkpoint is not known: {unread}"
        else:
            how = f"to compare that with a checkpoint, {THE_MODEL}"
        return ok(Check.TIMEOUT, f"{given:g} s; {how}")
    known = []
    if written_in is not None and payload is not None and bytes_per_second:
        speed = f"{shown_bytes(bytes_per_second)}/s"
        known.append(f"{shown_bytes(payload)} take {shown_seconds(written_in)} to write ({speed} measured)")
    if loaded_in is not None:
        known.append(f"the update of the dry run took {shown_seconds(loaded_in)}")
    said = "; ".join(known)
    if given is None:
        return ok(Check.TIMEOUT, f"not known (the engine has none, or --timeout is not given); {said}")
    needed = FACTOR * max(written_in or 0.0, loaded_in or 0.0)
    if given < needed:
        return warn(
            Check.TIMEOUT,
            f"{given:g} s may be too short: {said}",
            f"raise the engine's time-out to {math.ceil(needed)} s; SGLang goes on when its client has given up",
        )
    return ok(Check.TIMEOUT, f"{given:g} s; {said}")
