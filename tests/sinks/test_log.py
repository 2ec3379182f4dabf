"""The log line: once, wherever the host's logging goes, and nothing of the host's is touched."""

import contextlib
import io
import json
import logging
import subprocess
import sys
from dataclasses import replace

import pytest
import structlog

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import EnginePrint, Event, Exchange, ProcessStarted, SyncRecord, TelemetryError
from sglang_telemetry.names import LOGGER, Applied, Component, Phase, Result
from sglang_telemetry.sinks.log import LogSink
from sglang_telemetry.sinks.log_fields import hint, record_fields
from tests.sinks import SERVER, begun, ended, failed, inspected, record, resolved, seen, started, who
from tests.sinks.host import Keeping, Terminal, host_logging, lines, our_level

CANCELLED = record(who(0), result=Result.CANCELLED)


def tree() -> list[tuple[str, object]]:
    """Handlers, levels and switches of the loggers that a host could care for."""
    loggers = [logging.getLogger(), logging.getLogger(LOGGER)]
    return [
        (one.name, (one.handlers[:], one.level, one.propagate, one.disabled, one.filters[:])) for one in loggers
    ] + [
        (
            "manager",
            (logging.root.manager.disable, logging.lastResort, logging.getLoggerClass(), logging.raiseExceptions),
        )
    ]


def test_host_without_logging() -> None:
    """The line goes to stderr all the same, once."""
    script = (
        "from sglang_telemetry import LogSink; from tests.sinks import failed, who\n"
        "LogSink(fmt='json').emit(failed(who(0)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["event"] == "weight_sync.failed"
    assert done.stdout == ""


def test_stderr_is_looked_up_at_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A host that swaps sys.stderr later gets the line where it wants it."""
    with host_logging():
        sink = LogSink(fmt="json")
        sink.emit(failed(who(0)))
        assert capsys.readouterr().err.count("\n") == 1
        swapped = io.StringIO()
        with contextlib.redirect_stderr(swapped):
            sink.emit(failed(who(0)))
        assert swapped.getvalue().count("\n") == 1
        assert capsys.readouterr().err == ""


def test_no_stderr_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A detached process has none; that is no error."""
    with host_logging():
        monkeypatch.setattr(sys, "stderr", None)
        for fmt in ("auto", "json", "console"):
            LogSink(fmt=fmt).emit(failed(who(0)))


def test_host_with_a_handler(capsys: pytest.CaptureFixture[str]) -> None:
    """It gets our record exactly once, and our own stream gets nothing."""
    host, stream = Keeping(), io.StringIO()
    with host_logging(host):
        LogSink(fmt="json", stream=stream).emit(failed(who(0)))
    (seen,) = host.records
    assert (seen.name, seen.levelno, json.loads(seen.getMessage())["event"]) == (
        LOGGER,
        logging.ERROR,
        "weight_sync.failed",
    )
    assert vars(seen)["sglang_telemetry"]["http.response.status_code"] == 500
    assert (stream.getvalue(), *capsys.readouterr()) == ("", "", "")


def test_percent_signs_are_text() -> None:
    """A server that says "100 %s" breaks no formatting."""
    host = Keeping()
    with host_logging(host):
        LogSink(fmt="json").emit(failed(who(0), error_text="100 %s %d {x}"))
    assert json.loads(host.records[0].getMessage())["error.message"] == "100 %s %d {x}"


def test_nothing_of_the_hosts_is_changed() -> None:
    """Neither structlog's configuration nor a logger, handler or level."""
    structlog.reset_defaults()
    before, structlog_before = tree(), structlog.get_config()
    for handlers in ((), (Keeping(),)):
        with host_logging(*handlers):
            inside = tree()
            sink = LogSink(fmt="console", stream=io.StringIO())
            for event in (started(who(0)), begun(who(0)), failed(who(0)), record(who(0)), ended(who(0))):
                sink.emit(event)
            sink.close()
            assert tree() == inside
    assert tree() == before
    assert structlog.get_config() == structlog_before
    assert not structlog.is_configured()


def test_host_that_configured_structlog() -> None:
    """Its processors do not see our line, and its configuration stays."""
    seen: list[object] = []

    def processor(_logger: object, _name: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
        seen.append(fields)
        return fields

    structlog.configure(processors=[processor, structlog.processors.KeyValueRenderer()])
    try:
        configured = structlog.get_config()
        assert len(lines(failed(who(0)))) == 1
        assert structlog.get_config() == configured
        assert seen == []
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize(
    ("fmt", "environ", "stream", "is_json"),
    [
        ("json", None, Terminal(), True),
        ("console", None, io.StringIO(), False),
        ("auto", None, io.StringIO(), True),
        ("auto", None, Terminal(), False),
        (None, None, io.StringIO(), True),
        (None, None, Terminal(), False),
        (None, "console", io.StringIO(), False),
        (None, "json", Terminal(), True),
        ("json", "console", io.StringIO(), True),
        (None, "nonsense", io.StringIO(), True),
    ],
)
def test_format(
    fmt: str | None, environ: str | None, stream: io.StringIO, is_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pretty on a terminal and JSON otherwise, unless the argument or the environment says it."""
    monkeypatch.delenv("SGLANG_TELEMETRY_LOG_FORMAT", raising=False)
    if environ is not None:
        monkeypatch.setenv("SGLANG_TELEMETRY_LOG_FORMAT", environ)
    with host_logging():
        LogSink(fmt=fmt, stream=stream).emit(failed(who(0)))
    assert stream.getvalue().startswith("{") == is_json
    assert "weight_sync.failed" in stream.getvalue()


@pytest.mark.parametrize("fmt", ["", "JSON", "xml"])
def test_invalid_format(fmt: str) -> None:
    """A mistake of the caller is said at once, with what is allowed."""
    with pytest.raises(ValueError, match="auto, json, console"):
        LogSink(fmt=fmt)


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (record(who(0)), "info"),
        (record(who(1)), "debug"),
        (failed(who(0)), "error"),
        (failed(who(1), cause=FailureCause.PEER), "warning"),
        (CANCELLED, "warning"),
        (replace(CANCELLED, coordinator=False), "debug"),
        (begun(who(0)), "debug"),
        (EnginePrint(identity=who(0), sequence=1, text="hello"), "warning"),
        (EnginePrint(identity=who(0), sequence=1, text="hello", recognised=True), "debug"),
        (TelemetryError(identity=None, component=Component.LOG, text="x"), "warning"),
        (inspected(who(0), fault="a tensor is missing", incomplete=True), "error"),
        (inspected(who(0), same=True), "warning"),
        (inspected(who(0), same=True, trained=False), None),
        (inspected(who(0)), None),
        (resolved(who(0)), "debug"),
        (resolved(who(0), applied=Applied.NO), "error"),
        (resolved(who(0), claimed=Applied.UNKNOWN), "warning"),
        (resolved(who(0), claimed=Applied.UNKNOWN, applied=Applied.NO), "warning"),
        (seen(restarted=True), "warning"),
        (seen(went_back=True), "warning"),
        (seen(), None),
        (started(who(0)), None),
        (ended(who(0)), None),
    ],
)
def test_levels(event: Event, level: str | None) -> None:
    """One line a sync is an error: the coordinator's."""
    host = Keeping()
    with host_logging(host, level=logging.DEBUG):
        LogSink(fmt="json").emit(event)
    assert [one.levelname.lower() for one in host.records] == ([level] if level else [])
    assert [json.loads(one.getMessage())["level"] for one in host.records] == ([level] if level else [])


def test_unconfigured_host_gets_info_and_above() -> None:
    """A successful sync is one line of the coordinator; debug lines are for those who ask."""
    assert [line["event"] for line in lines(begun(who(0)), record(who(0)), record(who(1)))] == ["weight_sync.succeeded"]


def test_level_of_our_logger_is_respected() -> None:
    """Up and down, with and without handlers."""
    with our_level(logging.ERROR):
        assert lines(record(who(0)), failed(who(1))) == []
        assert len(lines(failed(who(0)))) == 1
    with our_level(logging.DEBUG):
        assert len(lines(begun(who(0)), record(who(1)))) == 2
    host = Keeping()
    with our_level(logging.CRITICAL), host_logging(host, level=logging.DEBUG):
        LogSink(fmt="json").emit(failed(who(0)))
    assert host.records == []


def test_level_of_the_host_is_respected() -> None:
    """The root's level holds for us as for everybody."""
    host = Keeping()
    with host_logging(host, level=logging.WARNING):
        sink = LogSink(fmt="json")
        sink.emit(record(who(0)))
        sink.emit(failed(who(0)))
    assert [one.levelno for one in host.records] == [logging.ERROR]


@pytest.mark.parametrize("handlers", [(), (Keeping(),)])
def test_logging_disable_is_respected(handlers: tuple[Keeping, ...]) -> None:
    """Who switched logging off gets nothing."""
    stream = io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with host_logging(*handlers, level=logging.DEBUG):
            LogSink(fmt="json", stream=stream).emit(failed(who(0)))
    finally:
        logging.disable(logging.NOTSET)
    assert stream.getvalue() == ""
    assert all(handler.records == [] for handler in handlers)


def test_fields_of_a_failure() -> None:
    """All that is known of it, under its attribute names, as one object."""
    (line,) = lines(failed(who(0), version="step-3", reached_before=True))
    assert str(line.pop("timestamp")).endswith("Z")
    assert line == {
        "event": "weight_sync.failed",
        "level": "error",
        "run": "grpo",
        "run_id": "one",
        "rank": 0,
        "world_size": 2,
        "host.name": "node-1",
        "process.pid": 100,
        "sequence": 1,
        "version": "step-3",
        "server": SERVER,
        "transport": "disk",
        "trace_id": f"{1:032x}",
        "span_id": f"{1:016x}",
        "result": "failure",
        "duration_seconds": 4.0,
        "phases": {"setup": 1.0, "request": 2.0, "barrier": 1.0},
        "weights_applied": "no",
        "attempts": 1,
        "cause": "server_error",
        "hint": FailureCause.SERVER_ERROR.hint,
        "runbook": "runbooks/WeightSyncFailed.md#server_error",
        "error.type": "500",
        "error.message": "500 Server Error",
        "http.request.method": "POST",
        "url.full": f"http://{SERVER}/update_weights_from_disk",
        "http.response.status_code": 500,
        "http.response.body.size": 44,
        "response_text": '{"success": false, "message": "no such key"}',
        "request_seconds": 2.0,
        "timeout_seconds": 60.0,
        "checkpoint.path": "/dev/shm/w",
        "checkpoint.files": 2,
        "checkpoint.bytes": 2048,
        "free_bytes": 4096,
    }


def test_unknown_values_are_left_out() -> None:
    """No field says null."""
    (line,) = lines(record(who(0)))
    assert None not in line.values()
    assert not {"cause", "hint", "error.type", "response_text", "version", "checkpoint.path"} & line.keys()


def test_json_keeps_other_scripts() -> None:
    """A person reads the line, not its escapes."""
    stream = io.StringIO()
    with host_logging():
        LogSink(fmt="json", stream=stream).emit(failed(who(0), error_text="模型"))
    assert "模型" in stream.getvalue()


def test_console_says_what_to_do() -> None:
    """Status, cause, the server's words, the hint, the phases and the trace, for somebody at 3 a.m."""
    stream = io.StringIO()
    with host_logging():
        LogSink(fmt="console", stream=stream).emit(failed(who(0)))
    text = stream.getvalue()
    for part in (
        "ERROR",
        "weight_sync.failed",
        SERVER,
        "500",
        "server_error",
        'server: "no such key"',
        FailureCause.SERVER_ERROR.hint,
        "phases: setup 1.00 | request 2.00 | barrier 1.00",
        f"trace {1:032x}",
        "rank=0",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            resolved(who(0), claimed=Applied.UNKNOWN, shown="weight_version 'r:1'"),
            [
                "WARNING weight_sync.resolved  applied=yes  claimed=unknown  "
                f"by checksum of {SERVER}, 3.0 s later  run=grpo sync=1 rank=0",
                "shows:  weight_version 'r:1'",
                "first:  the sync was told as failed: the weights ARE new, do not send them again",
                f"trace {1:032x}",
            ],
        ),
        (
            resolved(who(0), applied=Applied.NO),
            [
                "ERROR   weight_sync.not_applied  cause=not_applied  applied=no  claimed=yes  "
                f"by checksum of {SERVER}, 3.0 s later  run=grpo sync=1 rank=0",
                f"first:  {FailureCause.NOT_APPLIED.hint}",
                f"trace {1:032x}",
            ],
        ),
        (
            inspected(who(0), fault="1 of 3 tensors are missing: w", incomplete=True),
            [
                "ERROR   weight_sync.not_applied  cause=not_applied  run=grpo sync=1 rank=0",
                "folder: /w: 1 of 3 tensors are missing: w",
                f"first:  {FailureCause.NOT_APPLIED.hint}",
                f"trace {1:032x}",
            ],
        ),
        (
            inspected(who(0), same=True, sampled_bytes=2048),
            [
                "WARNING weight_sync.same_bytes  the same content as the sync before (2.0 KiB compared)  "
                "run=grpo sync=1 rank=0",
                "folder: /w",
                "first:  is this the model that is trained, and does its optimizer step?",
                f"trace {1:032x}",
            ],
        ),
    ],
)
def test_console_says_what_was_found_out(event: Event, expected: list[str]) -> None:
    """What is true now, by what it is known, and what to do."""
    stream = io.StringIO()
    with host_logging():
        LogSink(fmt="console", stream=stream).emit(event)
    first, *others = stream.getvalue().splitlines()
    assert [first.partition(" ")[2], *(line.strip() for line in others)] == expected


def test_console_says_that_a_server_was_restarted() -> None:
    """And what it runs now."""
    stream = io.StringIO()
    with host_logging():
        LogSink(fmt="console", stream=stream).emit(seen(restarted=True))
    first, second = stream.getvalue().splitlines()
    assert first.partition(" ")[2] == f"WARNING sglang_server.restarted  {SERVER}"
    assert "START weights" in second


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_every_event_is_rendered(fmt: str) -> None:
    """With every cause, and with nothing known but that it failed."""
    stream = io.StringIO()
    bare = replace(record(who(0)), result=Result.FAILURE, phases=(), duration_ns=0)
    causes = [failed(who(0), cause=cause, weights_applied=applied) for cause in FailureCause for applied in Applied]
    empty = Exchange(method="POST", url="http://h/x")
    with host_logging(), our_level(logging.DEBUG):
        sink = LogSink(fmt=fmt, stream=stream)
        for event in (
            bare,
            replace(bare, exchanges=(empty,), decisive=0),
            *causes,
            begun(who(0)),
            record(who(1)),
            CANCELLED,
        ):
            sink.emit(event)
        sink.emit(EnginePrint(identity=who(0), sequence=1, text="line\nline"))
    assert stream.getvalue().count("weight_sync.") >= len(causes) + 5


def test_hint_of_an_unreachable_server() -> None:
    """Whether it had ever answered says where to look."""
    refused: SyncRecord = failed(who(0), cause=FailureCause.UNREACHABLE)
    assert hint(refused).endswith("(never reached since start)")
    assert hint(replace(refused, reached_before=True)).endswith("(it answered before: it went away)")
    assert "closed the connection" in hint(replace(refused, weights_applied=Applied.UNKNOWN))


def test_hint_when_the_weights_are_new_all_the_same() -> None:
    """It is said that they must not be sent again, but not by a rank that cannot know."""
    assert "do not send them again" in hint(failed(who(0), weights_applied=Applied.YES))
    assert hint(failed(who(0), cause=FailureCause.PEER, weights_applied=Applied.YES)) == FailureCause.PEER.hint
    assert hint(record(who(0))) == ""


def test_errors_of_our_own_are_said_once_a_component() -> None:
    """The training goes on, and so does the log."""
    errors = [
        TelemetryError(identity=None, component=component, text=f"{component} {number}", count=number)
        for number in (1, 2, 3)
        for component in (Component.JOURNAL, Component.TRACES)
    ]
    told = lines(*errors)
    assert [(line["event"], line["component"], line["text"]) for line in told] == [
        ("telemetry.error", "journal", "journal 1"),
        ("telemetry.error", "traces", "traces 1"),
    ]


def test_stream_that_is_closed_raises_for_the_guard() -> None:
    """The sink may raise, so that the error is counted by whoever guards it."""
    stream = io.StringIO()
    stream.close()
    with host_logging(), pytest.raises(ValueError):
        LogSink(fmt="json", stream=stream).emit(failed(who(0)))


def test_record_fields_are_json() -> None:
    """Every value can be written by any logger of the host's."""
    assert json.loads(json.dumps(record_fields(failed(who(0))))) == record_fields(failed(who(0)))


def test_process_events_are_not_for_people() -> None:
    """A start is the journal's business."""
    assert isinstance(started(who(0)), ProcessStarted)
    assert lines(started(who(0)), ended(who(0))) == []


def test_odd_format_in_the_environment_is_told_and_auto_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a trainer a malformed variable is one warning and the default."""
    monkeypatch.setenv("SGLANG_TELEMETRY_LOG_FORMAT", "tcp://10.0.0.1:80")
    monkeypatch.setattr(logging.getLogger("sglang_telemetry"), "propagate", False)
    stream = io.StringIO()
    LogSink(stream=stream)
    [line] = stream.getvalue().splitlines()
    assert json.loads(line)["text"] == (
        "SGLANG_TELEMETRY_LOG_FORMAT='tcp://10.0.0.1:80' is none of auto, json, console: auto is used"
    )


@pytest.mark.parametrize(("phase", "said"), [(Phase.SAVE, True), (Phase.REQUEST, False), (None, False)])
def test_the_phase_that_it_failed_in(phase: Phase | None, said: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The cause alone does not always say whose memory or disk it was; a request speaks for itself."""
    event = failed(who(0), cause=FailureCause.OUT_OF_MEMORY, failed_phase=phase, exchanges=(), decisive=None)
    LogSink(fmt="console").emit(event)
    assert "cause=out_of_memory" in caplog.text
    assert ("phase=save" in caplog.text) is said
    assert record_fields(event).get("failed_phase") == (None if phase is None else phase.value)
