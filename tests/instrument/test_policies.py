"""Which policy a label stands for, on every rank, and what an engine's requests carry."""

import asyncio
import os
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import sglang_telemetry
from sglang_telemetry.events import Event, RolloutsSeen, SyncStarted
from sglang_telemetry.identity import IdentitySource
from sglang_telemetry.instrument.generations import MAX_GENERATIONS, generations
from sglang_telemetry.instrument.rollouts import Rollouts, is_generation
from sglang_telemetry.instrument.weight_version import tagged
from sglang_telemetry.testing import FakeSGLang, ManualClock, RecordingSink
from tests.harness.answers import SUCCESS, Answers
from tests.harness.minimind import SavableModel, SharedFolderEngine

TAG = "r:01234567:{}".format


class Counting:
    """Rollouts of one process, with its clock and what it told."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.clock = ManualClock()
        source = IdentitySource(run="r", run_id="01234567" * 4)
        self.rollouts = Rollouts(source, self.told.append, self.clock)

    def policy(self, *versions: str) -> str:
        """What one answer with these versions is counted as."""
        spans = ",".join(f'{{"version":"{one}","start":0,"end":1}}' for one in versions)
        self.rollouts.flush(0)
        self.told.clear()
        self.rollouts.saw(f'{{"meta_info":{{"weight_versions":[{spans}]}}}}'.encode(), 0)
        self.rollouts.flush(0)
        [event] = self.told
        assert isinstance(event, RolloutsSeen)
        [(policy, count)] = event.counts.items()
        assert count == 1
        return policy


def test_labels_of_a_run_that_tags() -> None:
    """The last taken, those before, the one that was taken although nobody said so, and others' tags."""
    counting = Counting()
    for sequence in (1, 2):
        counting.rollouts.taken(TAG(sequence), sequence)
    counting.rollouts.sent(TAG(3), 3)
    assert [counting.policy(one) for one in (TAG(1), TAG(2), TAG(3), "other:ffffffff:9")] == [
        "stale",
        "current",
        "current",
        "stale",
    ]
    assert [counting.policy(one) for one in ("default", "", "/ckpt/9", "C:\\\\ckpt", "v7")] == ["unknown"] * 5
    assert counting.policy(TAG(1), TAG(2)) == "mixed"
    assert counting.policy(TAG(2), TAG(2)) == "current"


def test_labels_where_the_last_sync_named_none() -> None:
    """The server still shows the label of an older sync, and has other weights: nothing can be told from it."""
    counting = Counting()
    counting.rollouts.taken("v1", 1)
    assert counting.policy("v1") == "current"
    counting.rollouts.taken(None, 2)
    assert [counting.policy(one) for one in ("v1", "other:ffffffff:9")] == ["unknown", "unknown"]
    counting.rollouts.taken("v3", 3)
    assert [counting.policy(one) for one in ("v1", "v3")] == ["stale", "current"]


def test_labels_before_the_first_sync() -> None:
    """Own tags come from another process of this run, which knows better; foreign ones from an older run."""
    counting = Counting()
    assert [counting.policy(one) for one in (TAG(4), "other:ffffffff:9", "v1")] == ["unknown", "stale", "unknown"]


def test_a_sync_that_ends_late_does_not_undo_a_later_one() -> None:
    """Two syncs at once: the later one is the last."""
    counting = Counting()
    counting.rollouts.taken("b", 2)
    counting.rollouts.taken("a", 1)
    assert [counting.policy(one) for one in ("a", "b")] == ["stale", "current"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_does_not_count_its_parents_rollouts_again() -> None:
    """Nor wait for a lock that another thread of the parent held."""
    counting = Counting()
    counting.rollouts.saw(b'{"meta_info":{}}', 1)
    counting.rollouts.saw(b'{"meta_info":{}}', 1)
    with counting.rollouts._lock:
        child = os.fork()
        if child == 0:
            told = len(counting.told)
            counting.rollouts.flush(1)
            os._exit(len(counting.told) - told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    counting.rollouts.flush(1)
    assert [event.counts for event in counting.told if isinstance(event, RolloutsSeen)] == [{"unknown": 1}] * 2


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1/generate", True),
        ("http://h:1/gateway/generate/?x=1", True),
        ("http://h:1/v1/chat/completions", True),
        ("http://h:1/v1/completions", True),
        ("http://h:1/v1/responses", True),
        ("http://h:1/health_generate", False),
        ("http://h:1/flush_cache", False),
        ("http://[broken/generate", False),
        ("", False),
    ],
)
def test_routes_that_generate(url: str, expected: bool) -> None:
    """Only their answers are looked at."""
    assert is_generation(url) is expected


def test_answers_that_are_not_what_they_seem() -> None:
    """Another kind of value, a version that cannot be one, an answer cut in the middle: unknown, never an error."""
    for body in (
        b'{"meta_info":{"weight_version":null,"weight_versions":null}}',
        b'{"meta_info":{"weight_version":"' + b"x" * 5000 + b'"}}',
        b'{"meta_info":{"weight_version":"bad\\xescape"}}',
        b'{"meta_info":{"weight_version":"cut',
        b'{"meta_info":{"weight_versions":[{"version":"cut"',
        b'{"text":"an older SGLang"}',
    ):
        [generation] = generations(body)
        assert generation.versions <= {""}
        assert not generation.aborted
    assert len(generations(b"[" + b'{"meta_info":{}},' * (MAX_GENERATIONS + 5) + b"]")) == MAX_GENERATIONS


def test_escaped_versions_are_read_as_json() -> None:
    """A run's name can be any text, and a server may escape it or not."""
    [plain] = generations('{"metadata":{"weight_version":"Überlauf \\"1\\":a:1"}}'.encode())
    [escaped] = generations(b'{"metadata":{"weight_version":"\\u00dcberlauf \\"1\\":a:1"}}')
    assert plain == escaped
    assert plain.versions == {'Überlauf "1":a:1'}


@pytest.mark.parametrize("body", [[1], "text", b"bytes", None, {"weight_version": "mine"}, {"weight_version": 7}])
def test_bodies_that_stay_as_they_are(body: Any) -> None:
    """Forms that are not the engine's usual one, and those that name a version."""
    assert tagged({"json": body}, "tag") is None


@pytest.mark.parametrize(
    "body", [{"model_path": "/x"}, MappingProxyType({"model_path": "/x"}), {"weight_version": None}]
)
def test_bodies_that_get_a_tag(body: Any) -> None:
    """A copy; the engine's own object stays what it was."""
    before = dict(body)
    assert tagged({"json": body}, "tag") == {**before, "weight_version": "tag"}
    assert dict(body) == before


class Twice(SharedFolderEngine):
    """Asks again when it was refused, with one body that it keeps, and tells nobody."""

    def update_policy(self, model: Any) -> bool:
        """Push."""
        self.body = {"model_path": os.path.abspath(self.shared_ckpt_path)}
        for _ in range(2):
            if self.http.post(f"{self.base_url}/update_weights_from_disk", json=self.body).status_code == 200:
                return True
        return False


def test_a_retry_carries_the_same_tag(tmp_path: Path) -> None:
    """It is the same sync; the next sync has another."""
    sink = RecordingSink()
    with Answers((500, b"{}"), SUCCESS) as server:
        engine = Twice(server.url, str(tmp_path))
        with sglang_telemetry.instrument(engine, run="r", run_id="01234567" * 4, sinks=[sink], tag_weights=True):
            engine.update_policy(None)
            engine.update_policy(None)
        sent = [body.decode().partition('"weight_version"')[2] for _, _, body in server.requests]
    assert [[TAG(n) in one for n in (1, 2)] for one in sent] == [[True, False], [True, False], [False, True]]
    assert [record.version for record in sink.records] == [TAG(1), TAG(2)]
    assert [event.version for event in sink.events if isinstance(event, SyncStarted)] == [TAG(1), TAG(2)]
    assert engine.body.keys() == {"model_path"}


def test_a_given_version_is_the_tag(tmp_path: Path) -> None:
    """``telemetry.sync(version=...)`` names the weights for the server too."""
    sink = RecordingSink()
    with FakeSGLang() as server:
        engine = SharedFolderEngine(server.url, str(tmp_path / "c"), timeout=10)
        with sglang_telemetry.instrument(engine, sinks=[sink], tag_weights=True) as telemetry:
            with telemetry.sync(version=41):
                engine.update_policy(SavableModel(width=8))
        [update] = [one.json() for one in server.requests if one.path == "/update_weights_from_disk"]
    assert (update["weight_version"], sink.records[0].version) == ("41", "41")


def test_a_rank_that_sends_nothing_knows_the_tag(tmp_path: Path) -> None:
    """Both ranks derive it alike; only with tags, since without them there is nothing to be seen."""

    class Quiet(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            return True

        def rollout(self) -> Any:
            return self.http.post(f"{self.base_url}/generate", json={})

    answer = f'{{"meta_info":{{"weight_version":"{TAG(1)}"}}}}'.encode()
    found = []
    with Answers((200, answer)) as server:
        for tag_weights in (True, False):
            engine, sink = Quiet(server.url, str(tmp_path)), RecordingSink()
            with sglang_telemetry.instrument(
                engine, run="r", run_id="01234567" * 4, rank=1, sinks=[sink], tag_weights=tag_weights
            ):
                engine.update_policy(None)
                engine.rollout()
            found += [event.counts for event in sink.events if isinstance(event, RolloutsSeen)]
            assert [record.version for record in sink.records] == [None]
    assert found == [{"current": 1}, {"unknown": 1}]


def test_streams_and_refusals_are_not_counted(tmp_path: Path) -> None:
    """What is not read yet stays unread, and what is no generation is none."""

    class Streaming(SharedFolderEngine):
        def rollout(self, **how: Any) -> Any:
            return self.http.post(f"{self.base_url}/generate", json={}, **how)

    sink = RecordingSink()
    with Answers((200, b'{"meta_info":{}}'), (503, b'{"meta_info":{}}'), (200, b"data: {}\n\n")) as server:
        engine = Streaming(server.url, str(tmp_path))
        with sglang_telemetry.instrument(engine, sinks=[sink]):
            with engine.rollout(stream=True) as streamed:
                assert streamed.raw.read() == b'{"meta_info":{}}'
            assert engine.rollout().status_code == 503
            engine.rollout()
    assert not [event for event in sink.events if isinstance(event, RolloutsSeen)]


def test_async_engine(tmp_path: Path) -> None:
    """Its requests are tagged and its answers counted when they are awaited."""

    class Answer:
        status_code = 200

        def __init__(self, content: bytes) -> None:
            self.content = content

    class Client:
        sent: Any = None

        async def post(self, url: str, *, json: Any) -> Answer:
            await asyncio.sleep(0)
            if url.endswith("/generate"):
                return Answer(f'{{"meta_info":{{"weight_version":"{self.sent["weight_version"]}"}}}}'.encode())
            self.sent = json
            return Answer(SUCCESS[1])

    class Asynchronous:
        base_url, http = "http://10.0.0.7:30000", Client()

        async def update_policy(self, model: Any) -> Any:
            return await self.http.post(f"{self.base_url}/update_weights_from_tensor", json={})

        async def rollout(self) -> Any:
            return await self.http.post(f"{self.base_url}/generate", json={})

    async def train(engine: Asynchronous) -> None:
        await engine.update_policy(None)
        await asyncio.gather(engine.rollout(), engine.rollout())

    engine, sink = Asynchronous(), RecordingSink()
    with sglang_telemetry.instrument(engine, run="r", run_id="01234567" * 4, sinks=[sink], tag_weights=True):
        asyncio.run(train(engine))
    assert engine.http.sent == {"weight_version": TAG(1)}
    counts = [event.counts for event in sink.events if isinstance(event, RolloutsSeen)]
    assert counts == [{"current": 1}, {"current": 1}]
