"""Which bytes a server has loaded, told by hand: confirmed, refuted, resolved later, and where nothing may be said."""

import json
from dataclasses import replace
from typing import Any

import pytest

from sglang_telemetry.codec import converter, to_json
from sglang_telemetry.events import Checkpoint, CheckpointInspected, Exchange
from sglang_telemetry.names import Applied, Evidence, Result
from sglang_telemetry.server_truth.client import Checksum, Look, ModelInfo, Reach
from sglang_telemetry.server_truth.reconcile import (
    AGAIN_SECONDS,
    OPEN_SECONDS,
    SOON_SECONDS,
    Noticed,
    Resolved,
    ServerState,
)
from sglang_telemetry.tags import tag_of
from tests.sinks import SERVER, START, TARGET, record, who

BASE, W = "/models/base", "/shared/w"
YES, NO, UNKNOWN = Applied.YES, Applied.NO, Applied.UNKNOWN


class Story:
    """One server and one run that uses one checkpoint folder again and again; time goes on by 10 s a step."""

    def __init__(self) -> None:
        self.state = ServerState(server=SERVER, memory_saver=False)
        self.at = START
        self.sequence = 0

    def look(self, checksum: str | None = None, path: str = W, version: str | None = "default") -> Noticed:
        """It shows this, and has these bytes loaded."""
        self.at += 10
        look = Look(
            reach=Reach.ANSWERED,
            ready=True,
            info=ModelInfo(model_path=path, weight_version=version, tokenizer_path=BASE),
            checksum=None if checksum is None else Checksum(engine=checksum),
        )
        return self.state.note_look(look, began_at=self.at, ended_at=self.at + 0.01)

    def down(self) -> None:
        """It refuses connections."""
        self.at += 10
        self.state.note_look(Look(reach=Reach.REFUSED), began_at=self.at, ended_at=self.at + 0.01)

    def sync(self, claimed: Applied = YES, *, run: str = "grpo", status: int | None = 200, **changes: Any) -> None:
        """A sync of 4 s that claims this."""
        self.at += 10
        self.sequence += 1
        exchange = Exchange(method="POST", url=f"http://{SERVER}/update_weights_from_disk", status_code=status)
        values: dict[str, Any] = {
            "checkpoint": Checkpoint(path=W),
            "weights_applied": claimed,
            "result": Result.SUCCESS if claimed is YES else Result.FAILURE,
            "exchanges": (exchange,),
            "decisive": 0,
        }
        self.state.note_sync(record(who(run=run), self.sequence, at=self.at, **(values | changes)))
        self.at += 4

    def inspected(self, *, changed: float | None = 1.0, fault: str | None = None) -> None:
        """What was sent by the last sync was looked at."""
        self.state.note_inspected(
            CheckpointInspected(
                identity=who(),
                sequence=self.sequence,
                at=self.at,
                target=TARGET,
                trace_id="t",
                result=Result.SUCCESS,
                path=W,
                changed=changed,
                fault=fault,
                incomplete=fault is not None,
            )
        )

    @property
    def current(self) -> bool | None:
        """Does it run what the run synced last?"""
        return self.state.current().get("grpo")

    @property
    def confirmed(self) -> int | None:
        """The sync that it was seen to run."""
        version = self.state.confirmed.get("grpo")
        return None if version is None else version.sequence


def verdicts(noticed: Noticed) -> list[tuple[int, Applied, Applied, Evidence]]:
    """Sequence, what was claimed, what was found, and by what."""
    return [(one.claim.sequence, one.claim.claimed, one.applied, one.evidence) for one in noticed.resolved]


def synced() -> Story:
    """Seen with its start bytes, synced, seen with others."""
    story = Story()
    story.look("start", BASE)
    story.sync()
    assert verdicts(story.look("one")) == [(1, YES, YES, Evidence.CHECKSUM)]
    return story


def test_confirmed_by_the_bytes_under_one_name() -> None:
    """The folder is used again, so its name says nothing; each sync is told once."""
    story = synced()
    assert (story.current, story.confirmed) == (True, 1)
    assert story.look("one").resolved == ()
    story.sync()
    assert (story.current, story.confirmed) == (None, 1)
    assert verdicts(story.look("two")) == [(2, YES, YES, Evidence.CHECKSUM)]
    assert (story.current, story.confirmed) == (True, 2)


def test_success_that_changed_nothing() -> None:
    """Not applied, as soon as it is known that the checkpoint had other content than the one before."""
    story = synced()
    story.sync()
    assert story.look("one").resolved == ()
    story.inspected()
    assert verdicts(story.look()) == [(2, YES, NO, Evidence.CHECKSUM)]
    assert (story.current, story.confirmed) == (False, 1)
    story.sync()
    story.inspected()
    assert verdicts(story.look("three")) == [(3, YES, YES, Evidence.CHECKSUM)]
    assert (story.current, story.confirmed) == (True, 3)


@pytest.mark.parametrize("changed", [0.0, 0.1, None])
def test_bytes_that_may_be_the_same_are_no_mismatch(changed: float | None) -> None:
    """A trainer syncs twice before it trains, trains a value head that the server ignores, or less than it keeps."""
    story = synced()
    story.sync()
    story.inspected(changed=changed)
    assert story.look("one").resolved == ()
    assert story.current is True


def test_bytes_of_somebody_else_before_it_are_no_mismatch() -> None:
    """The sync between was refused and its content taken back, or another run has just loaded the same."""
    story = synced()
    story.sync(NO, status=400)
    story.look("one")
    story.sync()
    story.inspected()
    assert story.look("one").resolved == ()
    assert story.current is True


def test_workers_that_answer_by_turns() -> None:
    """Behind a router, one shows this and another that, and no sync is in between: nothing is told of any of it."""
    story = synced()
    for shown in ("two", "one"):
        story.look(shown)
    story.sync(UNKNOWN, status=None)
    for shown in ("two", "one", "two"):
        assert story.look(shown) == Noticed()
    assert (story.current, story.state.wants_checksum(story.at)) == (None, False)


def test_names_of_several_processes() -> None:
    """With ``--tokenizer-worker-num 2`` each has a label of its own: bytes tell, names do not."""
    story = synced()
    story.state.frontends = 2
    story.sync(version=tag_of(who(), 2))
    told = [story.look("two" if shown == W else None, shown, "default") for shown in (W, BASE, W, BASE)]
    assert [verdicts(noticed) for noticed in told] == [[(2, YES, YES, Evidence.CHECKSUM)], [], [], []]
    assert not any(noticed.restarted or noticed.went_back for noticed in told)
    assert (story.current, story.confirmed) == (True, 2)


def test_memory_that_may_be_released() -> None:
    """A checksum would read weights that are not there: it is never asked for, nor where that is not known."""
    story = Story()
    for saver, wanted in ((None, False), (True, False), (False, True)):
        story.state.memory_saver = saver
        assert story.state.wants_checksum(story.at) is wanted


def test_clock_that_was_set_back() -> None:
    """The sequence says which sync is the last, not the clock."""
    story = synced()
    story.at -= 7200
    story.sync()
    story.look("two")
    story.sync()
    assert verdicts(story.look("three"))[-1] == (3, YES, YES, Evidence.CHECKSUM)
    assert (story.current, story.confirmed) == (True, 3)


def test_a_start_that_kept_its_run_id_counts_anew() -> None:
    """Its first sync is not an older one."""
    story = synced()
    for sequence in (2, 3):
        story.sync(version=tag_of(who(), sequence))
        story.look(str(sequence), version=tag_of(who(), sequence))
    again = replace(who(), pid=7)
    story.at += 10
    story.state.note_sync(record(again, 1, at=story.at, version=tag_of(again, 1), checkpoint=Checkpoint(path=W)))
    story.at += 4
    noticed = story.look("new", version=tag_of(again, 1))
    assert not noticed.went_back
    assert (story.current, story.confirmed) == (True, 1)


def test_checkpoint_that_is_not_whole() -> None:
    """A tensor is missing, and the server said success: a mix, whatever its labels and its bytes show."""
    story = synced()
    story.sync()
    story.look("mix")
    story.inspected(fault="1 of 27 tensors is missing")
    assert verdicts(story.look("mix")) == [(2, YES, NO, Evidence.CHECKPOINT)]
    assert story.current is False
    story.sync()
    story.look("three")
    assert story.current is True


def test_checkpoint_that_turns_out_not_to_be_whole_after_it_was_confirmed() -> None:
    """The trainer's look comes later than ours: the sync before is the confirmed one again, or none is."""
    story = synced()
    for _ in range(2):
        story.sync()
        assert verdicts(story.look(f"bytes {story.sequence}")) == [(story.sequence, YES, YES, Evidence.CHECKSUM)]
        story.inspected(fault="a tensor is missing")
        refuted = [(story.sequence, YES, NO, Evidence.CHECKPOINT)]
        assert verdicts(story.look(f"bytes {story.sequence}")) == refuted
        assert (story.current, story.confirmed) == (False, 1)


def test_time_out_that_is_applied_later() -> None:
    """Unknown while the bytes are the old ones, yes when they change, and how long that took."""
    story = synced()
    story.sync(UNKNOWN, status=None)
    ended_at = story.at
    assert story.look("one").resolved == ()
    assert (story.current, story.confirmed) == (None, 1)
    assert story.state.wants_checksum(story.at)
    assert story.look("two").resolved == ()
    noticed = story.look("two")
    assert verdicts(noticed) == [(2, UNKNOWN, YES, Evidence.CHECKSUM)]
    assert noticed.resolved[0].ended_at == ended_at
    assert (story.current, story.confirmed) == (True, 2)


def test_time_out_by_tag() -> None:
    """No checksum is to be had: the version that the update carried is."""
    story = Story()
    story.look(None, BASE)
    tag = tag_of(who(), 1)
    story.sync(UNKNOWN, status=None, version=tag)
    assert story.look(None, BASE).resolved == ()
    assert verdicts(story.look(None, W, tag)) == [(1, UNKNOWN, YES, Evidence.WEIGHT_VERSION)]
    assert (story.current, story.confirmed) == (True, 1)


def test_refusal_that_changed_nothing_is_no_longer_asked_for() -> None:
    """It was answered, so that nothing of it is under way: the bytes are the old ones, and the sync before counts."""
    story = synced()
    story.sync(UNKNOWN, status=400)
    assert verdicts(story.look("one")) == [(2, UNKNOWN, NO, Evidence.CHECKSUM)]
    story.sync(NO, status=400)
    assert story.look("one").resolved == ()
    assert (story.current, story.state.open) == (None, {})


def test_refusal_that_was_none() -> None:
    """The server says that it rolled back, and runs other bytes."""
    story = synced()
    story.sync(NO, status=400)
    story.look("two")
    assert verdicts(story.look("two")) == [(2, NO, YES, Evidence.CHECKSUM)]
    assert (story.current, story.confirmed) == (True, 2)


def test_restart_answers_the_question() -> None:
    """Whatever it was doing with that update, it is gone; the start bytes are not taken for the update's."""
    story = synced()
    story.sync(UNKNOWN, status=None)
    story.down()
    noticed = story.look("start", BASE)
    assert noticed.restarted
    assert verdicts(noticed) == [(2, UNKNOWN, NO, Evidence.RESTART)]


def test_lost_weights_and_found_again() -> None:
    """Back with the start bytes: not current; after the next sync it is."""
    story = synced()
    story.down()
    assert story.look("start", BASE).restarted
    assert (story.current, story.confirmed) == (False, 1)
    story.sync()
    assert verdicts(story.look("two")) == [(2, YES, YES, Evidence.CHECKSUM)]
    assert story.current is True


def test_restart_with_the_bytes_that_were_synced() -> None:
    """It was started from the checkpoint itself: the name says nothing, the bytes do."""
    story = synced()
    story.down()
    assert story.look("one").restarted
    assert story.current is True


def test_somebody_else_in_between() -> None:
    """The change may be the other run's doing; its own sync is told."""
    story = synced()
    story.sync(run="ppo")
    story.sync(UNKNOWN, status=None)
    assert verdicts(story.look("two")) == []
    assert story.current is None


def test_bytes_that_change_under_the_same_name() -> None:
    """Somebody else's update to the same folder: not what was synced last."""
    story = synced()
    story.look("stranger")
    assert story.current is False


def test_version_that_goes_back() -> None:
    """A label of an earlier sync of this start is told once; another start's is not."""
    story = Story()
    story.look(None, BASE)
    for sequence in (1, 2):
        story.sync(version=tag_of(who(), sequence))
        story.look(None, W, tag_of(who(), sequence))
    assert story.confirmed == 2
    assert story.look(None, W, tag_of(who(), 1)).went_back
    assert not story.look(None, W, tag_of(who(), 1)).went_back
    assert not story.look(None, W, tag_of(who(run_id="two"), 1)).went_back


def test_tag_that_was_not_passed_on() -> None:
    """Success, and it still shows the tag of the sync before: a router that did not pass it on."""
    story = Story()
    story.look(None, BASE)
    story.sync(version=tag_of(who(), 1))
    story.look(None, W, tag_of(who(), 1))
    story.sync(version=tag_of(who(), 2))
    assert verdicts(story.look(None, W, tag_of(who(), 1))) == [(2, YES, NO, Evidence.WEIGHT_VERSION)]
    assert (story.current, story.confirmed) == (False, 1)


@pytest.mark.parametrize("shown", ["default", "", None, "/shared/w", "somebody's"])
def test_labels_that_cannot_be_verified_are_no_mismatch(shown: str | None) -> None:
    """Another label than ours, and the same as before: never a mismatch on its own."""
    story = Story()
    story.look(None, "/srv/w", shown)
    story.sync(version=tag_of(who(), 1))
    noticed = story.look(None, "/srv/w", shown)
    assert story.current is (False if shown == "somebody's" else None)
    assert [one for one in noticed.resolved if one.applied is NO] == [
        one for one in noticed.resolved if shown == "somebody's"
    ]


def test_when_the_checksum_is_asked_for() -> None:
    """At first, after each sync, while a question is open, and rarely else."""
    story = Story()
    assert story.state.wants_checksum(story.at)
    story.look("start", BASE)
    assert not story.state.wants_checksum(story.at + AGAIN_SECONDS - 1)
    assert story.state.wants_checksum(story.at + AGAIN_SECONDS + 1)
    story.sync()
    assert story.state.wants_checksum(story.at)
    story.look("one")
    assert not story.state.wants_checksum(story.at + SOON_SECONDS)
    story.sync(UNKNOWN, status=None)
    story.look("one")
    assert story.state.wants_checksum(story.at + 1)
    story.at += OPEN_SECONDS + 1
    story.look("one")
    assert not story.state.wants_checksum(story.at + 1)


def test_all_of_it_can_be_saved() -> None:
    """As JSON and back, with a question open and versions known."""
    story = synced()
    story.sync(UNKNOWN, status=None, version=tag_of(who(), 2))
    story.look("one")
    again = converter(ServerState)(json.loads(to_json(story.state)))
    assert again == story.state
    story.look("two")
    assert isinstance(story.look("two").resolved[0], Resolved)
