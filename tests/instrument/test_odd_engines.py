"""Engines, clients and answers that are not what one expects: the trainer must not notice that somebody looked."""

import io
import os
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
import requests

import sglang_telemetry
from sglang_telemetry import FailureCause, Result
from sglang_telemetry.events import EnginePrint, TelemetryError
from sglang_telemetry.instrument.seams import shadow
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


def test_two_engines_that_share_a_model_leave_no_trace(tmp_path: Path) -> None:
    """Hooks of two syncs that end in the order in which they began: nothing stays on the model, nothing grows."""
    model = SavableModel()
    sinks = RecordingSink(), RecordingSink()
    with Answers(SUCCESS) as server:
        first, second = (SharedFolderEngine(server.url, str(tmp_path / n), timeout=5) for n in "ab")
        with (
            sglang_telemetry.instrument(first, run="a", sinks=[sinks[0]]),
            sglang_telemetry.instrument(second, run="b", sinks=[sinks[1]]) as other,
        ):
            instrument = other._instrument
            assert instrument is not None
            for _ in range(5):
                sync, restores, alone = instrument.begin(model)
                first.update_policy(model)  # begins and ends while the other's hooks are in
                for restore in restores:
                    restore()
                instrument.finish(alone)
                assert sync is not None
                sync.end()
    assert not {"state_dict", "save_pretrained"} & vars(model).keys()
    assert [len(sink.records) for sink in sinks] == [5, 5]


def test_hooks_that_end_in_the_order_they_began() -> None:
    """The lower hook goes first: the upper one stays, and takes the lower one with it."""

    class Owner:
        def save(self) -> str:
            return "saved"

    owner = Owner()
    seen: list[str] = []

    def around(name: str) -> Any:
        def call(original: Any, args: Any, kwargs: Any) -> Any:
            seen.append(name)
            return original(*args, **kwargs)

        return call

    lower = shadow(owner, "save", around("lower"))
    upper = shadow(owner, "save", around("upper"))
    assert lower is not None
    assert upper is not None
    assert owner.save() == "saved"
    lower()
    assert owner.save() == "saved"
    upper()
    assert owner.save() == "saved"
    assert seen == ["upper", "lower", "upper"]
    assert "save" not in vars(owner)


@pytest.mark.parametrize("http", [requests.post, "http://10.0.0.7", {"post": 1}, 7])
def test_http_that_is_no_client_is_left_alone(http: Any) -> None:
    """A function, a string, a dictionary: the engine finds what it put there."""

    class Holding:
        def __init__(self) -> None:
            self.http = http

        def update_policy(self, model: Any) -> Any:
            return self.http

    engine, sink = Holding(), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        assert engine.update_policy(None) is http
    assert len(sink.records) == 1


class Hostile:
    """A model that answers no question."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def test_sync_without_its_seams_is_still_recorded() -> None:
    """The seams cannot be put in: the sync is counted all the same, and the error as well."""

    class Plain:
        def update_policy(self, model: Any) -> str:
            return "done"

    engine, sink = Plain(), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        assert engine.update_policy(Hostile()) == "done"
    assert [r.result for r in sink.records] == [Result.SUCCESS]
    assert any(isinstance(event, TelemetryError) for event in sink.events)


@pytest.mark.parametrize("header", [b"[]", b'{"a":5}', b'{"a":{"dtype":"F16"}}', b'{"a":{"data_offsets":[0]}}'])
def test_failure_with_a_corrupt_checkpoint_is_recorded(tmp_path: Path, header: bytes) -> None:
    """Headers that are JSON and nothing else, a FIFO beside them: a fault of the checkpoint, not of the record."""

    class Corrupt(SavableModel):
        def save_pretrained(self, path: str, **named: Any) -> None:
            Path(path).mkdir(exist_ok=True)
            (Path(path) / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
            if not (Path(path) / "pipe.bin").exists():
                os.mkfifo(Path(path) / "pipe.bin")

    sink = RecordingSink()
    with Answers((400, b'{"success":false,"message":"odd"}')) as server:
        engine = SharedFolderEngine(server.url, str(tmp_path / "c"), timeout=5)
        with sglang_telemetry.instrument(engine, sinks=[sink]), pytest.raises(RuntimeError):
            engine.update_policy(Corrupt())
    [record] = sink.records
    assert record.cause is FailureCause.SERVER_ERROR
    assert record.checkpoint is not None
    assert record.checkpoint.fault is not None


def test_unprintable_failure_is_counted() -> None:
    """The record of a failure whose text raises is written, with what is left to say."""
    sink = RecordingSink()

    class Failing:
        def update_policy(self, model: Any) -> None:
            raise Unprintable

    engine = Failing()
    with sglang_telemetry.instrument(engine, sinks=[sink]), pytest.raises(Unprintable):
        engine.update_policy(None)
    assert [(r.result, r.cause, r.error_type) for r in sink.records] == [
        (Result.FAILURE, FailureCause.UNKNOWN, "Unprintable")
    ]


def test_endless_attributes_are_no_endless_check() -> None:
    """An engine that answers every attribute can be instrumented."""
    engine = MagicMock()
    with sglang_telemetry.instrument(engine, sinks=[RecordingSink()]):
        engine.update_policy(None)


class Streaming(Client):
    """A client that leaves bodies to be read later, by its own setting, as a Session can."""

    stream = True


class Unread:
    """An answer whose body must not be read."""

    status_code = 200
    read = False

    @property
    def content(self) -> bytes:
        """Remember that it was."""
        self.read = True
        return b""


def test_streamed_answer_is_not_read() -> None:
    """Reading its body would wait for it."""
    answer, sink = Unread(), RecordingSink()
    engine = Posting(Streaming(answer))
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        engine.update_policy(None)
    assert answer.read is False
    assert [r.result for r in sink.records] == [Result.SUCCESS]


def test_a_url_that_is_relative() -> None:
    """Its first part is no server, and what it may carry is in no label."""

    class Relative(Posting):
        def update_policy(self, model: Any) -> Any:
            return self.http.post("v0/update_weights_from_disk?token=hunter2", json={"model_path": "/x"})

    sink = RecordingSink()
    with sglang_telemetry.instrument(Relative(Client(None)), sinks=[sink]) as telemetry:
        assert telemetry._instrument is not None
        telemetry._instrument._engine.update_policy(None)
    assert sink.records[0].target.server == "10.0.0.7:30000"
    assert "hunter2" not in repr(sink.events)
