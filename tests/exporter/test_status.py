"""The page at ``/``: escaped, and honest about ranks that do not make the same syncs."""

import pytest

from sglang_telemetry.events import Identity, ServerSeen, Target
from sglang_telemetry.exporter.status import RecentFailures, render, servers_of, unlike_ranks
from sglang_telemetry.sinks.tally import ProcessState, Tally, process_key


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
    tally = Tally()
    trainer = process(0, 1, run="<b>")
    trainer.coordinator, trainer.target = True, Target(server="<s>:1")
    tally.processes[process_key(trainer.identity)] = trainer
    tally.add(ServerSeen(server="<s>:1", at=5.0, up=True, version="<v>", current={"<b>": False}))
    page = render(tally, RecentFailures(), folder="/tmp/<i>", now=10.0)
    assert "&lt;b&gt;" in page
    assert "&lt;h&gt;" in page
    assert "/tmp/&lt;i&gt;" in page
    assert "&lt;s&gt;:1" in page
    assert "&lt;v&gt;" in page
    assert "&lt;b&gt;: <span class=bad>no</span>" in page
    assert not [tag for tag in ("<i>", "<b>", "<s>", "<v>") if tag in page]


def test_servers_of_live_runs() -> None:
    """One line a server; what is unknown is said to be."""
    tally = Tally()
    trainer = process(0, 1)
    trainer.coordinator, trainer.target = True, Target(server="s:1")
    tally.processes[process_key(trainer.identity)] = trainer
    tally.add(ServerSeen(server="s:1", at=5.0, up=True, ready=False, restarted=True, current={"r": True}))
    tally.add(ServerSeen(server="nobody's:1", at=5.0, up=True))
    tally.add(ServerSeen(server="s:1", at=8.0, up=False))
    unknown, down = "<span class=quiet>unknown</span>", "<span class=bad>no</span>"
    row = f"<tr><td class=n>s:1<td class=n>{down}<td class=n>{unknown}<td class=n><td class=n>{unknown}<td class=n>1"
    page = render(tally, RecentFailures(), folder="/tmp", now=10.0)
    assert f"{row}<td class=n>2 s ago" in page
    assert "nobody" not in page
    assert servers_of(tally) == {
        "s:1": {"up": False, "ready": None, "version": None, "current": {}, "restarts": 1, "seen_at": 8.0}
    }
