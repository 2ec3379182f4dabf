"""The snapshot: a restarted exporter goes on exactly where it was."""

import json
import random
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    Checkpoint,
    Event,
    LaunchStarted,
    PhaseSpan,
    ProcessLost,
    ProcessUnwatched,
    ServerSeen,
    SyncRecord,
    Target,
    TelemetryError,
)
from sglang_telemetry.exporter import snapshot
from sglang_telemetry.exporter.follow import Followed
from sglang_telemetry.names import SERVER_LAST_RESTART, SERVER_RESTARTS, Action, Component, Exit, Phase, Result
from sglang_telemetry.server_truth.client import Look, ModelInfo, Reach
from sglang_telemetry.server_truth.reconcile import ServerState
from sglang_telemetry.sinks.process_state import ProcessState
from sglang_telemetry.sinks.tally import Tally
from tests.sinks import START, begun, ended, entered, failed, record, remedied, started, who


def tally_of(*events: Event) -> Tally:
    """The counts of some events."""
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally


def assert_same(left: Tally, right: Tally) -> None:
    """Every count, stamp, bucket, exemplar and process."""
    assert vars(left) == vars(right)


def everything() -> Tally:
    """Counts with every field set somewhere: alive, dead, unknown; in a sync and not."""
    checkpoint = Checkpoint(path="/w", files=1, bytes=10, free_bytes=20)
    return tally_of(
        started(who(0), versions={"torch": "2"}, expected_interval_seconds=60.0),
        begun(who(0), 1, at=START),
        record(who(0), 1, at=START, checkpoint=checkpoint),
        begun(who(0), 2, at=START + 40.125),
        failed(who(0), 2, at=START + 40.125),
        begun(who(0), 3, at=START + 80),
        entered(who(0), Phase.BROADCAST, 3),
        started(who(1)),
        ProcessUnwatched(identity=who(1), at=START),
        started(who(0, run="ppo")),
        ended(who(0, run="ppo"), Exit.FAILED),
        begun(who(0, run="dpo")),
        ProcessLost(identity=who(0, run="dpo"), at=START + 11.0625, how=Exit.LOST, result=Result.FAILURE),
        TelemetryError(identity=None, component=Component.TRACES, text="x", count=7),
    )


def of_all_kinds() -> ServerState:
    """A server with every field set somewhere: before and after a sync, of two runs."""
    info = ModelInfo(model_path="/models/base", weight_version="default", tokenizer_path="/models/base")
    state = ServerState(server="10.0.0.7:30000", url="http://10.0.0.7:30000")
    seen = Look(reach=Reach.ANSWERED, ready=True, info=info, version="0.5.23")
    state.note_look(seen, began_at=START, ended_at=START + 0.5)
    for run in ("grpo", "ppo"):
        state.note_sync(record(who(0, run=run), at=START + 10, checkpoint=Checkpoint(path="/w"), version="3"))
    state.note_look(replace(seen, info=replace(info, model_path="/w")), began_at=START + 20, ended_at=START + 20.5)
    state.note_look(Look(reach=Reach.REFUSED), began_at=START + 30, ended_at=START + 30)
    state.paused.note(remedied(who(), Action.RELEASE))
    state.paused.note(replace(remedied(who(), Action.PAUSE), at=START + 40))
    state.paused.gone(who())
    state.paused.looked(ready=False, began_at=START + 50)
    return state


def test_servers_that_were_seen_are_not_saved_but_their_counts_are(tmp_path: Path) -> None:
    """Gauges are made anew by the next look; a counter goes on, and a restart keeps its time."""
    seen = ServerSeen(server="s:1", at=START + 5, up=True, restarted=True, current={"grpo": False})
    tally = tally_of(started(who(0), target=Target(server="s:1")), seen)
    assert tally.live_servers() == {"s:1": seen}
    snapshot.save(tmp_path, tally, {})
    loaded = snapshot.load(tmp_path)[0]
    assert loaded.servers == {}
    assert loaded.counters[SERVER_RESTARTS.name] == {("s:1",): 1}
    assert loaded.stamps[SERVER_LAST_RESTART.name] == {("s:1",): START + 5}


def test_round_trip(tmp_path: Path) -> None:
    """All values of all types come back, ``alive`` unknown among them."""
    tally = everything()
    followed = {
        one.stem: one
        for one in (
            Followed(stem="fresh"),
            Followed(
                stem="a-1-x",
                segment="a-1-x.000002.jsonl",
                offset=1 << 40,
                head=started(who(0), versions={"torch": "2"}, locked=True, launch_id="l"),
                over=True,
                sync=begun(who(0)),
                phases=(PhaseSpan(phase=Phase.SETUP, offset_ns=0, duration_ns=0),),
                last_failed=True,
                unwatched=True,
                seen_alive_at=START + 0.5,
            ),
            Followed(stem="launch-1-y", launch=LaunchStarted(launch_id="l", run="grpo", at=START)),
        )
    }
    servers = [ServerState(server="s:1"), of_all_kinds()]
    snapshot.save(tmp_path, tally, followed, servers)
    loaded, loaded_followed, loaded_servers = snapshot.load(tmp_path)
    assert_same(loaded, tally)
    assert loaded_followed == followed
    assert loaded_servers == servers
    assert [state.alive for state in loaded.processes.values()] == [True, None, False, False]
    first = next(iter(loaded.processes.values()))
    assert isinstance(first, ProcessState)
    assert isinstance(first.intervals, deque)
    assert (first.phase, type(first.phase), first.intervals.maxlen) == (Phase.BROADCAST, Phase, 32)


def test_nothing_saved_is_an_empty_start(tmp_path: Path) -> None:
    """The first exporter of a folder."""
    tally, followed, servers = snapshot.load(tmp_path)
    assert_same(tally, Tally())
    assert (followed, servers) == ({}, [])


def test_private_and_whole(tmp_path: Path) -> None:
    """Nobody else reads it, and nothing but it is left."""
    for _ in range(2):
        snapshot.save(tmp_path, everything(), {})
    (path,) = tmp_path.iterdir()
    assert path.name == snapshot.FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_save_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs the newest counts, not all of them; those are in the journals."""
    snapshot.save(tmp_path, everything(), {})

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError):
        snapshot.save(tmp_path, Tally(), {})
    assert_same(snapshot.load(tmp_path)[0], everything())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b'{"version": 1}',
        b'{"version": 99, "counters": {}, "stamps": {}, "histograms": {}, "processes": [], "followed": []}',
        b'{"version": 1, "counters": [], "stamps": {}, "histograms": {}, "processes": [], "followed": []}',
        b'{"version": 1, "counters": {"x": [[["a"], null]]}, "stamps": {}, "histograms": {}, "processes": [], '
        b'"followed": []}',
        b'{"version": 1, "counters": {}, "stamps": {}, "histograms": {}, "processes": [{}], "followed": []}',
        b'{"version": 1, "counters": {}, "stamps": {}, "histograms": {}, "processes": [], "followed": [{"offset": 1}]}',
        b"[" * 200_000,
    ],
)
def test_corrupted_snapshot(content: bytes, tmp_path: Path) -> None:
    """It is a ValueError, upon which the counts are made anew from the journals."""
    (tmp_path / snapshot.FILE_NAME).write_bytes(content)
    with pytest.raises(ValueError):
        snapshot.load(tmp_path)


def test_every_beginning_of_a_snapshot_is_refused(tmp_path: Path) -> None:
    """Half a snapshot is never taken for a smaller one."""
    snapshot.save(tmp_path, everything(), {})
    path = tmp_path / snapshot.FILE_NAME
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError):
            snapshot.load(tmp_path)


def test_unknown_field_of_a_process_is_ignored(tmp_path: Path) -> None:
    """An exporter that is set back by a minor version reads what the newer one saved."""
    snapshot.save(tmp_path, everything(), {})
    path = tmp_path / snapshot.FILE_NAME
    content = json.loads(path.read_bytes())
    content["processes"][0]["mood"] = "good"
    path.write_text(json.dumps(content))
    assert_same(snapshot.load(tmp_path)[0], everything())


def story(dice: random.Random) -> Iterator[Event]:
    """Some days of training: restarts, several runs and ranks, every outcome, retries, losses."""
    at = START
    for start in range(6):
        identities = [
            who(rank, run=run, run_id=f"r{start}", pid=100 * (start + 1) + rank)
            for run in ("grpo", "ppo")
            for rank in (0, 1)
        ]
        for identity in identities:
            yield started(identity, at=at, expected_interval_seconds=dice.choice((None, 60.0)))
        for sequence in range(1, dice.randrange(3, 12)):
            at += dice.uniform(1, 500)
            for identity in identities:
                yield begun(identity, sequence, at=at)
                yield entered(identity, dice.choice(list(Phase)), sequence)
                end: SyncRecord = dice.choice((record, failed))(identity, sequence, at=at)
                yield replace(
                    end,
                    duration_ns=dice.randrange(10**12),
                    attempts=dice.randrange(1, 4),
                    cause=dice.choice(list(FailureCause)) if end.result is Result.FAILURE else None,
                )
        for identity in identities:
            if dice.random() < 0.5:
                yield begun(identity, 99, at=at + 1)
                yield ProcessLost(identity=identity, at=at + 2, how=Exit.LOST, result=Result.FAILURE)
            else:
                yield ended(identity, dice.choice((Exit.CLEAN, Exit.FAILED)), at=at + 2)
        yield TelemetryError(identity=None, component=dice.choice(list(Component)), text="x")


def test_servers_in_another_form_are_asked_again(tmp_path: Path) -> None:
    """What another version knew of servers is no reason to lose the counts."""
    content = b'{"version": 1, "counters": {"weight_sync_failures": [[["a"], 3]]}, "stamps": {}, "histograms": {}, '
    content += b'"processes": [], "followed": [], "servers": [{"url": "u"}]}'
    (tmp_path / snapshot.FILE_NAME).write_bytes(content)
    tally, _, servers = snapshot.load(tmp_path)
    assert (tally.counters, servers) == ({"weight_sync_failures": {("a",): 3}}, [])


@pytest.mark.parametrize("seed", range(8))
def test_restarts_change_nothing(seed: int, tmp_path: Path) -> None:
    """Saved and loaded at random points of a stream, the counts are those of an exporter that ran all the time."""
    dice = random.Random(seed)
    events = list(story(dice))
    unbroken, restarted = Tally(), Tally()
    for event in events:
        unbroken.add(event)
        restarted.add(event)
        if dice.random() < 0.1:
            snapshot.save(tmp_path, restarted, {})
            restarted = snapshot.load(tmp_path)[0]
    assert_same(restarted, unbroken)
    before = START + 1000
    assert restarted.forget(ended_before=before) == unbroken.forget(ended_before=before)
    assert_same(restarted, unbroken)
