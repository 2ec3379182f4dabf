"""A look at the checkpoint folder: sizes after each sync, and after a failure whether the files are whole."""

import os
from collections.abc import Collection, Iterable, Mapping

from sglang_telemetry.checkpoint.choice import WEIGHTS
from sglang_telemetry.checkpoint.errors import Faulty, line, of_os_error
from sglang_telemetry.checkpoint.filesystem import facts_of
from sglang_telemetry.checkpoint.headers import TensorSpec
from sglang_telemetry.checkpoint.validate import fault_of
from sglang_telemetry.events import Checkpoint
from sglang_telemetry.text import clean


def look(
    path: str | os.PathLike[str],
    *,
    deep: bool = False,
    expected: Mapping[str, TensorSpec] | None = None,
    ties: Iterable[Collection[str]] = (),
) -> Checkpoint:
    """Look at a checkpoint folder.

    What fails on our side is no fault of the checkpoint: then nothing is known of it, and ``fault`` is None.

    Args:
        path: The folder.
        deep: Also look for what is wrong: missing, cut or broken files, and tensors that are not the model's.
        expected: The model's tensors, None when they are not known.
        ties: Groups of the model's names that share their storage; one of each group is enough.
    """
    folder = os.path.abspath(path)
    files: int | None = None
    total: int | None = None
    fault: str | None = None
    try:
        files, total = _count(folder)
        fault = fault_of(folder, expected=expected, ties=ties) if deep else None
    except OSError as error:
        found = of_os_error(error)
        fault = line(str(found)) if isinstance(found, Faulty) else None
    except Exception:  # a mistake of ours is not worth the record it is for, and must not look like a fault
        fault = None
    facts = facts_of(folder)
    return Checkpoint(
        path=clean(folder),
        files=files,
        bytes=total,
        free_bytes=facts.free_bytes,
        free_inodes=facts.free_inodes,
        read_only=facts.read_only,
        fs_type=facts.fs_type,
        fault=fault,
    )


def _count(folder: str) -> tuple[int, int]:
    """Number of weight files, and the size of all files."""
    files = total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.is_file():
                    total += entry.stat().st_size
                    files += entry.name.endswith(WEIGHTS)
            except FileNotFoundError:  # a temporary file that has its own name by now
                continue
    return files, total
