"""The page at ``/``: escaped, and honest about ranks that do not make the same syncs."""

import pytest

from sglang_telemetry.events import Identity
from sglang_telemetry.exporter.status import RecentFailures, render, unlike_ranks
from sglang_telemetry.sinks.tally import ProcessState


def process(rank: int, sequence: int | None, *, alive: bool = True, run: str = "r") -> ProcessState:
    identity = Identity(run=run, run_id="one", rank=rank, world_size=3, host="<h>", pid=rank + 1)
    return ProcessState(identity=identity, started_at=0.0, alive=alive, sequence=sequence)


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        ([5, 5, 5], []),
        ([6, 5, 5], []),
        ([7, 5, None], ["rank 0: 7, rank 1: 5"]),
    ],
)
def test_ranks_that_make_other_numbers_of_syncs(sequences: list[int | None], expected: list[str]) -> None:
    """Two apart is no sync that has just begun: said, with who is where."""
    lines = unlike_ranks(process(rank, sequence) for rank, sequence in enumerate(sequences))
    assert [line.rpartition("compared: ")[2] for line in lines] == expected


def test_dead_ranks_are_not_compared() -> None:
    """A rank that ended stays where it was."""
    assert unlike_ranks([process(0, 9), process(1, 2, alive=False)]) == []


def test_page_escapes_what_came_from_outside() -> None:
    """Run, host and folder are data."""
    page = render([process(0, 1, run="<b>")], RecentFailures(), folder="/tmp/<i>", now=10.0)
    assert "&lt;b&gt;" in page
    assert "&lt;h&gt;" in page
    assert "/tmp/&lt;i&gt;" in page
    assert "<i>" not in page
