"""The weight version that names a sync by run, start and sequence: a server that shows it says which one it runs."""

import hashlib
import re

from sglang_telemetry.events import Identity

_TAG = re.compile(r".+:[0-9a-f]{8}:[1-9][0-9]*")
_OURS = re.compile(r"[0-9a-f]{32}")


def tag_of(identity: Identity, sequence: int) -> str:
    """Such as ``grpo-math:3f9a2c1b:41``; the same on all ranks."""
    return f"{_start(identity)}:{sequence}"


def is_tag(version: str) -> bool:
    """Was this label made by :func:`tag_of`, for whichever run?"""
    return _TAG.fullmatch(version) is not None


def sequence_in(version: str, identity: Identity) -> int | None:
    """The sync of this start of the run that a label names; None when it is no such tag."""
    start, _, sequence = version.rpartition(":")
    of_us = is_tag(version) and start == _start(identity) and len(sequence) < 19
    return int(sequence) if of_us else None


def verifiable(version: str | None) -> bool:
    """Can this label stand for one sync? ``default``, nothing and a path cannot; a label is opaque otherwise."""
    return version is not None and version not in {"", "default"} and "/" not in version and "\\" not in version


def _start(identity: Identity) -> str:
    """Run and start; ids that somebody gave may begin alike, so that of those a digest is taken."""
    given = identity.run_id
    short = given if _OURS.fullmatch(given) else hashlib.blake2b(given.encode(), digest_size=4).hexdigest()
    return f"{identity.run}:{short[:8]}"
