"""Answers counted by the policy that made them: tags, labels that say nothing, and text that pretends."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

import sglang_telemetry
from sglang_telemetry.events import RolloutsSeen
from sglang_telemetry.instrument.generations import Generation, generations
from sglang_telemetry.testing import FakeSGLang, Fault, ManualClock, RecordingSink
from tests.harness.minimind import SavableModel, SharedFolderEngine


class Engine(SharedFolderEngine):
    """One that generates."""

    def rollout(self, count: int = 1, **body: Any) -> Any:
        """The server's own answers, as they came."""
        return [
            self.http.post(f"{self.base_url}/generate", json={"text": "x", **body}, timeout=10) for _ in range(count)
        ]


class Trainer:
    """An engine that is instrumented, with a clock that a test sets."""

    def __init__(self, folder: Path, server: FakeSGLang, **how: Any) -> None:
        self.clock, self.sink = ManualClock(), RecordingSink()
        self.engine = Engine(server.url, str(folder / "checkpoint"), timeout=10)
        self.telemetry = sglang_telemetry.instrument(
            self.engine, sinks=[self.sink], run="r", run_id="01234567" * 4, clock=self.clock, **how
        )
        self.model = SavableModel(width=8)

    def counts(self) -> dict[str, int]:
        """All that was told, after everything was."""
        self.telemetry.uninstrument()
        total: dict[str, int] = {}
        for event in self.sink.events:
            if isinstance(event, RolloutsSeen):
                for policy, count in {**event.counts, "aborted": event.aborted}.items():
                    total[policy] = total.get(policy, 0) + count
        return {policy: count for policy, count in total.items() if count}


@pytest.fixture
def server() -> Iterator[FakeSGLang]:
    """With its start weights."""
    with FakeSGLang() as one:
        yield one


def updates(server: FakeSGLang) -> list[Any]:
    """The bodies of the updates that it got."""
    return [one.json() for one in server.requests if one.path == "/update_weights_from_disk"]


def test_request_is_the_engines_own_unless_tags_are_wanted(tmp_path: Path, server: FakeSGLang) -> None:
    """Off by default; on, one field is added and the record names it."""
    plain = Trainer(tmp_path, server)
    plain.engine.update_policy(plain.model)
    plain.telemetry.uninstrument()
    tagged = Trainer(tmp_path, server, tag_weights=True)
    tagged.engine.update_policy(tagged.model)
    tagged.telemetry.uninstrument()
    path = str(tmp_path / "checkpoint")
    assert updates(server) == [{"model_path": path}, {"model_path": path, "weight_version": "r:01234567:1"}]
    assert (plain.sink.records[0].version, tagged.sink.records[0].version) == (None, "r:01234567:1")
    assert server.state().weight_version == "r:01234567:1"


def test_engine_that_names_its_weights_keeps_its_name(tmp_path: Path, server: FakeSGLang) -> None:
    """Its own ``weight_version`` goes out, and is in the record."""

    class Naming(Engine):
        """Names the step itself."""

        def update_policy(self, model: Any) -> bool:
            """Send what was saved before."""
            model.save_pretrained(self.shared_ckpt_path, state_dict=model.state_dict())
            body = {"model_path": self.shared_ckpt_path, "weight_version": "step-7"}
            return bool(self.http.post(f"{self.base_url}/update_weights_from_disk", json=body, timeout=10).ok)

    sink = RecordingSink()
    engine = Naming(server.url, str(tmp_path / "checkpoint"), timeout=10)
    with sglang_telemetry.instrument(engine, sinks=[sink], tag_weights=True):
        engine.update_policy(SavableModel(width=8))
    assert [body["weight_version"] for body in updates(server)] == ["step-7"]
    assert sink.records[0].version == "step-7"


def test_current_and_stale(tmp_path: Path, server: FakeSGLang) -> None:
    """What comes from the last synced weights, and what from those before."""
    trainer = Trainer(tmp_path, server, tag_weights=True)
    trainer.engine.update_policy(trainer.model)
    trainer.engine.rollout(3)
    server.inject(Fault.NOT_APPLIED)
    trainer.engine.update_policy(trainer.model)
    answers = trainer.engine.rollout(2)
    assert [type(one) for one in answers] == [requests.Response] * 2
    assert trainer.counts() == {"current": 3, "stale": 2}


def test_without_tags_nothing_is_known(tmp_path: Path, server: FakeSGLang) -> None:
    """``default`` stands for whatever is loaded."""
    trainer = Trainer(tmp_path, server)
    trainer.engine.update_policy(trainer.model)
    trainer.engine.rollout(2)
    assert trainer.counts() == {"unknown": 2}


def test_told_at_most_once_a_second_and_all_in_the_end(tmp_path: Path, server: FakeSGLang) -> None:
    """Many small answers are few lines in the journal."""
    trainer = Trainer(tmp_path, server)
    trainer.engine.rollout(5)
    trainer.clock.advance(1)
    trainer.engine.rollout(5)
    assert [event.counts for event in trainer.sink.events if isinstance(event, RolloutsSeen)] == [
        {"unknown": 1},
        {"unknown": 5},
    ]
    assert trainer.counts() == {"unknown": 10}


def meta(*versions: str, reason: str = "stop", text: str = "") -> dict[str, Any]:
    """One generation, as SGLang 0.5.23 writes it."""
    spans = [{"version": one, "start": n, "end": n + 1} for n, one in enumerate(versions)]
    return {
        "text": text,
        "meta_info": {
            "id": "1",
            "finish_reason": {"type": reason},
            "weight_version": versions[-1],
            "weight_versions": spans,
        },
    }


@pytest.mark.parametrize("indent", [None, 2])
def test_generations(indent: int | None) -> None:
    """One, several, mixed, aborted, and the metadata of the OpenAI routes."""
    body = [meta("a"), meta("a", "b", reason="abort"), meta("b", text='\\" "weight_version":"x" \\\\')]
    assert generations(json.dumps(body, indent=indent).encode()) == [
        Generation(versions=frozenset({"a"})),
        Generation(versions=frozenset({"a", "b"}), aborted=True),
        Generation(versions=frozenset({"b"})),
    ]
    openai = {"choices": [{"finish_reason": "stop"}], "metadata": {"weight_version": "a", "weight_versions": []}}
    assert generations(json.dumps(openai, indent=indent).encode()) == [Generation(versions=frozenset({"a"}))]


@pytest.mark.parametrize("body", [b"", b"[]", b"data: {}", b"\xff\xfe\x00", b"<html>"])
def test_what_is_no_json_document_is_not_counted(body: bytes) -> None:
    """A stream, a page, nothing."""
    assert generations(body) == []


@pytest.mark.parametrize("seed", range(20))
def test_text_cannot_pass_for_a_version(seed: int) -> None:
    """Whatever a model writes, with backslashes and quotes in any number."""
    dice = random.Random(seed)
    pieces = ["\\", '"', '"weight_version":"evil"', '"meta_info":{', '"finish_reason":"abort"', " ", ":", "x", "]"]
    text = "".join(dice.choice(pieces) for _ in range(200))
    assert generations(json.dumps(meta("good", text=text)).encode()) == [Generation(versions=frozenset({"good"}))]
