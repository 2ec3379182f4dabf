"""usage: python -m tests.bench"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rich
import torch
from rich.table import Table

import sglang_telemetry
from sglang_telemetry import JournalSink, LogSink
from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    CheckpointInspected,
    Event,
    Exchange,
    Identity,
    PhaseSpan,
    PhaseStarted,
    ProcessStarted,
    SyncRecord,
    SyncStarted,
    Target,
)
from sglang_telemetry.names import Component, Phase, Result
from tests.bench import remedies, traces
from tests.bench.instant import engine
from tests.harness.exporter import ExporterProcess
from tests.harness.minimind import SavableModel
from tests.harness.processes import wait_until

PAIRS = 1500
BIG_PAIRS = 8
RANKS, SYNCS, TRACED = 8, 10_000, 2_000


def progress(text: str) -> None:
    """A long step begins."""
    rich.print(f"[dim]bench: {text} ...[/dim]")


class Looks:
    """A sink that knows how long each look at a checkpoint took, beside the sync."""

    component = Component.JOURNAL

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def emit(self, event: Event) -> None:
        """Keep it."""
        if isinstance(event, CheckpointInspected):
            self.seconds.append(event.seconds)

    def close(self) -> None:
        """Nothing is held."""


def paired(folder: Path, model: SavableModel, pairs: int, **how: Any) -> tuple[float, float, float]:
    """Seconds, as medians: of a bare sync, what observing adds to its neighbour in time, of the look beside it.

    Between two syncs it is waited until the look at the checkpoint is over, as it is while a policy is trained.
    """
    bare, seen, looks = engine(str(folder / "c")), engine(str(folder / "c")), Looks()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        sinks = [LogSink(fmt="json", stream=nowhere), JournalSink(folder / "j"), looks]
        with sglang_telemetry.instrument(seen, run="bench", sinks=sinks, **how):
            took: dict[int, list[float]] = {0: [], 1: []}
            for number in range(2 * pairs):
                which = (number + number // 2) % 2  # bare first, seen first, by turns
                start = time.perf_counter()
                (bare, seen)[which].update_policy(model)
                took[which].append(time.perf_counter() - start)
                if how.get("inspect_checkpoints", True):
                    wait_until(lambda: len(looks.seconds) == len(took[1]), "the look is over")
    added = [b - a for a, b in zip(took[0], took[1], strict=True)]
    look = statistics.median(looks.seconds) if looks.seconds else 0.0
    return statistics.median(took[0]), statistics.median(added), look


def memory(folder: Path) -> dict[str, float]:
    """MiB of a process with torch and requests after 50 syncs, and what observing adds to it; medians of 5 rounds."""
    sizes: dict[str, list[int]] = {"no": [], "yes": []}
    environment = os.environ | {"SGLANG_TELEMETRY_DIR": str(folder / "j"), "PYTHONPATH": os.getcwd()}
    for _ in range(5):
        for observed in sizes:
            done = subprocess.run(
                [sys.executable, "-m", "tests.bench.instant", str(folder / "c"), observed],
                env=environment,
                capture_output=True,
                check=True,
            )
            sizes[observed].append(json.loads(done.stdout)["kib"])
    bare = statistics.median(sizes["no"])
    return {"bare": bare / 1024, "added": (statistics.median(sizes["yes"]) - bare) / 1024}


def fill(folder: Path) -> int:
    """Journals of 8 ranks with 10,000 syncs each; their bytes."""
    for rank in range(RANKS):
        identity = Identity(run="bench", run_id="a" * 32, rank=rank, world_size=RANKS, host="h", pid=1000 + rank)
        sink = JournalSink(folder)
        target = Target(server="127.0.0.1:30000", timeout_seconds=120.0)
        sink.emit(ProcessStarted(identity=identity, at=1.8e9, engine="E", target=target, coordinator=rank == 0))
        spans = tuple(
            PhaseSpan(phase=phase, offset_ns=n * 10**7, duration_ns=10**7)
            for n, phase in enumerate(("setup", "state_dict", "save", "request", "other", "broadcast", "barrier"))
        )
        spans = tuple(PhaseSpan(phase=Phase(s.phase), offset_ns=s.offset_ns, duration_ns=s.duration_ns) for s in spans)
        for number in range(1, SYNCS + 1):
            failed = number % 100 == 0
            at = 1.8e9 + number * 10
            sink.emit(
                SyncStarted(
                    identity=identity, sequence=number, at=at, coordinator=rank == 0, trace_id="b" * 32, target=target
                )
            )
            for span in spans[1:]:
                sink.emit(PhaseStarted(identity=identity, sequence=number, phase=span.phase, offset_ns=span.offset_ns))
            sink.emit(
                SyncRecord(
                    identity=identity,
                    sequence=number,
                    started_at=at,
                    duration_ns=7 * 10**7,
                    phases=spans,
                    result=Result.FAILURE if failed else Result.SUCCESS,
                    cause=FailureCause.SERVER_BUSY if failed else None,
                    coordinator=rank == 0,
                    trace_id="b" * 32,
                    span_id="c" * 16,
                    target=target,
                    exchanges=(Exchange(method="POST", url="http://127.0.0.1:30000/update_weights_from_disk"),),
                    decisive=0,
                )
            )
        sink.close()
    return sum(path.stat().st_size for path in folder.glob("*.jsonl"))


def exporter(folder: Path) -> dict[str, float]:
    """Start, first reading, scrape and memory of an exporter with 8 ranks and 10,000 syncs each."""
    with ExporterProcess(folder / "empty") as empty:
        start = empty.start_seconds
    size = fill(folder / "full")
    with ExporterProcess(folder / "full") as process:
        read = process.start_seconds
        took = []
        for _ in range(30):
            begin = time.perf_counter()
            process.get("/metrics", "application/openmetrics-text")
            took.append(time.perf_counter() - begin)
        status = Path(f"/proc/{process.process.pid}/status").read_text()
        rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    with ExporterProcess(folder / "full") as again:
        restart = again.start_seconds
    return {
        "start": start,
        "read": read,
        "restart": restart,
        "scrape": statistics.median(took),
        "rss": rss / 1024,
        "mib": size / 2**20,
    }


def main() -> None:
    """Measure and show."""
    torch.set_num_threads(1)
    table = Table("what", "measured", "target", "", title="cost of observing")

    def row(what: str, value: float, unit: str, target: float) -> None:
        table.add_row(what, f"{value:.3g} {unit}", f"{target:g} {unit} or less", "ok" if value <= target else "OVER")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        progress(f"{PAIRS} pairs of small syncs")
        small, added, look = paired(folder / "small", SavableModel(), PAIRS)
        _, alone, _ = paired(folder / "alone", SavableModel(), PAIRS, inspect_checkpoints=False)
        _, tagged, _ = paired(folder / "tagged", SavableModel(), PAIRS, inspect_checkpoints=False, tag_weights=True)
        row(f"added to a sync (bare: {small * 1e6:.0f} µs)", added * 1e6, "µs", 500)
        row("the same without the look at the checkpoint", alone * 1e6, "µs", 250)
        row("what tag_weights adds to that", (tagged - alone) * 1e6, "µs", 50)
        progress(f"{BIG_PAIRS} pairs of syncs of a 64 M parameter model")
        big, _, big_look = paired(folder / "big", SavableModel(width=2000, layers=16), BIG_PAIRS)
        row(f"share of a sync of 64 M parameters (bare: {big * 1e3:.0f} ms)", 100 * added / big, "%", 0.5)
        looked = f"{look * 1e3:.2g} ms small, {big_look * 1e3:.2g} ms with 64 M parameters"
        table.add_row("the look, in a thread beside the sync", looked, "", "")
        progress("what each remedy adds to a good sync, small and of 64 M parameters")
        for name, wanted in remedies.REMEDIES.items():
            _, little = remedies.cost(folder / f"{name}-small", wanted, SavableModel(), PAIRS // 10)
            whole, much = remedies.cost(folder / f"{name}-big", wanted, SavableModel(width=2000, layers=16), BIG_PAIRS)
            said = f"{little * 1e3:.2f} ms small, {much * 1e3:.1f} ms ({100 * much / whole:.1f} %) with 64 M parameters"
            table.add_row(f"added by {name}", said, "", "")
        progress("memory of 10 trainer processes")
        more = memory(folder / "memory")
        row(
            f"memory added to a trainer, half of it rich, which structlog imports (bare: {more['bare']:.0f} MiB)",
            more["added"],
            "MiB",
            8,
        )
        progress(f"an exporter with {RANKS} ranks and {SYNCS:,} syncs each")
        cost = exporter(folder)
        row("exporter start", cost["start"], "s", 0.5)
        row(f"exporter memory after reading {cost['mib']:.0f} MiB", cost["rss"], "MiB", 60)
        row("scrape", cost["scrape"] * 1e3, "ms", 100)
        row("exporter restart on the same journals", cost["restart"], "s", 0.5)
        table.add_row("first reading of those journals", f"{cost['read']:.3g} s", "", "")
        progress(f"traces: {TRACED:,} syncs to a collector, {SYNCS:,} without one")
        spans = traces.throughput(folder / "sent", TRACED)
        table.add_row("spans from journal to collector, which shares the machine", f"{spans:,.0f} a second", "", "")
        quarter, whole, queue = traces.down(folder / "down", SYNCS)
        row(
            f"exporter memory while the collector is down, {SYNCS:,} syncs over {SYNCS // 4:,}",
            whole / quarter,
            "x",
            1.1,
        )
        counted = f"{queue['waiting']:,} wait, {queue['dropped']:,} dropped and counted"
        table.add_row("its spans then", counted, "", "")
        row("its end then", traces.end_of(folder / "end"), "s", 2)
    rich.print(table)
    print(f"bench ok: added_us={added * 1e6:.0f} share_percent={100 * added / big:.3f} memory_mib={more['added']:.1f}")


if __name__ == "__main__":
    main()
