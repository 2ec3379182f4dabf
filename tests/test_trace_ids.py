"""Trace and span ids that need no message between ranks."""

from sglang_telemetry.identity import IdentitySource
from sglang_telemetry.trace_ids import (
    outside_ids,
    phase_span_id,
    rank_span_id,
    remedy_span_id,
    request_span_id,
    root_span_id,
    trace_id,
)


def test_ids_are_the_same_on_every_rank_and_differ_between_syncs() -> None:
    """Trace and root span from run, run id and sequence; the rank's span from the rank as well."""
    zero = IdentitySource(run="r", run_id="one", rank=0, world_size=2, environ={}).current()
    one = IdentitySource(run="r", run_id="one", rank=1, world_size=2, environ={}).current()
    other = IdentitySource(run="r", run_id="two", rank=0, world_size=2, environ={}).current()
    assert trace_id(zero, 1) == trace_id(one, 1)
    assert root_span_id(zero, 1) == root_span_id(one, 1)
    assert rank_span_id(zero, 1) != rank_span_id(one, 1)
    assert len({trace_id(zero, 1), trace_id(zero, 2), trace_id(other, 1)}) == 3
    assert (len(trace_id(zero, 1)), len(root_span_id(zero, 1)), len(rank_span_id(one, 1))) == (32, 16, 16)


def test_no_two_spans_of_a_sync_share_an_id() -> None:
    """Root, ranks, phases, requests and remedies of two ranks, and requests outside of syncs."""
    ranks = [IdentitySource(run="r", run_id="one", rank=n, world_size=2, environ={}).current() for n in (0, 1)]
    ids = [root_span_id(ranks[0], 1)]
    for rank in ranks:
        ids += [rank_span_id(rank, 1), *(phase_span_id(rank, 1, n) for n in range(9))]
        ids += [*(request_span_id(rank, 1, n) for n in range(9)), *(outside_ids(rank, n)[1] for n in range(9))]
        ids += [remedy_span_id(rank, 1, n) for n in range(9)]
    assert len(set(ids)) == len(ids)
    assert {len(one) for one in ids} == {16}
    assert len(outside_ids(ranks[0], 1)[0]) == 32
