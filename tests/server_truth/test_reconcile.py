"""What follows from looks and syncs, told by hand: each line of the rules, and above all where nothing may be said."""

import json
from typing import Any

import pytest

from sglang_telemetry.codec import converter, to_json
from sglang_telemetry.events import Checkpoint, Target
from sglang_telemetry.names import Applied, Result, Transport
from sglang_telemetry.server_truth.client import Look, ModelInfo, Reach
from sglang_telemetry.server_truth.reconcile import Noticed, ServerState
from sglang_telemetry.server_truth.synced import NEAR_SECONDS
from tests.sinks import START, TARGET, record, who

BASE, W, V = "/models/base", "/shared/w", "/shared/v"


class Story:
    """One server; time goes on by 10 s with each thing that happens, or by what is given."""

    def __init__(self) -> None:
        self.state = ServerState(server="s:1")
        self.at = START

    def look(
        self, path: str = BASE, version: str | None = "default", *, start: str | None = BASE, after: float = 10
    ) -> bool:
        """It shows this; was a restart noticed?"""
        self.at += after
        info = ModelInfo(model_path=path, weight_version=version, tokenizer_path=start)
        self.noticed = self.state.note_look(
            Look(reach=Reach.ANSWERED, ready=True, info=info), began_at=self.at, ended_at=self.at + 0.01
        )
        return self.noticed.restarted

    def down(self, reach: Reach = Reach.REFUSED) -> None:
        """It does not answer."""
        self.at += 10
        assert self.state.note_look(Look(reach=reach), began_at=self.at, ended_at=self.at + 0.01) == Noticed()

    def sync(self, path: str | None = W, *, run: str = "grpo", at: float | None = None, **changes: Any) -> "Story":
        """A sync of 4 s ended well, or as the changes say."""
        self.at += 10
        checkpoint = Checkpoint(path=path) if path is not None else None
        self.state.note_sync(record(who(run=run), at=at or self.at, checkpoint=checkpoint, **changes))
        self.at += 4
        return self

    @property
    def current(self) -> bool | None:
        """Of the run ``grpo``."""
        return self.state.current().get("grpo")


def busy(**changes: Any) -> dict[str, Any]:
    """A 400 after which the weights are new."""
    return {"result": Result.FAILURE, "weights_applied": Applied.YES, **changes}


def synced(path: str = W, shown: str | None = None) -> Story:
    """Seen, synced, seen again."""
    story = Story()
    story.look()
    story.sync(path)
    story.look(shown or path)
    return story


def test_nothing_before_the_first_look_after_a_sync() -> None:
    """No look, no knowledge; and a look before a sync says nothing of it."""
    story = Story()
    story.look()
    assert story.current is None
    story.sync()
    assert story.current is None
    story.look(W)
    assert story.current is True


@pytest.mark.parametrize("shown", [W, W + "/", "/shared/./w", "/shared/x/../w"])
def test_the_path_in_other_words(shown: str) -> None:
    """One folder has many spellings."""
    assert synced(W, shown).current is True


def test_path_without_a_look_before() -> None:
    """The exporter came late: the checkpoint's own path is enough."""
    story = Story().sync()
    story.look(W)
    assert story.current is True


def test_start_model_without_a_look_before() -> None:
    """A success, and it shows what it was started with: not passed on, or restarted since."""
    story = Story().sync()
    story.look(BASE)
    assert story.current is False


def test_another_name_without_a_look_before() -> None:
    """It may be this folder's name over there: nothing is said, until something else is shown."""
    story = Story().sync()
    story.look("/srv/w")
    assert story.current is None
    story.look(BASE)
    assert story.current is False


def test_mount_of_another_name() -> None:
    """What changed with the sync is its doing; from then on the name stands for the folder."""
    story = synced(W, "/srv/w")
    assert story.current is True
    story.sync(W)
    story.look("/srv/w")
    assert story.current is True
    story.look(BASE)
    assert story.current is False


@pytest.mark.parametrize(("before", "after"), [(NEAR_SECONDS, 0), (0, NEAR_SECONDS)])
def test_change_that_may_have_another_reason(before: float, after: float) -> None:
    """Between looks that are far from the sync somebody else may have come."""
    story = Story()
    story.look()
    story.at += before
    story.sync()
    story.look("/srv/w", after=after + 1)
    assert story.current is None


def test_change_that_another_sync_may_have_made() -> None:
    """Two syncs between two looks, and neither path is shown."""
    story = Story()
    story.look()
    story.sync(V, run="ppo").sync(W)
    story.look("/srv/x")
    assert story.state.current() == {}


def test_router_that_does_not_pass_it_on() -> None:
    """Success was reported and it shows its start model; then the checkpoint of the sync before."""
    story = synced(W, BASE)
    assert story.current is False
    story = synced()
    story.sync(V)
    story.look(W)
    assert story.current is False


def test_passed_on_late() -> None:
    """It was not there at first, and then it was."""
    story = synced(W, BASE)
    story.look(W)
    assert story.current is True


def test_a_name_that_may_be_this_folders_is_no_evidence_against_it() -> None:
    """Unchanged, and not known to stand for something else: an exporter that came after the first sync sees this."""
    story = Story()
    story.look("/srv/w")
    story.sync(W)
    story.look("/srv/w")
    assert story.current is None


@pytest.mark.parametrize("path", [None, "", "w", "org/model"])
def test_path_that_can_never_be_shown(path: str | None) -> None:
    """Unverifiable: unchanged says nothing, a change with the sync does."""
    assert synced_with(path, BASE) is None
    assert synced_with(path, "/srv/w") is True


def synced_with(path: str | None, shown: str) -> bool | None:
    """Seen, synced from there, seen again."""
    story = Story()
    story.look()
    story.sync(path)
    story.look(shown)
    return story.current


def test_no_path_matters_where_no_disk_is_used() -> None:
    """Tensors over the wire leave the path as it is."""
    target = Target(server=TARGET.server, transport=Transport.TENSOR)
    story = Story()
    story.look()
    story.sync(W, target=target)
    story.look(BASE)
    assert story.current is None


def test_version_that_became_the_syncs_own() -> None:
    """It is evidence, for as long as it stays."""
    story = Story()
    story.look(BASE, "3")
    story.sync(None, version="4")
    story.look(BASE, "4")
    assert story.current is True
    story.look(BASE, "default")
    assert story.current is False


@pytest.mark.parametrize("version", [None, "", "default", "/shared/w", "41"])
def test_version_that_says_nothing(version: str | None) -> None:
    """Never a mismatch on its own; nor a match that was there before."""
    story = Story()
    story.look(BASE, version)
    story.sync(W, version="42")
    story.look(W, version)
    assert story.current is True
    story = Story()
    story.look(BASE, "42")
    story.sync(None, version="42")
    story.look(BASE, "42")
    assert story.current is None


def test_label_alone_that_changes() -> None:
    """Labels can be changed without weights, and weights with nothing but the label: unknown."""
    story = synced()
    story.look(W, "somebody's")
    assert story.current is None
    story.look(W, "default")
    assert story.current is None


def test_400_after_which_the_weights_are_new() -> None:
    """SGLang 0.5.23 keeps the old path then: an unchanged path is no evidence against it."""
    story = Story()
    story.look()
    story.sync(W, **busy())
    story.look(BASE)
    assert story.current is None


def test_unknown_until_the_next_sync_that_is_taken() -> None:
    """A time-out may be applied at any later moment."""
    story = synced()
    story.sync(W, result=Result.FAILURE, weights_applied=Applied.UNKNOWN)
    story.look(W)
    assert story.current is None
    story.sync(W)
    story.look(W)
    assert story.current is True


def test_refusal_changes_nothing() -> None:
    """It still runs what was synced before."""
    story = synced()
    story.sync(V, result=Result.FAILURE, weights_applied=Applied.NO)
    story.look(W)
    assert story.current is True


def test_restart_that_was_seen() -> None:
    """Start weights until the next sync."""
    story = synced()
    story.down()
    story.down()
    assert story.look(BASE) is True
    assert story.current is False
    assert story.look(BASE) is False
    story.sync(W)
    story.look(W)
    assert story.current is True


def test_restart_with_the_checkpoint_as_start_model() -> None:
    """Which of the folder's contents it loaded cannot be told; with the next sync it can."""
    story = Story()
    story.look(W, start=W)
    story.sync(W)
    story.look(W, start=W)
    assert story.current is True
    story.down()
    assert story.look(W, start=W) is True
    assert story.current is None
    story.sync(W)
    story.look(W, start=W)
    assert story.current is True


def test_restart_before_the_first_look_after_a_sync() -> None:
    """The sync was taken by a life that is over."""
    for shown, current in ((BASE, False), (W, None), ("/srv/w", None)):
        story = Story()
        story.look()
        story.sync()
        story.down()
        assert story.look(shown) is True
        assert story.current is current


def test_sync_into_the_new_life_before_the_restart_was_seen() -> None:
    """It began after the connection was refused: the restart does not cast doubt on it."""
    story = synced()
    story.down()
    story.sync(W)
    assert story.look(W) is True
    assert story.current is True


def test_slow_is_not_gone() -> None:
    """A time-out is no restart, nor is an address that was never up."""
    story = Story()
    story.down()
    story.down(Reach.SILENT)
    assert story.look() is False
    story.down(Reach.SILENT)
    assert story.look() is False


def test_restart_between_two_looks() -> None:
    """It went back to its start model, and no sync explains it; once is once."""
    story = synced()
    assert story.look(BASE) is True
    assert story.current is False
    assert story.look(BASE) is False
    story.sync(W)
    assert story.look(W) is False
    assert story.look(BASE) is True


def test_restart_after_a_sync_that_killed_it() -> None:
    """It died of the checkpoint and was back before the next look."""
    story = synced()
    story.sync(V, result=Result.FAILURE, weights_applied=Applied.NO)
    assert story.look(BASE) is True
    assert story.current is False


def test_a_sync_that_leads_back_is_no_restart() -> None:
    """Somebody whom we know synced the start model, or may have."""
    story = synced()
    story.sync(BASE, run="ppo")
    assert story.look(BASE) is False
    assert story.state.current() == {"grpo": False, "ppo": True}
    story = synced()
    story.sync(W, result=Result.FAILURE, weights_applied=Applied.UNKNOWN)
    assert story.look(BASE) is False


def test_back_to_what_is_not_the_start_model() -> None:
    """A trainer on another host syncs there too: not current, and no restart."""
    story = Story()
    story.look("/other/x")
    story.sync(W)
    story.look(W)
    assert story.look("/other/x") is False
    assert story.current is False


def test_two_runs_on_one_server() -> None:
    """The later sync is what it runs; of the same name nothing is known for the earlier one."""
    story = synced()
    story.sync(V, run="ppo")
    story.look(V)
    assert story.state.current() == {"grpo": False, "ppo": True}
    story.sync(W)
    story.look(W)
    assert story.state.current() == {"grpo": True, "ppo": False}
    story.sync(W, run="ppo")
    story.look(W)
    assert story.state.current() == {"ppo": True}


def test_two_syncs_before_one_look() -> None:
    """The first run's weights were overwritten before anybody looked."""
    story = Story()
    story.look()
    story.sync(W).sync(V, run="ppo")
    story.look(V)
    assert story.state.current() == {"grpo": False, "ppo": True}


def test_syncs_that_are_told_in_another_order() -> None:
    """Journals are read one after the other; what counts is when the syncs were."""
    story = Story()
    story.look()
    now = story.at
    story.sync(W, at=now + 20)
    story.sync(V, run="ppo", at=now + 10)
    story.sync(V, at=now + 5)
    story.look(W)
    assert story.state.current() == {"grpo": True, "ppo": False}


def test_look_during_a_sync_is_no_evidence() -> None:
    """Of one that goes on, and of one that was over when the look was."""
    story = synced()
    info = ModelInfo(model_path=BASE)
    found = Look(reach=Reach.ANSWERED, info=info)
    at = story.at + 10
    assert story.state.note_look(found, began_at=at, ended_at=at + 1, in_flight=(at + 0.5,)) == Noticed()
    assert story.current is True
    story.state.note_sync(record(who(), at=at + 0.5, checkpoint=Checkpoint(path=W)))
    assert not story.state.note_look(found, began_at=at, ended_at=at + 9).restarted
    assert story.current is None


def test_all_of_it_can_be_saved() -> None:
    """As JSON and back, at every point of a story."""
    story = synced(W, "/srv/w")
    for step in (story.down, story.look, lambda: story.sync(V, run="ppo", version="3"), lambda: story.look(V, "3")):
        step()
        again = converter(ServerState)(json.loads(to_json(story.state)))
        assert again == story.state
        assert again.current() == story.state.current()
