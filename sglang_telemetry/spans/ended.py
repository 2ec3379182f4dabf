"""The end of a sync, as spans need it: told by its process, or by the exporter when the process is gone."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import Exchange, Identity, PhaseSpan, ProcessLost, Remedy, SyncRecord, SyncStarted
from sglang_telemetry.names import Applied, Attribute, Phase, Result
from sglang_telemetry.spans.placing import phase_of
from sglang_telemetry.spans.span import Attributes, Value, known, server_attributes, unix_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a record and a loss have in common."""

    identity: Identity
    sequence: int
    coordinator: bool
    trace_id: str
    parent_span_id: str | None
    start_ns: int
    phases: tuple[PhaseSpan, ...]
    attributes: Attributes
    error: str | None
    error_attributes: Attributes
    failed_phase: int | None
    unfinished: bool = False
    exchanges: Mapping[int, Exchange] = field(default_factory=dict)
    decisive: int | None = None
    remedies: tuple[Remedy, ...] = ()


def of_record(record: SyncRecord) -> Ended:
    """As its process told it."""
    failed = record.result is Result.FAILURE
    error = (record.cause or FailureCause.UNKNOWN).value if failed else None
    entered = [index for index, span in enumerate(record.phases) if span.phase is record.failed_phase]
    if record.exchange is not None and record.failed_phase is Phase.REQUEST:
        entered.append(phase_of(record.phases, record.exchange))
    payload = record.checkpoint.bytes if record.checkpoint is not None else None
    return Ended(
        identity=record.identity,
        sequence=record.sequence,
        coordinator=record.coordinator,
        trace_id=record.trace_id,
        parent_span_id=record.parent_span_id,
        start_ns=unix_ns(record.started_at),
        phases=record.phases,
        attributes=known(
            {
                **_target(record),
                Attribute.RESULT: record.result.value,
                Attribute.WEIGHTS_APPLIED: record.weights_applied.value,
                Attribute.ATTEMPTS: record.attempts,
                Attribute.PAYLOAD_BYTES: payload,
            }
        ),
        error=error,
        error_attributes=known(
            {
                Attribute.CAUSE: error,
                Attribute.ERROR_TYPE: record.error_type,
                Attribute.ERROR_MESSAGE: record.error_text,
            }
        ),
        failed_phase=entered[-1] if failed and entered else None,
        exchanges=dict(enumerate(record.exchanges)),
        decisive=record.decisive,
        remedies=record.remedies,
    )


def of_loss(loss: ProcessLost, sync: SyncStarted) -> Ended:
    """As the exporter tells it; what remedies did in it is not said again."""
    failed = loss.result is Result.FAILURE
    cause = FailureCause.TRAINER_LOST.value
    return Ended(
        identity=sync.identity,
        sequence=sync.sequence,
        coordinator=sync.coordinator,
        trace_id=sync.trace_id,
        parent_span_id=sync.parent_span_id,
        start_ns=unix_ns(sync.at),
        phases=loss.phases,
        attributes=known(
            {
                **_target(sync),
                Attribute.UNFINISHED: True,
                Attribute.RESULT: (loss.result or Result.CANCELLED).value,
                Attribute.WEIGHTS_APPLIED: Applied.UNKNOWN.value,
            }
        ),
        error=cause if failed else None,
        error_attributes={Attribute.CAUSE: cause, Attribute.ERROR_TYPE: cause} if failed else {},
        failed_phase=len(loss.phases) - 1 if failed and loss.phases else None,
        unfinished=True,
        exchanges={} if loss.exchange is None else {loss.exchange_index: loss.exchange},
        decisive=None if loss.exchange is None else loss.exchange_index,
    )


def _target(sync: SyncRecord | SyncStarted) -> dict[str, Value | None]:
    return {Attribute.VERSION: sync.version, **server_attributes(sync.target)}
