"""Sizes and durations as a person reads them."""

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def shown_bytes(count: float) -> str:
    """Such as ``1.2 GB``."""
    for size, unit in _SIZES:
        if count >= size:
            value = count / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{count:.0f} bytes"


def shown_seconds(seconds: float) -> str:
    """Such as ``0.04 s``, ``12 s`` or ``3 min``."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds >= 0.01 else "less than 0.01 s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
