"""The spans of an event: whole values, and what holds for the spans of any sync."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import requests

import sglang_telemetry
from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    Checkpoint,
    Event,
    Exchange,
    PhaseSpan,
    ProcessLost,
    Remedy,
    RequestRecord,
    SyncRecord,
    Target,
    TelemetryError,
)
from sglang_telemetry.names import Action, Applied, Attribute, Component, Exit, Outcome, Phase, Result, phase_span
from sglang_telemetry.spans import Span, SpanEvent, spans_of
from sglang_telemetry.testing import ManualClock, RecordedTraces, RecordingSink
from sglang_telemetry.trace_ids import (
    outside_ids,
    phase_span_id,
    rank_span_id,
    remedy_span_id,
    request_span_id,
    resolved_span_id,
    root_span_id,
    trace_id,
)
from tests.harness.answers import Answers
from tests.sinks import SERVER, begun, ended, entered, inspected, record, remedied, remedy, resolved, started, who

S = 10**9
T0 = 1_700_000_010 * S
"""The start of a sync of tests.sinks, in Unix nanoseconds."""
UPDATE = f"http://{SERVER}/update_weights_from_disk"
CALLER = ("ca" * 16, "fe" * 8)
"""Trace and span of a caller's active span."""
ADDRESS = {Attribute.SERVER_ADDRESS: "10.0.0.7", Attribute.SERVER_PORT: 30000}


def own(rank: int = 0, sequence: int = 1) -> dict[str, Any]:
    """The fields of a record or a start that say: in the trace that all ranks derive alike."""
    return {"trace_id": trace_id(who(rank), sequence)}


def joined() -> dict[str, Any]:
    """The fields that say: in a caller's trace."""
    return {"trace_id": CALLER[0], "parent_span_id": CALLER[1]}


def everybody(rank: int = 0, sequence: int = 1) -> dict[str, Any]:
    """Attributes of every span."""
    return {
        Attribute.RUN: "grpo",
        Attribute.RUN_ID: "one",
        Attribute.SEQUENCE: sequence,
        Attribute.RANK: rank,
        Attribute.WORLD_SIZE: 2,
    }


def whole(rank: int = 0, **more: Any) -> dict[str, Any]:
    """Attributes of the spans of a whole sync."""
    return {
        **everybody(rank),
        **ADDRESS,
        Attribute.TRANSPORT: "disk",
        Attribute.RESULT: "success",
        Attribute.WEIGHTS_APPLIED: "yes",
        Attribute.ATTEMPTS: 1,
    } | more


def root(**changes: Any) -> Span:
    """The root of the sync of :func:`tests.sinks.record`."""
    values: dict[str, Any] = {
        "identity": who(0),
        "name": "weight_sync",
        "trace_id": trace_id(who(0), 1),
        "span_id": root_span_id(who(0), 1),
        "parent_span_id": None,
        "start_ns": T0,
        "end_ns": T0 + 4 * S,
        "attributes": whole(),
    }
    return Span(**(values | changes))


def of_rank(rank: int = 0, **changes: Any) -> Span:
    """A rank's span in it."""
    values: dict[str, Any] = {
        "identity": who(rank),
        "name": "weight_sync.rank",
        "span_id": rank_span_id(who(rank), 1),
        "parent_span_id": root_span_id(who(0), 1),
        "attributes": whole(rank),
    }
    return replace(root(), **(values | changes))


def phase(index: int, kind: Phase, start: int, end: int, rank: int = 0, **changes: Any) -> Span:
    """A phase of it, in seconds."""
    values: dict[str, Any] = {
        "name": f"weight_sync.{kind}",
        "span_id": phase_span_id(who(rank), 1, index),
        "parent_span_id": rank_span_id(who(rank), 1),
        "start_ns": T0 + start * S,
        "end_ns": T0 + end * S,
        "attributes": everybody(rank),
    }
    return replace(of_rank(rank), **(values | changes))


def phases(rank: int = 0, **changes: Any) -> tuple[Span, ...]:
    """Its three phases when nothing went wrong."""
    return (
        phase(0, Phase.SETUP, 0, 1, rank, **changes),
        phase(1, Phase.REQUEST, 1, 3, rank, **changes),
        phase(2, Phase.BARRIER, 3, 4, rank, **changes),
    )


def request(index: int = 0, parent: int = 1, **changes: Any) -> Span:
    """Its update, answered with 200 after the two seconds of the request phase."""
    values: dict[str, Any] = {
        "name": "POST /update_weights_from_disk",
        "span_id": request_span_id(who(0), 1, index),
        "parent_span_id": phase_span_id(who(0), 1, parent),
        "attributes": {
            **everybody(),
            **ADDRESS,
            Attribute.HTTP_METHOD: "POST",
            Attribute.URL: UPDATE,
            Attribute.HTTP_STATUS: 200,
            Attribute.HTTP_RESPONSE_SIZE: 16,
        },
        "client": True,
        "events": (said('{"success":true}', 16, T0 + 3 * S),),
    }
    return replace(phase(1, Phase.REQUEST, 1, 3), **(values | changes))


def said(text: str, size: int, at_ns: int) -> SpanEvent:
    """The event that carries an answer's text."""
    return SpanEvent(
        name="weight_sync.response",
        at_ns=at_ns,
        attributes={Attribute.RESPONSE_TEXT: text, Attribute.HTTP_RESPONSE_SIZE: size},
    )


def update(**changes: Any) -> Exchange:
    """The update request of the record."""
    values: dict[str, Any] = {
        "method": "POST",
        "url": UPDATE,
        "status_code": 200,
        "response_text": '{"success":true}',
        "response_bytes": 16,
        "offset_ns": S,
        "duration_ns": 2 * S,
    }
    return Exchange(**(values | changes))


def refused(rank: int = 0, **changes: Any) -> SyncRecord:
    """A sync that was answered with 400 and a text."""
    values: dict[str, Any] = {
        **own(rank),
        "result": Result.FAILURE,
        "cause": FailureCause.SERVER_BUSY,
        "weights_applied": Applied.YES,
        "failed_phase": Phase.REQUEST,
        "error_type": "400",
        "exchanges": (update(status_code=400, response_text='{"success":false}', response_bytes=17),),
        "decisive": 0,
    }
    return record(who(rank), **(values | changes))


# Whole spans, one event each.


def test_success() -> None:
    """Root, rank, three phases, and the update under the phase it was sent in."""
    event = record(
        who(),
        **own(),
        exchanges=(update(),),
        decisive=0,
        version="step-7",
        checkpoint=Checkpoint(path="/w", bytes=2048),
    )
    more = {Attribute.VERSION: "step-7", Attribute.PAYLOAD_BYTES: 2048}
    assert spans_of(event) == (
        root(attributes=whole(**more)),
        of_rank(attributes=whole(**more)),
        *phases(),
        request(),
    )


def test_failure_with_an_answer() -> None:
    """A 400 with a text: root, rank, request phase and request are errors, the other phases are not."""
    told = {Attribute.CAUSE: "server_busy", Attribute.ERROR_TYPE: "400"}
    of_all = {"error": "server_busy", "attributes": whole(**told, **{Attribute.RESULT: "failure"})}
    setup, in_request, barrier = phases()
    assert spans_of(refused()) == (
        root(**of_all),
        of_rank(**of_all),
        setup,
        replace(in_request, error="server_busy", attributes=everybody() | told),
        barrier,
        request(
            error="server_busy",
            attributes=request().attributes
            | {Attribute.HTTP_STATUS: 400, Attribute.HTTP_RESPONSE_SIZE: 17, Attribute.WEIGHTS_APPLIED: "yes"}
            | told,
            events=(said('{"success":false}', 17, T0 + 3 * S),),
        ),
    )


def test_two_hundred_that_is_no_success() -> None:
    """The request is an error by the cause, and has no ``error.type`` of its own: HTTP saw nothing wrong."""
    *_, sent = spans_of(refused(exchanges=(update(response_text='{"success":false}'),), error_type="200"))
    assert (sent.error, sent.attributes[Attribute.HTTP_STATUS]) == ("server_busy", 200)
    assert Attribute.ERROR_TYPE not in sent.attributes


def test_exception_without_an_answer() -> None:
    """No status, no size, no response event; the exception's class and text instead."""
    lost = update(
        status_code=None,
        response_text=None,
        response_bytes=None,
        error_type="ReadTimeout",
        error_text="read timed out",
    )
    event = refused(
        cause=FailureCause.TIMEOUT,
        weights_applied=Applied.UNKNOWN,
        error_type="ReadTimeout",
        error_text="read timed out",
        exchanges=(lost,),
    )
    told = {
        Attribute.CAUSE: "timeout",
        Attribute.ERROR_TYPE: "ReadTimeout",
        Attribute.ERROR_MESSAGE: "read timed out",
    }
    of_all = {
        "error": "timeout",
        "attributes": whole(**told, **{Attribute.RESULT: "failure", Attribute.WEIGHTS_APPLIED: "unknown"}),
    }
    setup, in_request, barrier = phases()
    assert spans_of(event) == (
        root(**of_all),
        of_rank(**of_all),
        setup,
        replace(in_request, error="timeout", attributes=everybody() | told),
        barrier,
        request(
            error="timeout",
            attributes={
                **everybody(),
                **ADDRESS,
                Attribute.HTTP_METHOD: "POST",
                Attribute.URL: UPDATE,
                Attribute.WEIGHTS_APPLIED: "unknown",
                **told,
            },
            events=(),
        ),
    )


def test_failure_in_a_save() -> None:
    """No request was made: the save is the error, and there is no CLIENT span."""
    event = record(
        who(),
        **own(),
        result=Result.FAILURE,
        cause=FailureCause.DISK_FULL,
        weights_applied=Applied.UNKNOWN,
        failed_phase=Phase.SAVE,
        error_type="OSError",
        phases=(
            PhaseSpan(phase=Phase.SETUP, offset_ns=0, duration_ns=S),
            PhaseSpan(phase=Phase.SAVE, offset_ns=S, duration_ns=3 * S),
        ),
    )
    spans = spans_of(event)
    assert [(span.name, span.error) for span in spans] == [
        ("weight_sync", "disk_full"),
        ("weight_sync.rank", "disk_full"),
        ("weight_sync.setup", None),
        ("weight_sync.save", "disk_full"),
    ]


def test_failure_that_nothing_explains() -> None:
    """No cause and no phase: the status still says ERROR, with the cause ``unknown``."""
    spans = spans_of(record(who(), **own(), result=Result.FAILURE, weights_applied=Applied.UNKNOWN))
    assert [span.error for span in spans] == ["unknown", "unknown", None, None, None]


def test_peer_rank() -> None:
    """No root of its own: its rank span hangs under the coordinator's, and no phase of it failed."""
    told = {Attribute.CAUSE: "peer", Attribute.ERROR_TYPE: "RuntimeError", Attribute.ERROR_MESSAGE: "it failed"}
    event = refused(
        1,
        cause=FailureCause.PEER,
        weights_applied=Applied.UNKNOWN,
        failed_phase=None,
        error_type="RuntimeError",
        error_text="it failed",
        exchanges=(),
        decisive=None,
    )
    assert spans_of(event) == (
        of_rank(
            1,
            error="peer",
            attributes=whole(1, **told, **{Attribute.RESULT: "failure", Attribute.WEIGHTS_APPLIED: "unknown"}),
        ),
        *phases(1),
    )


def lost(rank: int, result: Result | None, how: Exit, **start: Any) -> ProcessLost:
    """A trainer vanished in the third second of its sync, in the request."""
    return ProcessLost(
        identity=who(rank),
        at=1_700_000_013.0,
        how=how,
        result=result,
        sync=begun(who(rank), **(own(rank) | start)),
        phases=(
            PhaseSpan(phase=Phase.SETUP, offset_ns=0, duration_ns=S),
            PhaseSpan(phase=Phase.REQUEST, offset_ns=S, duration_ns=2 * S),
        ),
    )


def of_loss(rank: int = 0, **more: Any) -> dict[str, Any]:
    """Attributes of the spans of a sync that was not ended by its process."""
    values = {
        **everybody(rank),
        **ADDRESS,
        Attribute.TRANSPORT: "disk",
        Attribute.RESULT: "failure",
        Attribute.WEIGHTS_APPLIED: "unknown",
        Attribute.UNFINISHED: True,
    }
    return values | more


TOLD_OF_LOSS = {Attribute.CAUSE: "trainer_lost", Attribute.ERROR_TYPE: "trainer_lost"}


def test_lost_coordinator() -> None:
    """Root, rank and phases up to the moment it was last seen; the last phase is the error, and unfinished."""
    all_of_it = {"error": "trainer_lost", "end_ns": T0 + 3 * S, "attributes": of_loss(**TOLD_OF_LOSS)}
    assert spans_of(lost(0, Result.FAILURE, Exit.LOST)) == (
        root(**all_of_it),
        of_rank(**all_of_it),
        phase(0, Phase.SETUP, 0, 1),
        phase(
            1,
            Phase.REQUEST,
            1,
            3,
            error="trainer_lost",
            attributes=everybody() | TOLD_OF_LOSS | {Attribute.UNFINISHED: True},
        ),
    )


def test_lost_rank() -> None:
    """No root: that is the coordinator's, which may live."""
    assert spans_of(lost(1, Result.FAILURE, Exit.LOST)) == (
        of_rank(1, error="trainer_lost", end_ns=T0 + 3 * S, attributes=of_loss(1, **TOLD_OF_LOSS)),
        phase(0, Phase.SETUP, 0, 1, 1),
        phase(
            1,
            Phase.REQUEST,
            1,
            3,
            1,
            error="trainer_lost",
            attributes=everybody(1) | TOLD_OF_LOSS | {Attribute.UNFINISHED: True},
        ),
    )


def test_stop_that_was_asked_for() -> None:
    """Cancelled is no error, on no span; it is unfinished all the same."""
    attributes = of_loss(**{Attribute.RESULT: "cancelled"})
    assert spans_of(lost(0, Result.CANCELLED, Exit.CLEAN)) == (
        root(end_ns=T0 + 3 * S, attributes=attributes),
        of_rank(end_ns=T0 + 3 * S, attributes=attributes),
        phase(0, Phase.SETUP, 0, 1),
        phase(1, Phase.REQUEST, 1, 3, attributes=everybody() | {Attribute.UNFINISHED: True}),
    )


def test_interrupted_record_is_no_error() -> None:
    """Ctrl-C in the request: result, rank and phases say cancelled and no ERROR."""
    cut = update(status_code=None, response_text=None, response_bytes=None, error_type="KeyboardInterrupt")
    spans = spans_of(
        record(who(), **own(), result=Result.CANCELLED, weights_applied=Applied.UNKNOWN, exchanges=(cut,), decisive=0)
    )
    assert [span.error for span in spans if not span.client] == [None] * 5
    assert spans[0].attributes[Attribute.RESULT] == "cancelled"
    assert Attribute.CAUSE not in spans[0].attributes


def test_coordinator_in_a_callers_trace() -> None:
    """All spans are below the caller's; in the trace all ranks derive, root and rank stand in and link back."""
    derived = trace_id(who(), 1)
    there = {"trace_id": CALLER[0]}
    of_root, in_rank = root_span_id(who(), 1), rank_span_id(who(), 1)
    assert spans_of(record(who(), **joined(), exchanges=(update(),), decisive=0)) == (
        root(**there, parent_span_id=CALLER[1], links=((derived, of_root),)),
        of_rank(**there),
        root(links=((CALLER[0], of_root),)),
        of_rank(links=((CALLER[0], in_rank),)),
        *phases(**there),
        request(**there),
    )


def test_peer_in_a_callers_trace() -> None:
    """Its caller is not the coordinator's: it hangs under its own caller, links to the root, and stands in once."""
    derived, in_rank = trace_id(who(1), 1), rank_span_id(who(1), 1)
    assert spans_of(record(who(1), **joined())) == (
        of_rank(1, trace_id=CALLER[0], parent_span_id=CALLER[1], links=((derived, root_span_id(who(), 1)),)),
        of_rank(1, links=((CALLER[0], in_rank),)),
        *phases(1, trace_id=CALLER[0]),
    )


def test_lost_in_a_callers_trace() -> None:
    """What the exporter says of a lost rank is in the caller's trace too, with its stand-in."""
    spans = spans_of(lost(1, Result.FAILURE, Exit.LOST, **joined()))
    assert [(one.name, one.trace_id == CALLER[0], one.parent_span_id) for one in spans] == [
        ("weight_sync.rank", True, CALLER[1]),
        ("weight_sync.rank", False, root_span_id(who(), 1)),
        ("weight_sync.setup", True, rank_span_id(who(1), 1)),
        ("weight_sync.request", True, rank_span_id(who(1), 1)),
    ]


def test_request_outside_of_a_sync() -> None:
    """A CLIENT span of its own trace, linked to the sync before it; without one before, without a link."""
    own_trace, span_id = outside_ids(who(), 3)
    event = RequestRecord(
        identity=who(),
        at=1_700_000_010.0,
        sequence=7,
        trace_id=own_trace,
        span_id=span_id,
        exchange=Exchange(
            method="POST", url=f"http://{SERVER}/generate", status_code=503, response_bytes=4, duration_ns=5
        ),
    )
    expected = Span(
        identity=who(),
        name="POST /generate",
        trace_id=own_trace,
        span_id=span_id,
        parent_span_id=None,
        start_ns=T0,
        end_ns=T0 + 5,
        attributes={
            **everybody(0, 7),
            **ADDRESS,
            Attribute.HTTP_METHOD: "POST",
            Attribute.URL: f"http://{SERVER}/generate",
            Attribute.HTTP_STATUS: 503,
            Attribute.HTTP_RESPONSE_SIZE: 4,
            Attribute.ERROR_TYPE: "503",
        },
        error="503",
        client=True,
        links=((trace_id(who(), 7), root_span_id(who(), 7)),),
    )
    assert spans_of(event) == (expected,)
    first = replace(event, sequence=0, parent_span_id="a" * 16)
    assert spans_of(first) == (
        replace(
            expected,
            links=(),
            parent_span_id="a" * 16,
            attributes=expected.attributes | {Attribute.SEQUENCE: 0},
        ),
    )


def test_other_events_have_no_spans() -> None:
    """Neither a start, nor a phase, nor an end, nor a loss between syncs, nor a remedy that its sync tells of again."""
    events: tuple[Event, ...] = (
        started(who()),
        begun(who()),
        entered(who(), Phase.SAVE),
        ended(who()),
        ProcessLost(identity=who(), at=1.0, how=Exit.LOST),
        TelemetryError(component=Component.LOG, text="x"),
        inspected(who(), fault="cut short"),
        remedied(who(), Action.CONTINUE_STALE),
        resolved(who()),
    )
    assert [spans_of(event) for event in events] == [()] * len(events)


def found_out(**changes: Any) -> Span:
    """What the exporter found out 3 s after a sync of 4 s."""
    attributes: dict[str, Any] = changes.pop("attributes", {})
    values: dict[str, Any] = {
        "trace_id": trace_id(who(), 1),
        "span_id": resolved_span_id(who(), 1, SERVER, "yes"),
        "attributes": {
            **everybody(),
            **ADDRESS,
            Attribute.TRANSPORT: "disk",
            Attribute.CLAIMED: "unknown",
            Attribute.WEIGHTS_APPLIED: "yes",
            Attribute.EVIDENCE: "checksum",
            Attribute.DELAY: 3.0,
            **attributes,
        },
    }
    return Span(
        identity=who(),
        name="weight_sync.resolved",
        parent_span_id=root_span_id(who(), 1),
        start_ns=T0 + 4 * S,
        end_ns=T0 + 7 * S,
        **(values | changes),
    )


def test_applied_after_all() -> None:
    """A span below the sync's, from its end to the look that told; no error."""
    event = resolved(who(), claimed=Applied.UNKNOWN, **own(), ended_at=T0 / S + 4, at=T0 / S + 7)
    assert spans_of(event) == (found_out(),)


def test_not_applied_after_all() -> None:
    """An error, with its cause; another span than that of a later finding."""
    event = resolved(who(), applied=Applied.NO, **own(), ended_at=T0 / S + 4, at=T0 / S + 7)
    told = {Attribute.CLAIMED: "yes", Attribute.WEIGHTS_APPLIED: "no", Attribute.CAUSE: "not_applied"}
    of_no = resolved_span_id(who(), 1, SERVER, "no")
    assert spans_of(event) == (found_out(span_id=of_no, attributes=told, error="not_applied"),)


def test_found_out_in_a_callers_trace() -> None:
    """Below the sync's span there, and in the trace that all ranks derive, with a link back."""
    times = {"ended_at": T0 / S + 4, "at": T0 / S + 7}
    event = resolved(who(), claimed=Applied.UNKNOWN, trace_id=CALLER[0], **times)
    there = found_out(trace_id=CALLER[0])
    assert spans_of(event) == (there, found_out(links=((CALLER[0], there.span_id),)))


# Remedies.


def of_remedy(index: int, action: Action, parent: int, rank: int = 0, **changes: Any) -> Span:
    """What a remedy did in the first half of the second second."""
    values: dict[str, Any] = {
        "name": f"weight_sync.remedy.{action}",
        "span_id": remedy_span_id(who(rank), 1, index),
        "parent_span_id": phase_span_id(who(rank), 1, parent),
        "start_ns": T0 + S,
        "end_ns": T0 + S + S // 2,
        "attributes": everybody(rank) | {Attribute.REMEDY_OUTCOME: "done"},
    }
    return replace(phase(1, Phase.REQUEST, 1, 3, rank), **(values | changes))


def test_remedies_are_under_the_phase_that_they_began_in() -> None:
    """Each with its outcome, and why; after the phases and before the requests."""
    remedies = (
        remedy(Action.TIMEOUT, offset_ns=0, duration_ns=0, detail="600 s for 15 GiB"),
        remedy(Action.VALIDATE, offset_ns=S),
        remedy(Action.RELEASE, offset_ns=3 * S),
    )
    of_timeout = everybody() | {Attribute.REMEDY_OUTCOME: "done", Attribute.REMEDY_DETAIL: "600 s for 15 GiB"}
    assert spans_of(record(who(), **own(), exchanges=(update(),), decisive=0, remedies=remedies)) == (
        root(),
        of_rank(),
        *phases(),
        of_remedy(0, Action.TIMEOUT, 0, start_ns=T0, end_ns=T0, attributes=of_timeout),
        of_remedy(1, Action.VALIDATE, 1),
        of_remedy(2, Action.RELEASE, 2, start_ns=T0 + 3 * S, end_ns=T0 + 3 * S + S // 2),
        request(),
    )


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(Outcome.DONE, None), (Outcome.SKIPPED, None), (Outcome.FAILED, "failed"), (Outcome.REFUSED, "refused")],
)
def test_a_remedy_that_failed_or_refused_is_an_error(outcome: Outcome, error: str | None) -> None:
    """Of its own: the sync went on, and its other spans are none."""
    spans = spans_of(record(who(), **own(), remedies=(remedy(Action.FLUSH, outcome),)))
    attributes = everybody() | {Attribute.REMEDY_OUTCOME: outcome.value}
    assert spans == (root(), of_rank(), *phases(), of_remedy(0, Action.FLUSH, 1, error=error, attributes=attributes))


def test_remedy_of_another_rank_and_in_a_callers_trace() -> None:
    """On the rank that did it, and beside its phases."""
    assert spans_of(record(who(1), **own(1), remedies=(remedy(Action.SERIALIZE),)))[-1] == of_remedy(
        0, Action.SERIALIZE, 1, 1
    )
    [there] = [
        one for one in spans_of(record(who(), **joined(), remedies=(remedy(Action.WAIT),))) if "wait" in one.name
    ]
    assert there == of_remedy(0, Action.WAIT, 1, trace_id=CALLER[0])


def test_a_remedy_that_outlasts_its_phase_keeps_its_times() -> None:
    """A retry sends again in a phase of its own: it is under the one that it began in."""
    [retry] = spans_of(record(who(), **own(), remedies=(remedy(Action.RETRY, duration_ns=3 * S - 1),)))[-1:]
    assert retry == of_remedy(0, Action.RETRY, 1, end_ns=T0 + 4 * S - 1)


# Several requests.


def test_requests_are_under_the_phase_they_were_sent_in() -> None:
    """A check before, an update that was refused, and another that went well: each an own span, the sync no error."""
    exchanges = (
        update(method="GET", url=f"http://{SERVER}/health", offset_ns=0, duration_ns=S // 2, response_text=None),
        update(status_code=500, offset_ns=S, duration_ns=S),
        update(offset_ns=2 * S, duration_ns=S),
    )
    spans = spans_of(record(who(), **own(), exchanges=exchanges, decisive=2, attempts=2))
    assert [
        (span.name, span.span_id, span.parent_span_id, span.error, len(span.events)) for span in spans if span.client
    ] == [
        ("GET /health", request_span_id(who(), 1, 0), phase_span_id(who(), 1, 0), None, 0),
        ("POST /update_weights_from_disk", request_span_id(who(), 1, 1), phase_span_id(who(), 1, 1), "500", 1),
        ("POST /update_weights_from_disk", request_span_id(who(), 1, 2), phase_span_id(who(), 1, 1), None, 1),
    ]
    assert (spans[0].error, spans[0].attributes[Attribute.ATTEMPTS]) == (None, 2)


def test_the_phase_of_the_decisive_request_is_the_error() -> None:
    """Two servers, a phase each: the first refused, so the first request phase is the error, not the second."""
    event = refused(
        phases=(
            PhaseSpan(phase=Phase.REQUEST, offset_ns=0, duration_ns=S),
            PhaseSpan(phase=Phase.OTHER, offset_ns=S, duration_ns=S),
            PhaseSpan(phase=Phase.REQUEST, offset_ns=2 * S, duration_ns=2 * S),
        ),
        exchanges=(
            update(status_code=400, offset_ns=0, duration_ns=S),
            update(url="http://10.0.0.8:30000/update_weights_from_disk", offset_ns=2 * S, duration_ns=S),
        ),
    )
    spans = spans_of(event)
    assert [span.error for span in spans] == ["server_busy"] * 3 + [None, None, "server_busy", None]


@pytest.mark.parametrize("zero", [0, 5])
def test_update_in_no_time_is_under_its_request_phase(zero: int) -> None:
    """A clock that stands still, as a test's does: three phases begin at one moment, the update is in the second."""
    event = record(
        who(),
        **own(),
        duration_ns=zero,
        phases=(
            PhaseSpan(phase=Phase.SETUP, offset_ns=0, duration_ns=zero),
            PhaseSpan(phase=Phase.REQUEST, offset_ns=zero, duration_ns=0),
            PhaseSpan(phase=Phase.OTHER, offset_ns=zero, duration_ns=0),
        ),
        exchanges=(update(offset_ns=zero, duration_ns=0),),
        decisive=0,
    )
    sent = spans_of(event)[-1]
    assert sent.parent_span_id == phase_span_id(who(), 1, 1)


@pytest.mark.parametrize(
    ("url", "name", "server"),
    [
        ("http://[::1", "POST", (None, None)),
        ("http://h:99999/x", "POST /x", ("h", None)),
        ("http://h:port/x", "POST /x", ("h", None)),
        ("", "POST", (None, None)),
        ("/update_weights_from_disk", "POST /update_weights_from_disk", (None, None)),
        ("http://[fe80::7]:30000/update_weights_from_disk", "POST /update_weights_from_disk", ("fe80::7", 30000)),
        ("https://h/generate", "POST /generate", ("h", 443)),
        ("http://h/generate", "POST /generate", ("h", 80)),
    ],
)
def test_urls(url: str, name: str, server: tuple[str | None, int | None]) -> None:
    """A malformed URL costs its parts only; an IPv6 address has no brackets, a port is the scheme's by default."""
    sent = spans_of(record(who(), **own(), exchanges=(update(url=url),), decisive=0))[-1]
    attributes = sent.attributes
    assert (sent.name, attributes[Attribute.URL]) == (name, url)
    assert (attributes.get(Attribute.SERVER_ADDRESS), attributes.get(Attribute.SERVER_PORT)) == server


@pytest.mark.parametrize(
    ("server", "expected"),
    [("[fe80::7]:30000", ("fe80::7", 30000)), (None, (None, None)), ("[::1", (None, None)), ("h:x", ("h", None))],
)
def test_servers(server: str | None, expected: tuple[str | None, int | None]) -> None:
    """The target of the sync, on root and rank."""
    for span in spans_of(record(who(), **own(), target=Target(server=server)))[:2]:
        assert (span.attributes.get(Attribute.SERVER_ADDRESS), span.attributes.get(Attribute.SERVER_PORT)) == expected


# What holds for any sync.


def random_phases(dice: random.Random) -> tuple[PhaseSpan, ...]:
    """Phases one after the other, some of no length."""
    made, offset = [], 0
    for _ in range(dice.randint(1, 9)):
        duration = dice.choice((0, 1, dice.randrange(S)))
        made.append(PhaseSpan(phase=dice.choice(list(Phase)), offset_ns=offset, duration_ns=duration))
        offset += duration
    return tuple(made)


def random_exchange(dice: random.Random, within: PhaseSpan) -> Exchange:
    """A request that begins and ends in one phase."""
    begin = dice.randint(0, within.duration_ns)
    answered = dice.random() < 0.8
    return Exchange(
        method=dice.choice(("GET", "POST", "")),
        url=dice.choice((UPDATE, f"http://{SERVER}/health", "http://[", "x")),
        status_code=dice.choice((200, 400, 503)) if answered else None,
        response_text=dice.choice((None, "", "no")) if answered else None,
        response_bytes=2 if answered else None,
        error_type=None if answered else "ReadTimeout",
        offset_ns=within.offset_ns + begin,
        duration_ns=dice.randint(0, within.duration_ns - begin),
    )


def random_remedies(dice: random.Random, phases: tuple[PhaseSpan, ...]) -> tuple[Remedy, ...]:
    """Each begins and ends in one phase."""
    made = []
    for within in dice.choices(phases, k=dice.randint(0, 3)):
        begin = dice.randint(0, within.duration_ns)
        left = within.duration_ns - begin
        made.append(
            Remedy(
                action=dice.choice(list(Action)),
                outcome=dice.choice(list(Outcome)),
                offset_ns=within.offset_ns + begin,
                duration_ns=dice.randint(0, left),
                detail=dice.choice(("", "why")),
            )
        )
    return tuple(made)


def random_event(dice: random.Random, rank: int, sequence: int) -> SyncRecord | ProcessLost:
    """The end of a sync on one rank, in its own trace or in a caller's, told by its process or by the exporter."""
    parts = random_phases(dice)
    where = joined() if dice.random() < 0.4 else own(rank, sequence)
    at = 1_700_000_000 + dice.random() * 1e6
    if dice.random() < 0.3:
        return ProcessLost(
            identity=who(rank),
            at=at,
            how=Exit.LOST,
            result=dice.choice((Result.FAILURE, Result.CANCELLED)),
            sync=begun(who(rank), sequence, at=at, **where),
            phases=parts,
        )
    result = dice.choice(list(Result))
    exchanges = tuple(random_exchange(dice, dice.choice(parts)) for _ in range(dice.randint(0, 4)))
    return record(
        who(rank),
        sequence,
        at=at,
        **where,
        phases=parts,
        duration_ns=sum(one.duration_ns for one in parts),
        result=result,
        cause=dice.choice(list(FailureCause)) if result is Result.FAILURE else None,
        failed_phase=dice.choice((None, *(one.phase for one in parts))) if result is Result.FAILURE else None,
        weights_applied=dice.choice(list(Applied)),
        exchanges=exchanges,
        decisive=dice.randrange(len(exchanges)) if exchanges else None,
        remedies=random_remedies(random.Random(f"{parts}"), parts),
    )


def check(spans: Iterable[Span]) -> None:
    """Ids are unique, parents exist in the trace, children and events lie in their span's time, phases add up."""
    known = {(span.trace_id, span.span_id): span for span in spans}
    assert len(known) == len(tuple(spans))
    for span in spans:
        assert 0 <= span.start_ns <= span.end_ns
        assert all(span.start_ns <= one.at_ns <= span.end_ns for one in span.events)
        assert all(link in known for link in span.links)
        assert (span.error is not None) or Attribute.CAUSE not in span.attributes
        if span.parent_span_id is None or (span.trace_id, span.parent_span_id) == CALLER:
            continue
        parent = known[span.trace_id, span.parent_span_id]
        assert parent.start_ns <= span.start_ns
        assert span.end_ns <= parent.end_ns
    for (trace, span_id), span in known.items():
        below = sorted(
            (one for one in known.values() if (one.trace_id, one.parent_span_id) == (trace, span_id)),
            key=lambda one: one.start_ns,
        )
        if span.name == "weight_sync.rank" and below:
            assert sum(one.duration_ns for one in below) == span.duration_ns


@pytest.mark.parametrize("seed", range(8))
def test_any_sync_is_a_whole_tree(seed: int) -> None:
    """Random records and losses of a coordinator: one root and one rank in the derived trace, all parents there."""
    dice = random.Random(seed)
    for sequence in range(1, 200):
        event = random_event(dice, 0, sequence)
        spans = spans_of(event)
        check(spans)
        derived = [span for span in spans if span.trace_id == trace_id(who(), sequence)]
        assert [span.name for span in derived if span.parent_span_id is None] == ["weight_sync"]
        assert [span.name for span in derived].count("weight_sync.rank") == 1
        phase_names = {phase_span(one.phase) for one in event.phases}
        assert {span.name for span in spans if span.name in phase_names} == phase_names


def test_ranks_of_one_sync_share_no_span() -> None:
    """Two ranks, each in a trace of its own caller or none: one root, two ranks, and all ids differ."""
    dice = random.Random(9)
    for sequence in range(1, 100):
        spans = [span for rank in (0, 1) for span in spans_of(random_event(dice, rank, sequence))]
        assert len({(span.trace_id, span.span_id) for span in spans}) == len(spans)
        derived = [span for span in spans if span.trace_id == trace_id(who(), sequence)]
        assert sorted(one.name for one in derived if one.name in {"weight_sync", "weight_sync.rank"}) == [
            "weight_sync",
            "weight_sync.rank",
            "weight_sync.rank",
        ]


def test_phases_add_up_to_the_nanosecond() -> None:
    """Wall times are floats; durations are not: nothing is rounded away, even in the year 2286."""
    parts = (
        PhaseSpan(phase=Phase.SETUP, offset_ns=0, duration_ns=1),
        PhaseSpan(phase=Phase.REQUEST, offset_ns=1, duration_ns=10**18 + 7),
        PhaseSpan(phase=Phase.OTHER, offset_ns=10**18 + 8, duration_ns=3),
    )
    spans = spans_of(record(who(), **own(), at=9_999_999_999.123456, phases=parts, duration_ns=10**18 + 11))
    assert [span.duration_ns for span in spans] == [10**18 + 11, 10**18 + 11, 1, 10**18 + 7, 3]
    assert spans[2].end_ns == spans[3].start_ns
    assert spans[4].end_ns == spans[0].end_ns


# From an engine.


class Poster:
    """Posts where it is told to, and says how it went."""

    def __init__(self, url: str, **options: Any) -> None:
        self.base_url, self.http, self.options = url, requests, options

    def update_policy(self, model: Any) -> bool:
        """Push."""
        answer = self.http.post(f"{self.base_url}/update_weights_from_disk?api_key=qu3ry", **self.options)
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.text} at {answer.url}")
        return True


def text_of(spans: Iterable[Span]) -> str:
    """Everything a span says, as one text."""
    return "\n".join(repr(span) for span in spans)


SECRETS = ("s3cr3t", "qu3ry", "b3ar3r", "t0k3n", "admin:")
BODY = b'{"success":false,"message":"no","authorization":"Bearer b3ar3rb3ar3r","api_token":"t0k3n"}'


def test_no_secret_in_any_span() -> None:
    """User, password, query values, bearer tokens and keys are in the URL, the answer and the exception; in no span."""
    traces, events = RecordedTraces(), RecordingSink()
    with Answers((400, BODY)) as server:
        url = server.url.replace("http://", "http://admin:s3cr3t@")
        engine = Poster(url, headers={"Authorization": "Bearer b3ar3rb3ar3r"}, timeout=5)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[traces, events]):
            with pytest.raises(RuntimeError):
                engine.update_policy(None)
    gone = Poster(url, timeout=5)
    with sglang_telemetry.instrument(gone, run="unit", sinks=[traces, events]):
        with pytest.raises(requests.ConnectionError):
            gone.update_policy(None)
    assert len(events.records) == 2
    told = text_of(traces.spans)
    assert [secret for secret in SECRETS if secret in told] == []
    assert "[redacted]" in told


def test_no_secret_in_a_version() -> None:
    """The caller's name for the weights may be an address that they came from."""
    traces = RecordedTraces()
    telemetry = sglang_telemetry.Telemetry(run="unit", sinks=[traces])
    with telemetry, telemetry.sync(version="s3://admin:s3cr3t@store/step-7?token=t0k3n\x1b[31m"):
        pass
    told = text_of(traces.spans)
    assert [secret for secret in (*SECRETS, "x1b") if secret in told] == []


def test_clock_that_is_set_back_in_a_sync() -> None:
    """An hour back in the middle: durations are the monotonic clock's, and every span stays inside its parent."""
    clock, traces = ManualClock(), RecordedTraces()
    telemetry = sglang_telemetry.Telemetry(run="unit", sinks=[traces], clock=clock)
    with telemetry, telemetry.sync() as sync:
        clock.advance(1.0)
        with sync.phase("save"):
            clock.advance(2.0)
            clock.set_wall(clock.wall() - 3600)
        with sync.phase("barrier"):
            clock.advance(4.0)
    check(traces.spans)
    spent = [(span.name, span.duration_ns) for span in traces.spans]
    assert spent == [
        ("weight_sync", 7 * S),
        ("weight_sync.rank", 7 * S),
        ("weight_sync.setup", S),
        ("weight_sync.save", 2 * S),
        ("weight_sync.other", 0),
        ("weight_sync.barrier", 4 * S),
        ("weight_sync.other", 0),
    ]
    assert {span.start_ns for span in traces.spans[:3]} == {1_700_000_000 * S}
