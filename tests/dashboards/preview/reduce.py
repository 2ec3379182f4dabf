"""One number of many, as the calculations of stats and legends make it.

The one decision: a calculation that is not known is an error.
"""

from collections.abc import Sequence
from typing import Final

LABELS: Final = {
    "lastNotNull": "Last *", "last": "Last", "firstNotNull": "First *", "first": "First", "mean": "Mean", "max": "Max",
    "min": "Min", "sum": "Total", "count": "Count", "range": "Range", "diff": "Difference",
}  # fmt: skip


def reduced(values: Sequence[float | None], how: str) -> float | None:
    """A series as one number; None when it has none.

    Raises:
        ValueError: The calculation is not known.
    """
    if how not in LABELS:
        raise ValueError(f"calculation {how!r} is not known to the preview")
    there = [value for value in values if value is not None]
    if how == "count":
        return float(len(values))
    if how in ("last", "first"):
        return values[-1 if how == "last" else 0] if values else None
    if not there:
        return None
    match how:
        case "lastNotNull":
            return there[-1]
        case "firstNotNull":
            return there[0]
        case "mean":
            return sum(there) / len(there)
        case "max":
            return max(there)
        case "min":
            return min(there)
        case "sum":
            return sum(there)
        case "range":
            return max(there) - min(there)
        case _:
            return there[-1] - there[0]
