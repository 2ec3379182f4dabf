"""The page at ``/``: escaped, and honest about ranks that do not make the same syncs."""

import pytest

from sglang_telemetry.events import Event, Identity, ServerSeen, Target
from sglang_telemetry.exporter.status import RecentNews, render, servers_of, unlike_ranks
from sglang_telemetry.names import Applied, Result
from sglang_telemetry.sinks.process_state import ProcessState, process_key
from sglang_telemetry.sinks.tally import Tally
from tests.sinks import SERVER, START, inspected, resolved, seen, started, who


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
    page = render(tally, RecentNews(), folder="/tmp/<i>", now=10.0)
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
    none = "<span class=quiet>none yet</span>"
    cells = ("s:1", down, unknown, "", unknown, none, "1", "2 s ago")
    row = "<tr>" + "".join(f"<td class=n>{cell}" for cell in cells)
    page = render(tally, RecentNews(), folder="/tmp", now=10.0)
    assert row in page
    assert "nobody" not in page
    assert servers_of(tally) == {
        "s:1": {
            "up": False,
            "ready": None,
            "version": None,
            "current": {},
            "confirmed": {},
            "restarts": 1,
            "seen_at": 8.0,
        }
    }


def page_with(*events: Event) -> str:
    """The page after these events."""
    tally, recent = Tally(), RecentNews()
    for event in events:
        tally.add(event)
        recent.emit(event)
    return render(tally, recent, folder="/tmp", now=START + 60)


def test_last_sync_that_a_server_was_seen_to_run() -> None:
    """By run."""
    page = page_with(started(who(0)), seen(current={"grpo": True}, confirmed={"grpo": 7}, confirmed_of={"grpo": "one"}))
    assert "<td class=n>grpo: yes<td class=n>grpo: sync 7<td" in page


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (
            resolved(who(0), claimed=Applied.UNKNOWN),
            "weights applied: yes, told as unknown; known by checksum 3 s after its end",
        ),
        (
            resolved(who(0), applied=Applied.NO),
            "<span class=bad>weights applied: no, told as yes; known by checksum 3 s after its end",
        ),
        (
            inspected(who(0), fault="<f> is missing", incomplete=True),
            "<span class=bad>taken although it was not whole: &lt;f&gt; is missing",
        ),
        (
            inspected(who(0), same=True),
            "<span class=bad>the same content as the sync before",
        ),
    ],
)
def test_what_was_found_out_after_a_sync(event: Event, what: str) -> None:
    """In words, with run, sync and server."""
    page = page_with(started(who(0)), event)
    assert "<h2>Found out after the sync</h2>" in page
    assert what in page
    assert f"<td class=n>grpo<td class=n>1<td class=n>{SERVER}" in page


@pytest.mark.parametrize(
    "event",
    [
        resolved(who(0)),
        inspected(who(0)),
        inspected(who(0), same=True, trained=False),
        inspected(who(0), fault="cut short", result=Result.FAILURE),
    ],
)
def test_what_is_as_the_sync_had_said_is_no_news(event: Event) -> None:
    """No table for what was to be expected."""
    assert "Found out" not in page_with(started(who(0)), event)
