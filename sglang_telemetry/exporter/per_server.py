"""One sync that went to several servers, as one record for each of them: each may have taken it or not."""

from collections.abc import Iterator
from dataclasses import replace

from sglang_telemetry.events import SyncRecord
from sglang_telemetry.names import UPDATE_ROUTE, Applied, Result
from sglang_telemetry.text import server_of


def of_each_server(record: SyncRecord) -> Iterator[tuple[str | None, SyncRecord]]:
    """The record for each server that an update of the sync went to, with the URL below which its routes stand.

    The record itself is of one of them, the target; of the others the last update that went there decides.
    """
    sent_to: dict[str, tuple[str, int]] = {}
    for index, exchange in enumerate(record.exchanges):
        base, route, _ = exchange.url.rpartition(UPDATE_ROUTE)
        place = server_of(exchange.url) if route else None
        if place is not None:
            sent_to[place] = base, index
    target = record.target.server
    of_target = sent_to.pop(target, None) if target is not None else None
    yield (of_target[0] if of_target is not None else None), record
    for server, (base, index) in sent_to.items():
        applied = record.exchanges[index].weights_applied or Applied.UNKNOWN
        yield (
            base,
            replace(
                record,
                target=replace(record.target, server=server),
                decisive=index,
                weights_applied=applied,
                result=Result.SUCCESS if applied is Applied.YES else record.result,
            ),
        )
