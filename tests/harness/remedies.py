"""What remedies do in a sync of simulated time: as much of each as a metric or a dashboard tells apart."""

from collections.abc import Iterator, Sequence

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import PhaseSpan, Remedied, Remedy, SyncRecord
from sglang_telemetry.names import Action, Outcome, Phase

WAITED = 5_000_000_000
"""Nanoseconds for which a retry waits for a busy server, in vain."""
_CHECKED, _RENAMED = 40_000_000, 3_000_000


def in_sync(names: Sequence[str], phases: Sequence[PhaseSpan], cause: FailureCause | None) -> Iterator[Remedy]:
    """What these do in one sync of the coordinator, in the order of time.

    Args:
        names: The remedies that were asked for.
        phases: Of the sync, with a save and a request.
        cause: Why it failed.
    """
    of = {span.phase: span for span in phases}
    saved = of[Phase.SAVE].offset_ns + of[Phase.SAVE].duration_ns
    answered = of[Phase.REQUEST].offset_ns + of[Phase.REQUEST].duration_ns
    if "timeout" in names:
        yield Remedy(action=Action.TIMEOUT, outcome=Outcome.DONE, offset_ns=0, duration_ns=0)
    if "validate" in names:
        began = saved - _CHECKED - _RENAMED
        yield Remedy(action=Action.VALIDATE, outcome=Outcome.DONE, offset_ns=began, duration_ns=_CHECKED)
    if "publish_atomically" in names:
        began = saved - _RENAMED
        yield Remedy(action=Action.PUBLISH, outcome=Outcome.DONE, offset_ns=began, duration_ns=_RENAMED)
    if "retry" in names and cause is FailureCause.SERVER_BUSY:
        began = answered - WAITED
        yield Remedy(action=Action.FLUSH, outcome=Outcome.FAILED, offset_ns=began, duration_ns=WAITED)


def after(names: Sequence[str], record: SyncRecord) -> Iterator[Remedy]:
    """What these do when a sync is over, and its record was told."""
    if "on_failure" in names and record.cause is not None:
        stale = Action.CONTINUE_STALE
        yield Remedy(action=stale, outcome=Outcome.DONE, offset_ns=record.duration_ns, duration_ns=0)


def told(record: SyncRecord, remedies: Sequence[Remedy]) -> Iterator[tuple[float, Remedied]]:
    """Each at once, with the Unix time at which it was over."""
    for remedy in remedies:
        at = record.started_at + (remedy.offset_ns + remedy.duration_ns) / 1e9
        yield (
            at,
            Remedied(
                identity=record.identity,
                sequence=record.sequence,
                at=at,
                trace_id=record.trace_id,
                target=record.target,
                remedy=remedy,
            ),
        )
