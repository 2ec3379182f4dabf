"""The tree of a failed sync: what a person sees, at several widths, and which sync it is of."""

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.cli.last_failure import last_failure
from sglang_telemetry.cli.tree import MAX_RANKS, print_tree
from sglang_telemetry.events import Exchange, PhaseSpan, PhaseStarted, ProcessEnded, ProcessStarted, Remedy
from sglang_telemetry.journal.folder import make_private
from sglang_telemetry.names import Action, Exit, Outcome, Phase, Result
from sglang_telemetry.sinks.journal import JournalSink
from sglang_telemetry.spans import Span, spans_of
from sglang_telemetry.trace_ids import trace_id
from tests.sinks import SERVER, START, begun, record, remedy, who


def spans_of_rank(rank: int, *, ranks: int = 2, waits: float = 3.5, remedies: tuple[Remedy, ...] = ()) -> list[Span]:
    """A sync in which rank 0 was refused after 3.5 s and the others waited for it."""
    identity = replace(who(rank), world_size=ranks)
    request = Exchange(
        method="POST", url=f"http://{SERVER}/update_weights_from_disk", status_code=400, duration_ns=3_500_000_000
    )
    if rank == 0:
        phases = ((Phase.SETUP, 10**6), (Phase.SAVE, 5 * 10**8), (Phase.REQUEST, 3_500_000_000), (Phase.BARRIER, 10**7))
    else:
        phases = ((Phase.SETUP, 10**6), (Phase.BROADCAST, round(waits * 1e9)), (Phase.BARRIER, 10**7))
    spans, offset = [], 0
    for phase, duration in phases:
        spans.append(PhaseSpan(phase=phase, offset_ns=offset, duration_ns=duration))
        offset += duration
    done = record(
        identity,
        7,
        result=Result.FAILURE,
        coordinator=rank == 0,
        trace_id=trace_id(identity, 7),
        cause=FailureCause.SERVER_BUSY if rank == 0 else FailureCause.PEER,
        failed_phase=Phase.REQUEST if rank == 0 else None,
        phases=tuple(spans),
        duration_ns=offset,
        exchanges=(replace(request, offset_ns=501 * 10**6),) if rank == 0 else (),
        decisive=0 if rank == 0 else None,
        remedies=remedies,
    )
    return list(spans_of(done))


def shown(spans: list[Span], width: int = 100) -> str:
    """The tree as a file would get it."""
    out = io.StringIO()
    print_tree(spans, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_who_waited_for_whom() -> None:
    """Ranks side by side, seconds, bars on one scale, the request with its status, the longest path marked."""
    text = shown(spans_of_rank(0) + spans_of_rank(1))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0].startswith("weight_sync 7 of grpo  server_busy  4.01 s")
    assert lines[1] == f"trace {trace_id(who(0), 7)}"
    assert lines[2:] == [
        "rank 0            4.01  server_busy ◀    rank 1            3.51  peer",
        "├── save          0.50  ━···········     └── broadcast     3.50  ━━━━━━━━━━··",
        "└── request       3.50  ·━━━━━━━━━━━ ◀",
        "    └── POST 400 ◀",
    ]


def test_what_remedies_did() -> None:
    """Below their phase, in the order of time with its request; what went wrong is named, and no phase is too short."""
    remedies = (
        remedy(Action.TIMEOUT, offset_ns=0, duration_ns=0),
        remedy(Action.VALIDATE, offset_ns=101 * 10**6, duration_ns=4 * 10**6),
        remedy(Action.FLUSH, Outcome.FAILED, offset_ns=502 * 10**6, duration_ns=10**9),
        remedy(Action.WAIT, Outcome.SKIPPED, offset_ns=503 * 10**6, duration_ns=0),
    )
    lines = [line.rstrip() for line in shown(spans_of_rank(0, remedies=remedies)).splitlines()]
    assert lines[2:] == [
        "rank 0            4.01  server_busy ◀",
        "├── setup        0.001  ━···········",
        "│   └── timeout 0.000",
        "├── save          0.50  ━···········",
        "│   └── validate 0.004",
        "└── request       3.50  ·━━━━━━━━━━━ ◀",
        "    ├── POST 400 ◀",
        "    ├── flush 1.00 failed",
        "    └── wait 0.000 skipped",
    ]


def test_two_ranks_fit_side_by_side_on_80_columns() -> None:
    """No line is broken, and rank 1 stands beside rank 0."""
    text = shown(spans_of_rank(0) + spans_of_rank(1), width=80)
    [line] = [line for line in text.splitlines() if "rank 0" in line]
    assert "rank 1" in line


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_any_width(width: int) -> None:
    """Nothing is wider than the terminal, and each rank is there."""
    text = shown([span for rank in range(4) for span in spans_of_rank(rank, ranks=4)], width)
    assert max(map(len, text.splitlines())) <= width
    assert [f"rank {rank}" in text for rank in range(4)] == [True] * 4


def test_many_ranks() -> None:
    """The coordinator and the slowest are shown, the others told in one line."""
    text = shown([s for rank in range(64) for s in spans_of_rank(rank, ranks=64, waits=3.0 + rank / 100)])
    assert sum(f"rank {rank} " in text for rank in range(64)) == MAX_RANKS
    assert "rank 0 " in text
    assert "rank 63 " in text
    assert f"and {64 - MAX_RANKS} more ranks, 3.02 to 3.57 s" in text


def test_nothing_to_show() -> None:
    """No output at all."""
    assert shown([]) == ""


def write(folder: Path, rank: int, *syncs: str, launch_id: str = "l", over: bool = True) -> None:
    """A journal: good, failed or open syncs, one after the other."""
    identity = who(rank, pid=1000 + rank)
    sink = JournalSink(folder)
    sink.emit(ProcessStarted(identity=identity, at=START, launch_id=launch_id, coordinator=rank == 0))
    for sequence, kind in enumerate(syncs, start=1):
        at = START + 10 * sequence
        sink.emit(begun(identity, sequence, at=at))
        sink.emit(PhaseStarted(identity=identity, sequence=sequence, phase=Phase.SAVE, offset_ns=10**6))
        if kind == "open":
            break
        failed = kind == "failed"
        result = Result.FAILURE if failed else Result.SUCCESS
        cause = FailureCause.SERVER_ERROR if failed else None
        sink.emit(record(identity, sequence, at=at, result=result, cause=cause, coordinator=rank == 0))
    if over:
        sink.emit(ProcessEnded(identity=identity, at=START + 100, how=Exit.FAILED))
    sink.close()


def seen(spans: tuple[Span, ...]) -> list[tuple[int, int, str | None]]:
    """Rank, sequence and cause of the rank spans."""
    of_ranks = [span for span in spans if span.name == "weight_sync.rank"]
    return sorted(
        (int(one.attributes["weight_sync.rank"]), int(one.attributes["weight_sync.sequence"]), one.error)
        for one in of_ranks
    )


def test_the_last_failed_sync_of_all_ranks(tmp_path: Path) -> None:
    """The newest of the failed, with the ranks that were good in it; other launches are not meant."""
    make_private(tmp_path)
    write(tmp_path, 0, "failed", "good", "failed", "good")
    write(tmp_path, 1, "good", "good", "good", "good")
    write(tmp_path, 2, "failed", "failed", "failed", "failed", launch_id="another")
    assert seen(last_failure(tmp_path, "l", ended_at=START + 50)) == [(0, 3, "server_error"), (1, 3, None)]
    assert last_failure(tmp_path, "nobody", ended_at=START) == ()


def test_a_rank_that_was_killed(tmp_path: Path) -> None:
    """Its open sync is the one that failed; it lasted until those who waited for it went on."""
    make_private(tmp_path)
    write(tmp_path, 0, "good", "open", over=False)
    write(tmp_path, 1, "good", "good")
    write(tmp_path, 2, "good", "open", over=False)
    spans = last_failure(tmp_path, "l", ended_at=START + 50)
    assert seen(spans) == [(0, 2, "trainer_lost"), (1, 2, None), (2, 2, "trainer_lost")]
    assert len({span.end_ns for span in spans if span.name == "weight_sync.rank"}) == 1
    assert [span.name for span in spans if span.attributes.get("weight_sync.unfinished")][-1] == "weight_sync.save"


def test_all_ranks_were_killed(tmp_path: Path) -> None:
    """Nobody is left who could say when: until the command ended."""
    make_private(tmp_path)
    write(tmp_path, 0, "open", over=False)
    [rank] = [s for s in last_failure(tmp_path, "l", ended_at=START + 50) if s.name == "weight_sync.rank"]
    assert rank.duration_ns == 40 * 10**9


def test_a_rank_that_still_lives_is_not_lost(tmp_path: Path) -> None:
    """Its launcher is gone, its lock is held: nothing is said of it."""
    make_private(tmp_path)
    script = (
        "import sys; from pathlib import Path; from sglang_telemetry.journal.format import encode; "
        "from sglang_telemetry.journal.writer import JournalWriter; from tests.sinks import begun, started, who; "
        "writer = JournalWriter(Path(sys.argv[1]), 'grpo-r0'); writer.open_segment(); "
        "writer.write(encode(started(who(0), launch_id='l'))); writer.write(encode(begun(who(0)))); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=os.getcwd()
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert last_failure(tmp_path, "l", ended_at=START + 50) == ()
    finally:
        child.communicate()
    assert seen(last_failure(tmp_path, "l", ended_at=START + 50)) == [(0, 1, "trainer_lost")]


def test_no_failed_sync(tmp_path: Path) -> None:
    """Good syncs, an empty folder, none at all."""
    assert last_failure(tmp_path / "missing", "l", ended_at=START) == ()
    make_private(tmp_path)
    assert last_failure(tmp_path, "l", ended_at=START + 50) == ()
    write(tmp_path, 0, "good")
    assert last_failure(tmp_path, "l", ended_at=START + 50) == ()
