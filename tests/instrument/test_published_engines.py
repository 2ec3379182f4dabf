"""Engines of many shapes whose folder is published in one step: whatever they do, no checkpoint is lost or mistaken."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

import sglang_telemetry
from sglang_telemetry import FailureCause, Remedied, Remedies, Result
from sglang_telemetry.checkpoint.validate import fault_of
from sglang_telemetry.testing import FakeSGLang, Fault, RecordingSink
from tests.harness.minimind import SharedFolderEngine
from tests.harness.policy import Policy
from tests.harness.remedy_matrix import said

PUBLISH = Remedies(publish_atomically=True)
BOTH = Remedies(publish_atomically=True, validate=True)
ROUTE = "/update_weights_from_disk"


class Engine(SharedFolderEngine):
    """Saves and sends; what is different in an engine is a method of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, str(folder / "checkpoint"), timeout=10)
        self.http = requests.Session()
        self.servers = [self.base_url]

    def update_policy(self, model: Any) -> bool:
        """Save, send, and say how it went."""
        if not self.save_and_send(model):
            raise RuntimeError("SGLang update_policy failed")
        return True

    def save_and_send(self, model: Any) -> bool:
        """As most engines do it."""
        model.save_pretrained(self.shared_ckpt_path)
        return self.send(self.shared_ckpt_path)

    def send(self, path: str) -> bool:
        """To one server after the other."""
        return all(self.send_to(server, path) for server in self.servers)

    def send_to(self, server: str, path: str) -> bool:
        """One update."""
        answer = self.http.post(f"{server}{ROUTE}", json={"model_path": path}, timeout=self.timeout)
        return bool(answer.status_code == 200)


@pytest.fixture
def server(models: Path) -> Iterator[FakeSGLang]:
    """A server with its start weights."""
    with FakeSGLang(models / "base") as server:
        yield server


@pytest.fixture
def checksum(models: Path) -> Callable[[str], str]:
    """Of a server that runs one of the checkpoints."""

    def of(name: str) -> str:
        with FakeSGLang(models / name) as server:
            return server.state().checksum

    return of


def sync(
    engine: Engine, models: Path, *contents: str, remedies: Remedies = PUBLISH, **named: Any
) -> tuple[list[Any], RecordingSink]:
    """One sync after the other: what each returned or raised, and all that was told."""
    sink, policy, ends = RecordingSink(), Policy(models), []
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies, **named):
        for policy.content in contents:
            try:
                ends.append(engine.update_policy(policy))
            except Exception as error:
                ends.append(type(error))
    return ends, sink


def details(sink: RecordingSink, action: str = "publish") -> list[str]:
    """What was told of a remedy, in words."""
    return [one.remedy.detail for one in sink.events if isinstance(one, Remedied) and one.remedy.action == action]


def beside(folder: Path) -> list[str]:
    """What lies beside the checkpoint."""
    return sorted(one.name for one in folder.iterdir() if one.name != "checkpoint")


def test_two_servers_from_two_threads(
    server: FakeSGLang, models: Path, tmp_path: Path, checksum: Callable[[str], str]
) -> None:
    """It is exchanged once for both: twice would be the old weights again."""

    class Pooled(Engine):
        def send(self, path: str) -> bool:
            with ThreadPoolExecutor(len(self.servers)) as pool:
                return all(pool.map(lambda server: self.send_to(server, path), self.servers))

    with FakeSGLang(models / "base") as second, FakeSGLang(models / "base") as third:
        engine = Pooled(server.url, tmp_path)
        engine.servers = [server.url, second.url, third.url]
        ends, sink = sync(engine, models, "v3", "v2", "v3", "v2", remedies=BOTH)
        assert ends == [True] * 4
        for one in (server, second, third):
            assert one.state().checksum == checksum("v2")
            assert {sent.json()["model_path"] for sent in one.updates} == {str(tmp_path / "checkpoint")}
    assert sorted(details(sink)).count("is there already") == 8
    assert beside(tmp_path) == []


def test_one_save_a_server(server: FakeSGLang, models: Path, tmp_path: Path, checksum: Callable[[str], str]) -> None:
    """What is saved after the first update of a sync is what the second one sends, and what is looked at."""

    class Twice(Engine):
        def save_and_send(self, model: Any) -> bool:
            folder = self.shared_ckpt_path
            model.save_pretrained(folder)
            done = self.send_to(self.servers[0], folder)
            model.content = self.second
            model.save_pretrained(folder)
            return self.send_to(self.servers[1], folder) and done

        second = "v3"

    with FakeSGLang(models / "base") as other:
        engine = Twice(server.url, tmp_path)
        engine.servers = [server.url, other.url]
        assert sync(engine, models, "v2", remedies=BOTH)[0] == [True]
        assert (server.state().checksum, other.state().checksum) == (checksum("v2"), checksum("v3"))
        engine.second = "truncated"
        assert sync(engine, models, "v2", remedies=BOTH)[0] == [RuntimeError]
        assert len(other.updates) == 1
    assert fault_of(tmp_path / "checkpoint") is None


@pytest.mark.parametrize("mapped", [False, True])
def test_a_folder_a_step(
    mapped: bool, server: FakeSGLang, models: Path, tmp_path: Path, checksum: Callable[[str], str]
) -> None:
    """Below the folder that is led elsewhere: each is where the engine has put it, and what it kept is there still."""
    if mapped:  # the server's host knows it by another name
        (tmp_path / "elsewhere").symlink_to(tmp_path)

    class Steps(Engine):
        step = 0

        def save_and_send(self, model: Any) -> bool:
            self.step += 1
            folder = os.path.join(self.shared_ckpt_path, f"step-{self.step}")
            model.save_pretrained(folder)
            return self.send(folder.replace(str(tmp_path), str(tmp_path / "elsewhere")) if mapped else folder)

    ends, sink = sync(Steps(server.url, tmp_path), models, "v3", "truncated", "v2", remedies=BOTH)
    assert ends == [True, RuntimeError, True]
    root = tmp_path / "elsewhere" if mapped else tmp_path
    assert [one.json()["model_path"] for one in server.updates] == [
        str(root / "checkpoint" / "step-1"),
        str(root / "checkpoint" / "step-3"),
    ]
    assert server.state().checksum == checksum("v2")
    assert sorted(one.name for one in (tmp_path / "checkpoint").iterdir()) == ["step-1", "step-3"]
    assert said(sink.events) == ["validate done", "publish done", "validate refused", "validate done", "publish done"]


def test_a_client_of_its_own(server: FakeSGLang, models: Path, tmp_path: Path, checksum: Callable[[str], str]) -> None:
    """Its update names the folder beside: what was saved is put in its place after it, and then it saves there."""

    class Own(Engine):
        def send_to(self, server: str, path: str) -> bool:
            with requests.Session() as session:
                return session.post(f"{server}{ROUTE}", json={"model_path": path}, timeout=9).status_code == 200

    ends, sink = sync(Own(server.url, tmp_path), models, "v3", "v2")
    assert ends == [True, True]
    assert said(sink.events) == ["publish failed"]
    assert "did not go through engine.http" in details(sink)[0]
    assert "off from here on" in details(sink)[0]
    assert server.updates[1].json() == {"model_path": str(tmp_path / "checkpoint")}
    assert server.state().checksum == checksum("v2")
    assert fault_of(tmp_path / "checkpoint") is None
    assert beside(tmp_path) == []


def test_a_body_by_its_place(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """``post(url, None, {...})`` is what ``post(url, json={...})`` is."""

    class Positional(Engine):
        def send_to(self, server: str, path: str) -> bool:
            return bool(self.http.post(f"{server}{ROUTE}", None, {"model_path": path}).status_code == 200)

    remedies = Remedies(publish_atomically=True, tag_weights=True)
    ends, sink = sync(Positional(server.url, tmp_path), models, "v2", remedies=remedies, run="grpo")
    assert (ends, said(sink.events)) == ([True], ["publish done"])
    body = server.updates[0].json()
    assert body.pop("weight_version").startswith("grpo:")
    assert body == {"model_path": str(tmp_path / "checkpoint")}


@pytest.mark.parametrize("kind", ["absolute", "step", "path"])
def test_an_engine_that_sets_its_folder_itself(kind: str, server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """After the sync it is what it would be without us."""

    class Sets(Engine):
        def save_and_send(self, model: Any) -> bool:
            now: Any = os.path.abspath(self.shared_ckpt_path) + "/"
            if kind == "step":
                now = os.path.join(self.shared_ckpt_path, "step")
            elif kind == "path":
                now = Path(self.shared_ckpt_path)
            self.shared_ckpt_path = now
            model.save_pretrained(now)
            return self.send(str(now))

    engine = Sets(server.url, tmp_path)
    assert sync(engine, models, "v2")[0] == [True]
    wanted = tmp_path / "checkpoint" / "step" if kind == "step" else tmp_path / "checkpoint"
    assert os.path.normpath(engine.shared_ckpt_path) == str(wanted)
    assert isinstance(engine.shared_ckpt_path, Path if kind == "path" else str)
    assert os.path.normpath(server.updates[0].json()["model_path"]) == str(wanted)


def test_an_update_that_names_the_folder_in_its_own_way(
    server: FakeSGLang, models: Path, tmp_path: Path, checksum: Callable[[str], str]
) -> None:
    """The server's host has it under another name, which the engine was told at its start: it finds the new weights."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model").symlink_to(tmp_path / "checkpoint")

    class Told(Engine):
        def save_and_send(self, model: Any) -> bool:
            model.save_pretrained(self.shared_ckpt_path)
            return self.send(str(tmp_path / "elsewhere" / "model"))

    ends, sink = sync(Told(server.url, tmp_path), models, "v3", "v2", remedies=BOTH)
    assert ends == [True, True]
    assert server.state().checksum == checksum("v2")
    assert said(sink.events) == ["validate done", "publish done"] * 2


def test_a_link_to_where_it_saves(
    server: FakeSGLang, models: Path, tmp_path: Path, checksum: Callable[[str], str]
) -> None:
    """A link that leads to the folder beside cannot be led elsewhere: from then on the engine saves into its own."""

    class Latest(Engine):
        def save_and_send(self, model: Any) -> bool:
            model.save_pretrained(self.shared_ckpt_path)
            latest = tmp_path / "latest"
            latest.unlink(missing_ok=True)
            latest.symlink_to(self.shared_ckpt_path)
            return self.send(str(latest))

    ends, sink = sync(Latest(server.url, tmp_path), models, "v3", "v2")
    assert ends == [True, True]
    assert said(sink.events) == ["publish skipped", "publish failed"]
    assert server.state().checksum == checksum("v2")
    assert (tmp_path / "latest").resolve() == tmp_path / "checkpoint"
    assert fault_of(tmp_path / "checkpoint") is None


def test_what_is_saved_after_the_update(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """A tokenizer, the weights once more: they come to the folder, over what is there."""

    class Late(Engine):
        def save_and_send(self, model: Any) -> bool:
            folder = Path(self.shared_ckpt_path)
            model.save_pretrained(folder)
            (folder / "tokenizer.json").write_text("early")
            done = self.send(str(folder))
            (folder / "sub").mkdir(parents=True)
            (folder / "tokenizer.json").write_text("late")
            (folder / "sub" / "notes").write_text("late")
            return done

    assert sync(Late(server.url, tmp_path), models, "v2")[0] == [True]
    live = tmp_path / "checkpoint"
    assert (live / "tokenizer.json").read_text() == (live / "sub" / "notes").read_text() == "late"
    assert fault_of(live) is None
    assert beside(tmp_path) == []


def test_a_save_without_an_update(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """Somebody else sends it, such as another process that watches the folder: it is there when the call returns."""

    class Saves(Engine):
        def save_and_send(self, model: Any) -> bool:
            (Path(self.shared_ckpt_path) / "tokenizer.json").write_text(model.content)
            return True

    assert sync(Saves(server.url, tmp_path), models, "v2", "v3")[0] == [True, True]
    assert (tmp_path / "checkpoint" / "tokenizer.json").read_text() == "v3"
    assert beside(tmp_path) == []


def test_weights_that_others_write_into_the_folder(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """Another rank that saves its shards there knows nothing of a folder beside: said at once, and nothing is lost."""

    class Sharded(Engine):
        def save_and_send(self, model: Any) -> bool:
            live = tmp_path / "checkpoint"
            shutil.copytree(models / "v3", live)  # as another rank does, which is not led elsewhere
            model.save_pretrained(self.shared_ckpt_path)
            return self.send(self.shared_ckpt_path)

    ends, sink = sync(Sharded(server.url, tmp_path), models, "v2")
    assert ends == [RuntimeError]
    assert sink.records[0].cause is FailureCause.CHECKPOINT_WRITE
    assert "leave publish_atomically off" in (sink.records[0].error_text or "")
    assert server.updates == ()
    assert fault_of(tmp_path / "checkpoint") is None


def test_a_checkpoint_without_weights_is_not_the_one_before(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """Its update would load the old weights, and be taken for a success."""
    ends, sink = sync(Engine(server.url, tmp_path), models, "v3", "noweights")
    assert ends == [True, RuntimeError]
    assert said(sink.events) == ["publish done", "publish refused"]
    assert len(server.updates) == 1


def test_inside_a_sync_of_the_callers(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """It is published, nothing is left beside; whether the run goes on is the caller's to say."""
    engine, sink, policy = Engine(server.url, tmp_path), RecordingSink(), Policy(models)
    remedies = Remedies(publish_atomically=True, validate=True, on_failure="continue_stale", stale_syncs=3)
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies) as telemetry:
        with telemetry.sync(version=1):
            assert engine.update_policy(policy) is True
        policy.content = "truncated"
        with pytest.raises(RuntimeError), telemetry.sync(version=2):
            engine.update_policy(policy)
    assert said(sink.events) == ["validate done", "publish done", "validate refused", "continue_stale refused"]
    assert "telemetry.sync()" in details(sink, "continue_stale")[0]
    assert [one.result for one in sink.records] == [Result.SUCCESS, Result.FAILURE]
    assert beside(tmp_path) == []


def test_a_rank_that_sends_nothing(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """It needs no such folder: nothing is tried out, and nothing is refused."""
    engine = Engine(server.url, tmp_path / "not" / "here")
    sink = RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=PUBLISH, rank=1, world_size=2):
        assert engine.shared_ckpt_path == str(tmp_path / "not" / "here" / "checkpoint")


def test_an_update_that_failed_leaves_what_it_named(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """The server may be loading from it: the new checkpoint is in its place, as it would be without us."""
    server.inject(Fault.OUT_OF_MEMORY)
    ends, _ = sync(Engine(server.url, tmp_path), models, "v2")
    assert ends == [RuntimeError]
    assert json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    assert fault_of(tmp_path / "checkpoint") is None


def test_what_a_crash_has_left_is_told_in_the_first_sync(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """It went at the start; somebody may want to know that there was a crash."""
    left = tmp_path / ".checkpoint.sglang-telemetry-staging-00000000-01234567"
    left.mkdir()
    ends, sink = sync(Engine(server.url, tmp_path), models, "v3", "v2")
    assert (ends, said(sink.events)) == ([True, True], ["clean_up done", "publish done", "publish done"])
    assert details(sink, "clean_up") == [f"removed {left}"]


@pytest.mark.parametrize("does", ["copies", "links", "moves", "removes"])
def test_what_an_engine_does_with_its_folder_after_the_update(
    does: str, server: FakeSGLang, models: Path, tmp_path: Path, checksum: Callable[[str], str]
) -> None:
    """It finds there what it has saved; what it takes away is gone, and what it keeps is what it was."""

    class Goes(Engine):
        def save_and_send(self, model: Any) -> bool:
            folder = self.shared_ckpt_path
            done = super().save_and_send(model)
            kept = tmp_path / f"kept-{model.content}"
            if does == "copies":
                shutil.copytree(folder, kept)
            elif does == "links":
                shutil.copytree(folder, kept, copy_function=os.link)
            elif does == "moves":
                shutil.move(folder, kept)
            else:
                shutil.rmtree(folder)
            return done

    ends, sink = sync(Goes(server.url, tmp_path), models, "v3", "v2", remedies=BOTH)
    assert ends == [True, True]
    assert said(sink.events) == ["validate done", "publish done"] * 2
    assert server.state().checksum == checksum("v2")
    names = sorted(one.name for one in tmp_path.iterdir())
    kept = [] if does == "removes" else ["kept-v2", "kept-v3"]
    assert names == (["checkpoint"] if does in {"copies", "links"} else []) + kept
    for name in kept:
        with FakeSGLang(tmp_path / name) as again:
            assert again.state().checksum == checksum(name[-2:])


def test_another_working_folder(
    server: FakeSGLang, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checksum: Callable[[str], str]
) -> None:
    """A relative path leads to where the process is now, as it would without us."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    engine, sink, policy = Engine(server.url, tmp_path), RecordingSink(), Policy(models)
    engine.shared_ckpt_path = "./checkpoint"
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=BOTH):
        assert engine.update_policy(policy) is True
        monkeypatch.chdir(tmp_path / "second")
        policy.content = "v3"
        assert engine.update_policy(policy) is True
    assert server.state().checksum == checksum("v3")
    named = [one.json()["model_path"] for one in server.updates]
    assert named == [str(tmp_path / name / "checkpoint") for name in ("first", "second")]
    assert engine.shared_ckpt_path == "./checkpoint"


def test_a_save_that_outlives_its_sync(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """It is sent by the next one, which cannot know where it belongs: said with the reason."""

    class Behind(Engine):
        saved = ""

        def save_and_send(self, model: Any) -> bool:
            done = not self.saved or self.send(self.saved)
            self.saved = self.shared_ckpt_path
            return done

    ends, sink = sync(Behind(server.url, tmp_path), models, "v2", "v2")
    assert ends == [True, RuntimeError]
    assert "while update_policy runs: leave it off" in (sink.records[1].error_text or "")
    assert server.updates == ()
