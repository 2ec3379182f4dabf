"""Trainings of real torch ranks, started by torchrun: the command, its environment, and what it wrote."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sglang_telemetry.events import Event, ProcessStarted, SyncRecord
from sglang_telemetry.journal.reader import SegmentReader

ROOT = Path(__file__).parents[2]
_STANDALONE = ("--standalone",)


def command(*arguments: str, ranks: int = 2, rendezvous: Sequence[str] = _STANDALONE) -> list[str]:
    """torchrun with so many ranks on this host; ``rendezvous`` are its options of where they meet."""
    torchrun = ("-m", "torch.distributed.run", *rendezvous, "--nproc_per_node", str(ranks))
    return [sys.executable, *torchrun, str(ROOT / "tests/harness/ranks.py"), *arguments]


@contextmanager
def training(
    journals: Path,
    *arguments: str,
    ranks: int = 2,
    rendezvous: Sequence[str] = _STANDALONE,
    prefix: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    log: str = "training.log",
) -> Iterator[subprocess.Popen[bytes]]:
    """A training that runs until the block is left.

    Args:
        journals: Folder of the journals; the log is beside it.
        arguments: Of ``ranks.py``.
        ranks: On this host.
        rendezvous: Options of torchrun.
        prefix: Command that the training is started with, such as ``ip netns exec NAME``.
        environment: More variables.
        log: Name of the file that takes what it prints.
    """
    variables = os.environ | {
        "SGLANG_TELEMETRY_DIR": str(journals),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    started = [*prefix, *command(*arguments, ranks=ranks, rendezvous=rendezvous)]
    with (journals.parent / log).open("wb") as output:
        process = subprocess.Popen(started, env=variables | (environment or {}), stdout=output, stderr=output)
        try:
            yield process
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, which torchrun passes on; when that is not enough, SIGKILL for it and its workers."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        process.wait(10)
        for pid in map(int, workers):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise


def ended(process: subprocess.Popen[bytes], tmp_path: Path, log: str = "training.log", *, seconds: float = 60.0) -> int:
    """Exit code of a training; what it printed is shown when the test fails."""
    code = process.wait(seconds)
    print((tmp_path / log).read_text(errors="replace")[-4000:])
    return code


def events(journals: Path) -> list[Event]:
    """All that the trainers of that folder have written; a line that cannot be read fails the test."""
    found: list[Event] = []
    for path in sorted(journals.glob("ranks-*.jsonl")):
        reader = SegmentReader(path)
        found += reader.events()
        assert reader.bad_lines == 0
        reader.close()
    return found


def records(journals: Path) -> list[SyncRecord]:
    """All syncs that have ended."""
    return [event for event in events(journals) if isinstance(event, SyncRecord)]


def pids(journals: Path) -> dict[int, int]:
    """Process id of each rank that has started."""
    return {event.identity.rank: event.identity.pid for event in events(journals) if isinstance(event, ProcessStarted)}
