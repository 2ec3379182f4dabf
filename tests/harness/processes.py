"""Free ports, waiting for a condition, and children that are stopped by their pid."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str, timeout: float = 15.0) -> None:
    """Poll until ``condition()`` is true; fails naming ``what`` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        time.sleep(0.02)
