"""Which version of this package speaks: read from its metadata once, since every look at a server says it."""

import functools
from importlib import metadata


@functools.cache
def own_version() -> str | None:
    """The installed version, None where the package runs without being installed."""
    try:
        return metadata.version("sglang-telemetry")
    except metadata.PackageNotFoundError:
        return None
