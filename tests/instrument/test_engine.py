"""The promises to the trainer: nothing changes for it, whatever happens on our side."""

import asyncio
import copy
import functools
import logging
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
import torch.distributed as dist
from torch import nn

import sglang_telemetry
from sglang_telemetry import FailureCause, Phase, Result
from sglang_telemetry.events import (
    CheckpointInspected,
    EnginePrint,
    Event,
    PhaseStarted,
    ProcessEnded,
    ProcessStarted,
    SyncStarted,
    TelemetryError,
)
from sglang_telemetry.names import Applied, Component
from sglang_telemetry.testing.doubles import RecordingSink
from tests.harness import minimind
from tests.harness.answers import BUSY, SUCCESS, Answers
from tests.harness.minimind import SavableModel, SharedFolderEngine


class RaisingSink:
    """Raises at everything."""

    component = Component.SINK

    def emit(self, event: Event) -> None:
        raise OSError("this sink is broken")

    def close(self) -> None:
        raise OSError("this sink is broken")


class CountingEngine:
    """Returns or raises what it is told."""

    def __init__(self, outcome: Any = True) -> None:
        self.outcome = outcome
        self.calls: list[tuple[Any, ...]] = []

    def update_policy(self, model: Any, *more: Any, **named: Any) -> Any:
        """Push."""
        self.calls.append((model, more, named))
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def engine_for(server: Answers, tmp_path: Path) -> SharedFolderEngine:
    return SharedFolderEngine(server.url, str(tmp_path / "checkpoint"), timeout=5)


@pytest.mark.parametrize("outcome", [True, None, object(), False, [1]])
def test_result_passes_through_unchanged(outcome: Any) -> None:
    """What the engine returns is what the trainer gets, the very object."""
    engine = CountingEngine(outcome)
    with sglang_telemetry.instrument(engine, sinks=[RecordingSink()]):
        assert engine.update_policy("model", 1, two=2) is outcome
    assert engine.calls == [("model", (1,), {"two": 2})]


@pytest.mark.parametrize("sinks", [[RecordingSink()], [RaisingSink(), RaisingSink()]])
@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), SystemExit(3), MemoryError()])
def test_exception_passes_through_unchanged(error: BaseException, sinks: list[Any]) -> None:
    """The exception that leaves is the engine's own object, with the engine's frame in its traceback."""
    engine = CountingEngine(error)
    with sglang_telemetry.instrument(engine, sinks=sinks):
        with pytest.raises(type(error)) as caught:
            engine.update_policy("model")
    assert caught.value is error
    assert caught.traceback[-1].name == "update_policy"
    assert error.__context__ is None
    assert error.__cause__ is None


def test_false_counts_as_a_failure() -> None:
    """An engine that returns False instead of raising has failed too."""
    sink = RecordingSink()
    with sglang_telemetry.instrument(CountingEngine(False), sinks=[sink]) as telemetry:
        pass
    engine = CountingEngine(False)
    with sglang_telemetry.instrument(engine, sinks=[sink]) as telemetry:
        assert engine.update_policy("model") is False
    assert [(r.result, r.cause) for r in sink.records] == [(Result.FAILURE, FailureCause.UNKNOWN)]
    assert telemetry.identity.rank == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), asyncio.CancelledError()])
def test_a_stop_that_was_asked_for_is_cancelled(error: BaseException) -> None:
    """Ctrl-C and SIGTERM's SystemExit are no failures."""
    engine, sink = CountingEngine(error), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        with pytest.raises(type(error)):
            engine.update_policy("model")
    assert [(r.result, r.cause) for r in sink.records] == [(Result.CANCELLED, None)]


def test_a_good_sync_on_the_minimind_shape(tmp_path: Path) -> None:
    """Phases in order, sizes, server and the server's word, with all that was swapped put back."""
    sink, model = RecordingSink(Component.LOG), SavableModel()
    before = {name: getattr(dist, name) for name in ("broadcast", "barrier")}
    with Answers(SUCCESS) as server:
        engine = engine_for(server, tmp_path)
        attributes, kind = dict(vars(engine)), type(engine)
        with sglang_telemetry.instrument(engine, run="unit", sinks=[sink]):
            assert type(engine) is kind
            assert engine.update_policy(model) is True
            assert engine.http is requests
        assert vars(engine) == attributes
    [record] = sink.records
    assert [span.phase for span in record.phases] == [
        Phase.SETUP,
        Phase.STATE_DICT,
        Phase.SAVE,
        Phase.REQUEST,
        Phase.OTHER,
    ]
    assert sum(span.duration_ns for span in record.phases) == record.duration_ns
    assert (record.result, record.weights_applied, record.target.server) == (
        Result.SUCCESS,
        Applied.YES,
        server.server,
    )
    assert record.target.timeout_seconds == 5.0
    assert record.checkpoint is not None
    assert record.checkpoint.files == 1
    assert record.checkpoint.bytes == sum(p.stat().st_size for p in (tmp_path / "checkpoint").iterdir())
    assert {name: getattr(dist, name) for name in before} == before
    assert not {"state_dict", "save_pretrained"} & vars(model).keys()
    assert "print" not in vars(minimind)
    told = [e for e in sink.events if not isinstance(e, CheckpointInspected | PhaseStarted)]
    assert [type(e) for e in told] == [
        ProcessStarted,
        SyncStarted,
        type(record),
        ProcessEnded,
    ]


def test_what_the_bare_engine_sends_is_what_is_sent(tmp_path: Path) -> None:
    """Requests and files are byte for byte those of the engine without us, but for the header that a trace needs."""
    torch.manual_seed(3)
    model = SavableModel()
    with Answers(SUCCESS) as server:
        bare = engine_for(server, tmp_path)
        bare.update_policy(model)
        files = {p.name: p.read_bytes() for p in (tmp_path / "checkpoint").iterdir()}
        observed = engine_for(server, tmp_path)
        with sglang_telemetry.instrument(observed, sinks=[RecordingSink()]):
            observed.update_policy(model)
        assert {p.name: p.read_bytes() for p in (tmp_path / "checkpoint").iterdir()} == files
        with sglang_telemetry.instrument(observed, sinks=[RecordingSink()], propagate=False):
            observed.update_policy(model)
        bare_one, with_trace, without = server.requests
    assert bare_one == without
    assert with_trace[1].pop("traceparent").startswith("00-")
    assert bare_one == with_trace


def test_a_failed_answer_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status, text, cause and whether the weights are new; the bare print is replaced by the record."""
    sink = RecordingSink(Component.LOG)
    with Answers(BUSY) as server:
        engine = engine_for(server, tmp_path)
        with sglang_telemetry.instrument(engine, sinks=[sink]):
            with pytest.raises(RuntimeError, match="SGLang update_policy failed"):
                engine.update_policy(SavableModel())
    [record] = sink.records
    assert (record.cause, record.weights_applied, record.error_type) == (
        FailureCause.SERVER_BUSY,
        Applied.YES,
        "400",
    )
    assert record.exchange is not None
    assert (record.exchange.status_code, record.exchange.response_text) == (400, BUSY[1].decode())
    assert [(e.recognised, e.text[:8]) for e in sink.events if isinstance(e, EnginePrint)] == [(True, "[engine]")]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("sinks", [[RecordingSink()], [RaisingSink()], []])
def test_a_print_that_no_log_takes_is_printed(
    tmp_path: Path, sinks: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a log sink that works, the engine's own words are not lost."""
    with Answers(BUSY) as server:
        engine = engine_for(server, tmp_path)
        with sglang_telemetry.instrument(engine, sinks=sinks):
            with pytest.raises(RuntimeError):
                engine.update_policy(SavableModel())
    assert capsys.readouterr().out.startswith("[engine] weights were not taken: 400")


@pytest.mark.parametrize(("level", "printed"), [("WARNING", False), ("ERROR", True), ("CRITICAL", True)])
def test_a_print_that_the_host_filters_out_is_printed(
    tmp_path: Path, level: str, printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A print that nobody recognises is a warning: below the host's level it stays a print."""

    class Chatty(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            print("[engine] half way")
            return True

    logging.getLogger("sglang_telemetry").setLevel(level)
    try:
        engine = Chatty("http://127.0.0.1:1")
        with sglang_telemetry.instrument(engine, sinks=[sglang_telemetry.LogSink()]):
            engine.update_policy(None)
    finally:
        logging.getLogger("sglang_telemetry").setLevel(logging.NOTSET)
    assert ("[engine] half way" in capsys.readouterr().out) is printed


def test_success_false_with_status_200_is_a_failure(tmp_path: Path) -> None:
    """The engine looks at the status only and is content; the record is not, and the result is not touched."""
    sink = RecordingSink()
    with Answers((200, b'{"success":false,"message":"nope"}')) as server:
        engine = engine_for(server, tmp_path)
        with sglang_telemetry.instrument(engine, sinks=[sink]):
            assert engine.update_policy(SavableModel()) is True
    assert [(r.result, r.cause) for r in sink.records] == [(Result.FAILURE, FailureCause.SERVER_ERROR)]


def test_a_session_is_recorded_and_stays_a_session(tmp_path: Path) -> None:
    """``engine.http`` may be a Session; inside the call it still looks like one."""
    sink, seen = RecordingSink(), []

    class SessionEngine(SharedFolderEngine):
        def update_policy(self, model: nn.Module) -> bool:
            seen.append(isinstance(self.http, requests.Session))
            self.http.headers["X-Test"] = "1"
            return super().update_policy(model)

    with Answers(SUCCESS) as server, requests.Session() as session:
        engine = SessionEngine(server.url, str(tmp_path / "c"), timeout=5)
        engine.http = session
        with sglang_telemetry.instrument(engine, sinks=[sink]):
            engine.update_policy(SavableModel())
        assert engine.http is session
        assert session.headers["X-Test"] == "1"
        assert server.requests[0][1]["X-Test"] == "1"
    assert seen == [True]
    assert sink.records[0].exchange is not None


def test_compiled_and_wrapped_models_are_unwrapped(tmp_path: Path) -> None:
    """torch.compile's wrapper keeps the real model in ``_orig_mod``; the seams sit on that one."""
    sink = RecordingSink()
    with Answers(SUCCESS) as server:
        engine = engine_for(server, tmp_path)
        with sglang_telemetry.instrument(engine, sinks=[sink]):
            engine.update_policy(torch.compile(SavableModel(), backend="eager"))
    assert {Phase.STATE_DICT, Phase.SAVE} <= {span.phase for span in sink.records[0].phases}


def test_double_instrumentation_is_refused() -> None:
    """The second call says what to do; after uninstrument() it is allowed again."""
    engine = CountingEngine()
    telemetry = sglang_telemetry.instrument(engine, sinks=[])
    with pytest.raises(RuntimeError, match=r"instrumented already.*uninstrument"):
        sglang_telemetry.instrument(engine, sinks=[])
    telemetry.uninstrument()
    telemetry.uninstrument()
    sglang_telemetry.instrument(engine, sinks=[]).uninstrument()
    assert "update_policy" not in vars(engine)


class Slotted:
    """Takes no attributes."""

    __slots__ = ()

    def update_policy(self, model: Any) -> bool:
        """Push."""
        return True


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (object(), "no method update_policy"),
        (CountingEngine, "this is a class"),
        (Slotted(), "__slots__"),
        (None, "no method update_policy"),
    ],
)
def test_what_cannot_be_instrumented_is_refused(wrong: Any, says: str) -> None:
    """A clear line that names the fix."""
    with pytest.raises(TypeError, match=says):
        sglang_telemetry.instrument(wrong)


def test_a_wrapper_over_ours_is_left_alone() -> None:
    """Somebody wrapped over us: uninstrument() leaves theirs, and ours becomes a plain pass-through."""
    engine, sink = CountingEngine(), RecordingSink()
    telemetry = sglang_telemetry.instrument(engine, sinks=[sink])
    ours = engine.update_policy

    @functools.wraps(ours)
    def theirs(model: Any) -> Any:
        return ours(model)

    engine.update_policy = theirs  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="instrumented already"):
        sglang_telemetry.instrument(engine, sinks=[])
    telemetry.uninstrument()
    assert engine.update_policy is theirs
    assert engine.update_policy("model") is True
    assert sink.records == []


@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_of_an_engine_work(how: Any) -> None:
    """A copied or pickled engine calls its own method, not the original's."""
    engine, sink = CountingEngine(), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        twin = how(engine)
        assert twin.update_policy("twin") is True
        if how is not copy.copy:
            assert [call[0] for call in twin.calls] == ["twin"]
            assert engine.calls == []
            assert sink.records == []


def test_async_engine_is_observed() -> None:
    """``async def update_policy`` is awaited, not timed as the making of a coroutine."""
    sink = RecordingSink()

    class AsyncEngine:
        async def update_policy(self, model: Any) -> str:
            await asyncio.sleep(0)
            return "done"

    engine = AsyncEngine()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        assert asyncio.run(engine.update_policy("model")) == "done"
    assert [r.result for r in sink.records] == [Result.SUCCESS]


def test_nested_call_is_part_of_the_outer_one() -> None:
    """An engine that calls itself again (a retry of its own) makes one sync."""
    sink = RecordingSink()

    class Retrying(CountingEngine):
        def update_policy(self, model: Any, again: bool = True) -> Any:  # type: ignore[override]
            return self.update_policy(model, again=False) if again else True

    engine = Retrying()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        assert engine.update_policy("model") is True
    assert len(sink.records) == 1


def test_two_calls_at_once_are_two_syncs(tmp_path: Path) -> None:
    """Two threads on one engine: both go through, both are counted, and nothing stays swapped."""
    sink, together = RecordingSink(), threading.Barrier(2, timeout=10)

    class Slow(SharedFolderEngine):
        def update_policy(self, model: nn.Module) -> bool:
            together.wait()
            done = super().update_policy(model)
            together.wait()
            return done

    with Answers(SUCCESS) as server:
        engines = Slow(server.url, str(tmp_path / "c"), timeout=5)
        model = SavableModel()
        with sglang_telemetry.instrument(engines, sinks=[sink]):
            threads = [threading.Thread(target=engines.update_policy, args=(model,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
    assert sorted(r.sequence for r in sink.records) == [1, 2]
    assert engines.http is requests
    assert "print" not in vars(minimind)
    assert not {"state_dict", "save_pretrained"} & vars(model).keys()


def test_edited_trainer_reports_phases() -> None:
    """``telemetry.sync()`` puts a trainer's own code on the same timeline."""
    sink = RecordingSink()
    with sglang_telemetry.Telemetry(run="edited", url="http://10.0.0.7:30000", sinks=[sink]) as telemetry:
        with telemetry.sync(version=41) as sync:
            with sync.phase("save"):
                pass
            with sync.phase("no such phase"):
                pass
        with pytest.raises(OSError, match="mount"), telemetry.sync(version=42) as sync, sync.phase("save"):
            raise OSError(30, "Read-only file system: mount")
        with telemetry.sync(version=43) as sync:
            sync.fail("the server said no")
    assert [(r.version, r.result, r.cause, r.target.server) for r in sink.records] == [
        ("41", Result.SUCCESS, None, "10.0.0.7:30000"),
        ("42", Result.FAILURE, FailureCause.CHECKPOINT_WRITE, "10.0.0.7:30000"),
        ("43", Result.FAILURE, FailureCause.UNKNOWN, "10.0.0.7:30000"),
    ]
    assert [span.phase for span in sink.records[0].phases] == [Phase.SETUP, Phase.SAVE, Phase.OTHER]
    assert sink.records[2].error_text == "the server said no"


def test_engine_inside_an_edited_sync_is_part_of_it(tmp_path: Path) -> None:
    """The engine's seams mark the caller's sync; no second one is made."""
    sink = RecordingSink()
    with Answers(SUCCESS) as server:
        engine = engine_for(server, tmp_path)
        with sglang_telemetry.instrument(engine, sinks=[sink]) as telemetry:
            with telemetry.sync(version=7):
                engine.update_policy(SavableModel())
    [record] = sink.records
    assert record.version == "7"
    assert Phase.REQUEST in {span.phase for span in record.phases}


def test_disabled_leaves_the_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """``SGLANG_TELEMETRY_DISABLED=1`` switches everything off."""
    monkeypatch.setenv("SGLANG_TELEMETRY_DISABLED", "1")
    engine, sink = CountingEngine(), RecordingSink()
    telemetry = sglang_telemetry.instrument(engine, sinks=[sink])
    assert "update_policy" not in vars(engine)
    with telemetry.sync() as sync, sync.phase("save"):
        pass
    telemetry.uninstrument()
    assert sink.events == []


def test_variables_that_a_platform_injects_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes makes such variables for a service that is called like us."""
    for name in ("SGLANG_TELEMETRY_PORT", "SGLANG_TELEMETRY_PORT_9464_TCP", "RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "tcp://10.0.0.1:80")
    engine, sink = CountingEngine(), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        engine.update_policy("model")
    assert [(r.result, r.identity.rank, r.identity.world_size) for r in sink.records] == [(Result.SUCCESS, 0, 1)]


def test_odd_setting_is_a_warning_and_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a trainer a malformed variable is told, and observing goes on."""
    monkeypatch.setenv("SGLANG_TELEMETRY_DISABLED", "tcp://10.0.0.1:80")
    sink = RecordingSink()
    sglang_telemetry.instrument(CountingEngine(), sinks=[sink]).uninstrument()
    assert [e.component for e in sink.events if isinstance(e, TelemetryError)] == [Component.INSTRUMENT]


@pytest.mark.parametrize("wrong", [{"rank": -1}, {"rank": 2, "world_size": 2}, {"expected_interval_seconds": 0}])
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    """At once, with what is wrong in the text, and with the engine untouched."""
    engine = CountingEngine()
    with pytest.raises(ValueError):
        sglang_telemetry.instrument(engine, sinks=[], **wrong)
    assert "update_policy" not in vars(engine)


def test_nothing_of_the_call_is_kept_alive(tmp_path: Path) -> None:
    """After a failure no exception, frame or tensor of the call is held by us."""
    import gc
    import weakref

    sink, model = RecordingSink(), SavableModel()
    engine = engine_for_dead_server(tmp_path)
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        with pytest.raises(RuntimeError):
            engine.update_policy(model)
        ghost = weakref.ref(model)
        del model
        gc.collect()
        assert ghost() is None


def engine_for_dead_server(tmp_path: Path) -> SharedFolderEngine:
    with Answers(SUCCESS) as server:
        url = server.url
    return SharedFolderEngine(url, str(tmp_path / "checkpoint"), timeout=5)
