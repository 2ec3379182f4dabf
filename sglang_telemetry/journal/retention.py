"""Which journal files may go: only those that no process writes and, for an exporter, that it has counted.

A trainer without an exporter removes what was abandoned for a week, so that a temporary folder does not fill up;
everything else is the exporter's, which keeps the counts of what it removes.
"""

import os
from itertools import groupby
from pathlib import Path

from sglang_telemetry.journal.format import SUFFIX
from sglang_telemetry.journal.lock import is_held_on

ABANDONED_SECONDS = 7 * 24 * 3600.0


def segments(folder: Path) -> list[Path]:
    """All journal segments of the folder, the segments of one process in their order; empty when it is not there."""
    try:
        with os.scandir(folder) as entries:
            # Plain files only: opening a FIFO would wait for its writer, and a link leads out of the folder.
            names = [e.name for e in entries if e.name.endswith(SUFFIX) and e.is_file(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]


def stem_of(segment: Path) -> str:
    """What the segments of one process have in common."""
    return segment.name.removesuffix(SUFFIX).rpartition(".")[0]


def prune_abandoned(folder: Path, *, now: float, older_than_seconds: float = ABANDONED_SECONDS) -> list[Path]:
    """Remove journals that nobody has written for long and whose process is gone.

    Returns:
        What was removed.
    """
    removed = []
    for _, of_process in groupby(segments(folder), key=stem_of):
        *older, last = of_process
        try:
            if now - last.stat().st_mtime >= older_than_seconds and is_held_on(last) is False:
                for path in (*older, last):
                    path.unlink()
                    removed.append(path)
        except OSError:
            continue
    return removed
