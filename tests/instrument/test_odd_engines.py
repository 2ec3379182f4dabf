"""Engines, clients and answers that are not what one expects: the trainer must not notice that somebody looked."""

import io
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
import requests

import sglang_telemetry
from sglang_telemetry import FailureCause, Result
from sglang_telemetry.events import EnginePrint, TelemetryError
from sglang_telemetry.names import Component
from sglang_telemetry.testing import RecordingSink
from tests.harness.answers import SUCCESS, Answers
from tests.harness.minimind import SavableModel, SharedFolderEngine


class Unprintable(Exception):
    """Its text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Posting:
    """Posts through a client of its own, and hands its answer on."""

    def __init__(self, http: Any) -> None:
        self.http, self.base_url = http, "http://10.0.0.7:30000"

    def update_policy(self, model: Any) -> Any:
        """Push."""
        return self.http.post(f"{self.base_url}/update_weights_from_disk", json={"model_path": "/x"})


class Client:
    """Answers, or raises, what it is given."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def post(self, url: str, **named: Any) -> Any:
        """Answer."""
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def test_exception_without_a_text() -> None:
    """The engine gets its own exception, not one of ours about it."""
    error, sink = Unprintable(), RecordingSink()
    engine = Posting(Client(error))
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        with pytest.raises(Unprintable) as caught:
            engine.update_policy(None)
    assert caught.value is error
    assert any(isinstance(event, TelemetryError) for event in sink.events)


class NoContent:
    """An answer whose body cannot be had."""

    status_code = 200

    @property
    def content(self) -> bytes:
        """Raise."""
        raise RuntimeError("the stream was consumed")


@pytest.mark.parametrize("answer", [NoContent(), None, object(), MagicMock(status_code=200), "text"])
def test_odd_answers_reach_the_engine(answer: Any) -> None:
    """Whatever the client returned is what the engine gets."""
    engine, sink = Posting(Client(answer)), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        assert engine.update_policy(None) is answer
    assert len(sink.records) == 1


@pytest.mark.parametrize("size", [1 << 20, 8 << 20])
def test_huge_binary_answer(tmp_path: Path, size: int) -> None:
    """Cut, with its true length; it is another program's."""
    sink = RecordingSink()
    with Answers((200, b"\x00\xff" * (size // 2))) as server:
        engine = SharedFolderEngine(server.url, str(tmp_path / "c"), timeout=20)
        with sglang_telemetry.instrument(engine, sinks=[sink]):
            engine.update_policy(SavableModel())
    [record] = sink.records
    assert (record.result, record.cause) == (Result.FAILURE, FailureCause.PROTOCOL)
    assert record.exchange is not None
    assert record.exchange.response_bytes == size
    assert len((record.exchange.response_text or "").encode()) <= 8192


def test_properties_that_raise() -> None:
    """An engine that is not ready when it is instrumented: no server label, everything else as ever."""

    class NotReady:
        @property
        def base_url(self) -> str:
            raise RuntimeError("not connected yet")

        timeout = shared_ckpt_path = tokenizer = http = base_url

        def update_policy(self, model: Any) -> str:
            return "done"

    engine, sink = NotReady(), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        assert engine.update_policy(None) == "done"
    assert [(r.result, r.target.server) for r in sink.records] == [(Result.SUCCESS, None)]


def test_client_of_the_class(tmp_path: Path) -> None:
    """``http`` may be an attribute of the class: recorded all the same, and the class is not touched."""

    class OfClass(SharedFolderEngine):
        http: ClassVar[Any] = requests

    sink = RecordingSink()
    with Answers(SUCCESS) as server:
        engine = OfClass(server.url, str(tmp_path / "c"), timeout=5)
        del engine.http
        with sglang_telemetry.instrument(engine, sinks=[sink]):
            engine.update_policy(SavableModel())
        assert "http" not in vars(engine)
        assert OfClass.http is requests
    assert sink.records[0].exchange is not None


@pytest.mark.parametrize("model", [None, MagicMock(), object(), 7])
def test_odd_models(model: Any) -> None:
    """Anything may be pushed."""

    class Any_:
        def update_policy(self, model: Any) -> Any:
            return model

    engine, sink = Any_(), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        assert engine.update_policy(model) is model
    assert [r.result for r in sink.records] == [Result.SUCCESS]


class Unhashable(io.StringIO):
    """A file that cannot be in a set."""

    __hash__ = None  # type: ignore[assignment]


def test_prints_of_all_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    """To other files as ever; to stdout, as one text with the separator that was asked for."""
    elsewhere = Unhashable()

    class Printing:
        def update_policy(self, model: Any) -> None:
            print("a", 1, sep="")
            print("b", None)
            print("c", "d", sep=None, end="")
            print("elsewhere", file=elsewhere)

    engine, sink = Printing(), RecordingSink(Component.LOG)
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        engine.update_policy(None)
    assert [event.text for event in sink.events if isinstance(event, EnginePrint)] == ["a1", "b None", "c d"]
    assert elsewhere.getvalue() == "elsewhere\n"
    assert capsys.readouterr().out == ""
