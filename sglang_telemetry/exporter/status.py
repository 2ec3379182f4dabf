"""The page at ``/``: trainers, their servers, the last failures with their evidence, and what was found out later."""

import html
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeGuard

from sglang_telemetry.events import CheckpointInspected, Event, ProcessLost, ServerSeen, SyncRecord, SyncResolved
from sglang_telemetry.names import Applied, Component, Result
from sglang_telemetry.sinks.process_state import ProcessState
from sglang_telemetry.sinks.tally import Tally

LateFinding = SyncResolved | CheckpointInspected
_KEPT = 20
_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:1.5rem;max-width:80rem;color:#1b1b1b}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem;width:100%}"
    "th,td{text-align:left;padding:.3rem .7rem;border-bottom:1px solid #ddd;vertical-align:top}"
    "td.n{font-variant-numeric:tabular-nums}code,pre{font-size:13px;white-space:pre-wrap;word-break:break-word}"
    ".bad{color:#a40000;font-weight:600}.quiet{color:#666}"
)


class RecentNews:
    """A sink that remembers for the status page the last failures, and what was not as a sync had said."""

    component = Component.EXPORTER

    def __init__(self) -> None:
        self._failures: deque[SyncRecord] = deque(maxlen=_KEPT)
        self._lost: deque[ProcessLost] = deque(maxlen=_KEPT)
        self._findings: deque[LateFinding] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        """Remember the event if it is a failure that counts."""
        with self._lock:
            if isinstance(event, SyncRecord) and event.coordinator and event.result is Result.FAILURE:
                self._failures.appendleft(event)
            elif isinstance(event, ProcessLost) and event.result is Result.FAILURE:
                self._lost.appendleft(event)
            elif _is_news(event):
                self._findings.appendleft(event)

    def close(self) -> None:
        """Nothing is held."""

    def lists(self) -> tuple[list[SyncRecord], list[ProcessLost], list[LateFinding]]:
        """Failed syncs, lost processes and findings, the newest first."""
        with self._lock:
            return list(self._failures), list(self._lost), list(self._findings)


def render(tally: Tally, recent: RecentNews, *, folder: str, now: float) -> str:
    """The page as HTML; every text from outside is escaped."""
    failures, lost, findings = recent.lists()
    rows = sorted(tally.processes.values(), key=lambda one: (one.identity.run, one.alive is False, one.identity.rank))
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>sglang-telemetry</title><style>{_STYLE}</style><h1>sglang-telemetry exporter</h1>",
        f"<p class=quiet>Journals of <code>{html.escape(folder)}</code> &middot; <a href=/metrics>/metrics</a>"
        " &middot; <a href=/healthz>/healthz</a></p><h2>Trainer processes</h2>",
        _table(
            ("run", "rank", "host", "pid", "state", "sync", "busy with", "last result"),
            [_process(one, now) for one in rows],
            "No trainer has written a journal here yet.",
        ),
        *(f"<p class=bad>{html.escape(line)}</p>" for line in unlike_ranks(rows)),
        "<h2>Servers of live runs</h2>",
        _table(
            (
                "server",
                "up",
                "ready",
                "SGLang",
                "runs the last synced weights",
                "confirmed",
                "restarts seen",
                "looked at",
            ),
            [_server(one, tally.restarts(server), now) for server, one in tally.live_servers().items()],
            "None was looked at: no run is live, or looking is switched off.",
        ),
        "<h2>Last failed syncs</h2>",
        _table(
            ("when", "run", "sync", "server", "cause", "applied", "what was said", "trace"),
            [_failure(one, now) for one in failures],
            "None since this exporter started.",
        ),
    ]
    if findings:
        parts += [
            "<h2>Found out after the sync</h2>",
            _table(
                ("when", "run", "sync", "server", "what", "seen in", "trace"),
                [_finding(one, now) for one in findings],
                "",
            ),
        ]
    if lost:
        parts += [
            "<h2>Trainers lost inside a sync</h2>",
            _table(("when", "run", "rank", "host", "pid"), [_loss(one, now) for one in lost], ""),
        ]
    return "".join(parts)


def servers_of(tally: Tally) -> dict[str, Any]:
    """What was seen last of the servers of live runs, as ``/healthz`` says it."""
    return {
        server: {
            "up": seen.up,
            "ready": seen.ready,
            "version": seen.version,
            "current": dict(seen.current),
            "confirmed": dict(seen.confirmed),
            "restarts": tally.restarts(server),
            "seen_at": seen.at,
        }
        for server, seen in tally.live_servers().items()
    }


def unlike_ranks(processes: Iterable[ProcessState]) -> list[str]:
    """Starts whose living ranks have made different numbers of syncs: their sequences are not the same syncs.

    A difference of one is a sync that some ranks have begun and others have not yet.
    """
    sequences: dict[tuple[str, str], dict[int, int]] = {}
    for one in processes:
        if one.alive is not False and one.sequence is not None:
            sequences.setdefault((one.identity.run, one.identity.run_id), {})[one.identity.rank] = one.sequence
    return [
        f"{run}: ranks have made different numbers of syncs, so that they cannot be compared: "
        + ", ".join(f"rank {rank}: {sequence}" for rank, sequence in sorted(of_rank.items()))
        for (run, _), of_rank in sorted(sequences.items())
        if max(of_rank.values()) - min(of_rank.values()) > 1
    ]


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]], empty: str) -> str:
    if not rows:
        return f"<p class=quiet>{empty}</p>"
    head = "".join(f"<th>{name}" for name in heads)
    body = "".join("<tr>" + "".join(f"<td class=n>{cell}" for cell in row) for row in rows)
    return f"<table><tr>{head}{body}</table>"


def _process(one: ProcessState, now: float) -> tuple[str, ...]:
    who = one.identity
    if one.alive is False:
        state = f"<span class={'quiet' if one.how == 'clean' else 'bad'}>{one.how} {_ago(one.ended_at, now)}</span>"
    else:
        state = "alive" if one.alive else "cannot be known"
    busy = f"<b>{one.phase}</b> for {_span(now - one.phase_at)}" if one.active and one.phase_at is not None else ""
    return (
        html.escape(who.run),
        f"{who.rank} of {who.world_size}",
        html.escape(who.host),
        str(who.pid),
        state,
        "" if one.sequence is None else str(one.sequence),
        busy,
        f"<span class={'bad' if one.last_result == 'failure' else ''}>{one.last_result or ''}</span>",
    )


def _server(one: ServerSeen, restarts: int, now: float) -> tuple[str, ...]:
    current = (f"{html.escape(run)}: {_yes(value)}" for run, value in sorted(one.current.items()))
    confirmed = (f"{html.escape(run)}: sync {sequence}" for run, sequence in sorted(one.confirmed.items()))
    return (
        html.escape(one.server),
        _yes(one.up),
        _yes(one.ready),
        html.escape(one.version or ""),
        "<br>".join(current) or _yes(None),
        "<br>".join(confirmed) or "<span class=quiet>none yet</span>",
        str(restarts),
        _ago(one.at, now),
    )


def _yes(value: bool | None) -> str:
    if value is None:
        return "<span class=quiet>unknown</span>"
    return "yes" if value else "<span class=bad>no</span>"


def _failure(one: SyncRecord, now: float) -> tuple[str, ...]:
    said = (one.exchange.response_text if one.exchange else None) or one.error_text or ""
    status = f"HTTP {one.exchange.status_code}: " if one.exchange and one.exchange.status_code else ""
    hint = one.cause.hint if one.cause else ""
    return (
        _ago(one.ended_at, now),
        html.escape(one.identity.run),
        str(one.sequence),
        html.escape(one.target.server or ""),
        f"<span class=bad>{one.cause}</span>",
        one.weights_applied.value,
        f"<code>{html.escape(status + said[:600])}</code><br>First: {html.escape(hint)}",
        f"<code>{one.trace_id[:16]}</code>",
    )


def _is_news(event: Event) -> TypeGuard[LateFinding]:
    if isinstance(event, CheckpointInspected):
        return event.mixed or event.unchanged
    return isinstance(event, SyncResolved) and event.applied is not event.claimed


def _finding(one: LateFinding, now: float) -> tuple[str, ...]:
    if isinstance(one, SyncResolved):
        refuted, seen = one.claimed is Applied.YES, one.shown
        what = (
            f"weights applied: {one.applied}, told as {one.claimed}; "
            f"known by {one.evidence} {_span(one.delay_seconds)} after its end"
        )
    elif one.mixed:
        refuted, what, seen = True, f"taken although it was not whole: {one.fault}", one.path
    else:
        refuted, what, seen = True, "the same content as the sync before", one.path
    return (
        _ago(one.at, now),
        html.escape(one.identity.run),
        str(one.sequence),
        html.escape(one.target.server or ""),
        f"<span class={'bad' if refuted else ''}>{html.escape(what)}</span>",
        f"<code>{html.escape(seen)}</code>",
        f"<code>{one.trace_id[:16]}</code>",
    )


def _loss(one: ProcessLost, now: float) -> tuple[str, ...]:
    who = one.identity
    return (_ago(one.at, now), html.escape(who.run), str(who.rank), html.escape(who.host), str(who.pid))


def _ago(at: float | None, now: float) -> str:
    return "" if at is None else f"{_span(now - at)} ago"


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
