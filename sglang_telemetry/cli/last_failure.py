"""What the journals of a command that has ended say of its last failed sync, also of ranks that were killed in it."""

from pathlib import Path

from sglang_telemetry.cli.launched import trainers
from sglang_telemetry.events import ProcessLost, SyncRecord, SyncStarted
from sglang_telemetry.exporter.follow import Followed
from sglang_telemetry.names import Exit, Result
from sglang_telemetry.spans import Span, spans_of

_SyncKey = tuple[str, str, int]


def last_failure(folder: Path, launch_id: str, *, ended_at: float) -> tuple[Span, ...]:
    """The spans of all ranks of this host in the last sync that failed; none when none did.

    Args:
        folder: The journals.
        launch_id: Whose trainers are meant.
        ended_at: Unix seconds at which their command had ended.
    """
    syncs: dict[_SyncKey, list[SyncRecord]] = {}
    killed: list[tuple[Followed, SyncStarted]] = []
    for trainer in trainers(folder, launch_id):
        known = trainer.known
        for record in trainer.records:
            syncs.setdefault(_key(record), []).append(record)
        if known.sync is not None and not known.over and not trainer.alive:
            killed.append((known, known.sync))
    ended: dict[_SyncKey, list[SyncRecord | ProcessLost]] = {key: [*records] for key, records in syncs.items()}
    for known, sync in killed:
        # When it was killed is not written anywhere, but those who waited for it knew at once.
        others = [record.ended_at for record in syncs.get(_key(sync), ())]
        loss = known.lost(max(others, default=ended_at), Exit.LOST, Result.FAILURE)
        if loss is not None:
            ended.setdefault(_key(sync), []).append(loss)
    failed = [events for events in ended.values() if any(one.result is Result.FAILURE for one in events)]
    latest = max(failed, key=lambda events: max(_started_at(one) for one in events), default=[])
    return tuple(span for event in latest for span in spans_of(event))


def _key(sync: SyncRecord | SyncStarted) -> _SyncKey:
    return (sync.identity.run, sync.identity.run_id, sync.sequence)


def _started_at(event: SyncRecord | ProcessLost) -> float:
    if isinstance(event, SyncRecord):
        return event.started_at
    return event.sync.at if event.sync is not None else 0.0
