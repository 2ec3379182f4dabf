"""Trace and span ids that every rank derives alike from run, run id and sequence, with no message between them.

All ids are lower-case hex: 32 digits of a trace, 16 of a span.
"""

import hashlib

from sglang_telemetry.events import Identity


def trace_id(identity: Identity, sequence: int) -> str:
    """The trace of a sync, the same on every rank."""
    return _digest(identity, sequence)[:32]


def root_span_id(identity: Identity, sequence: int) -> str:
    """The coordinator's root span in a sync, the same on every rank."""
    return _digest(identity, sequence)[32:48]


def rank_span_id(identity: Identity, sequence: int) -> str:
    """This rank's span in a sync."""
    return _digest(identity, sequence, identity.rank)[:16]


def phase_span_id(identity: Identity, sequence: int, index: int) -> str:
    """The span of the phase that this rank entered as number ``index``, from 0, in a sync."""
    return _digest(identity, sequence, identity.rank, "phase", index)[:16]


def request_span_id(identity: Identity, sequence: int, index: int) -> str:
    """The span of the request that this rank's engine sent as number ``index``, from 0, in a sync."""
    return _digest(identity, sequence, identity.rank, "request", index)[:16]


def remedy_span_id(identity: Identity, sequence: int, index: int) -> str:
    """The span of what a remedy did on this rank as number ``index``, from 0, in a sync."""
    return _digest(identity, sequence, identity.rank, "remedy", index)[:16]


def resolved_span_id(identity: Identity, sequence: int, server: str, applied: str) -> str:
    """The span of what was found out later of a sync at one server."""
    return _digest(identity, sequence, "resolved", server, applied)[:16]


def outside_ids(identity: Identity, index: int) -> tuple[str, str]:
    """Trace and span of the request that this process's engine sent as number ``index`` outside of its syncs."""
    digest = _digest(identity, "outside", identity.rank, identity.pid, index)
    return digest[:32], digest[32:48]


def _digest(identity: Identity, *parts: object) -> str:
    return hashlib.sha256("\0".join((identity.run, identity.run_id, *map(str, parts))).encode()).hexdigest()
