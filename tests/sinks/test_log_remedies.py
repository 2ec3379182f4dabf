"""What remedies did, in the log: the run that goes on with stale weights is loud, what went well is quiet."""

import io
import json
import logging

import pytest

from sglang_telemetry.events import Event
from sglang_telemetry.names import Action, Outcome
from sglang_telemetry.sinks.log import LogSink
from tests.sinks import SERVER, failed, record, remedied, remedy, seen, who
from tests.sinks.host import Keeping, host_logging, lines

OTHERS = [action for action in Action if action not in {Action.RETRY, Action.CONTINUE_STALE}]
PAUSED = seen(ready=False, left_paused=("grpo", "ppo"), newly_left_paused=("grpo",))


def console(*events: Event) -> list[str]:
    """The lines that a person reads, without the time."""
    stream = io.StringIO()
    with host_logging():
        for event in events:
            LogSink(fmt="console", stream=stream).emit(event)
    return [line.partition(" ")[2] if line[:1].isdigit() else line.strip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("event", "level", "name"),
    [
        *((remedied(who(), one), "debug", "weight_sync.remedy") for one in OTHERS),
        *((remedied(who(), one, Outcome.SKIPPED), "debug", "weight_sync.remedy") for one in OTHERS),
        *((remedied(who(), one, Outcome.FAILED), "warning", "weight_sync.remedy") for one in OTHERS),
        *((remedied(who(), one, Outcome.REFUSED), "warning", "weight_sync.remedy") for one in OTHERS),
        (remedied(who(), Action.RETRY), "warning", "weight_sync.retried"),
        (remedied(who(), Action.RETRY, Outcome.FAILED), "warning", "weight_sync.retried"),
        (remedied(who(), Action.RETRY, Outcome.SKIPPED), "debug", "weight_sync.remedy"),
        (remedied(who(), Action.CONTINUE_STALE), "error", "weight_sync.continued_stale"),
        (remedied(who(), Action.CONTINUE_STALE, Outcome.REFUSED), "warning", "weight_sync.remedy"),
        (remedied(who(), Action.CONTINUE_STALE, Outcome.FAILED), "warning", "weight_sync.remedy"),
        (remedied(who(), Action.CONTINUE_STALE, Outcome.SKIPPED), "debug", "weight_sync.remedy"),
        (PAUSED, "error", "sglang_server.left_paused"),
    ],
)
def test_levels_and_names(event: Event, level: str, name: str) -> None:
    """One line each; each retry is seen, and what went on with stale weights is an error."""
    host = Keeping()
    with host_logging(host, level=logging.DEBUG):
        LogSink(fmt="json").emit(event)
    [line] = map(json.loads, (one.getMessage() for one in host.records))
    assert (line["level"], line["event"], host.records[0].levelname.lower()) == (level, name, level)


def test_fields() -> None:
    """Whose sync it was, what was done, what came of it, and how long it took."""
    event = remedied(who(0), Action.PUBLISH, Outcome.FAILED, sequence=7, detail="no rename here", duration_ns=1_234_567)
    [line] = lines(event)
    assert str(line.pop("timestamp")).endswith("Z")
    assert line == {
        "event": "weight_sync.remedy",
        "level": "warning",
        "run": "grpo",
        "run_id": "one",
        "rank": 0,
        "world_size": 2,
        "host.name": "node-1",
        "process.pid": 100,
        "sequence": 7,
        "server": SERVER,
        "trace_id": f"{7:032x}",
        "action": "publish",
        "outcome": "failed",
        "duration_seconds": 0.001235,
        "detail": "no rename here",
    }
    [bare] = lines(remedied(who(0), Action.RETRY))
    assert "detail" not in bare


def test_stale_weights_are_loud() -> None:
    """The line says what it means for the run, and what to do."""
    [line] = lines(remedied(who(0), Action.CONTINUE_STALE, detail="the 2nd in a row"))
    assert "the training goes on with the weights of an earlier sync" in str(line["hint"])
    assert console(remedied(who(0), Action.CONTINUE_STALE, detail="the 2nd in a row", duration_ns=0)) == [
        f"ERROR   weight_sync.continued_stale  continue_stale done  {SERVER}  run=grpo sync=1 rank=0",
        "detail: the 2nd in a row",
        f"first:  {line['hint']}",
        f"trace {1:032x}",
    ]


def test_a_retry_on_a_terminal() -> None:
    """What came of it, after how long, and why."""
    assert console(
        remedied(who(0), Action.RETRY, Outcome.FAILED, detail="it answered\n503", duration_ns=3_520_000_000)
    ) == [
        f"WARNING weight_sync.retried  retry failed in 3.52 s  {SERVER}  run=grpo sync=1 rank=0",
        "detail: it answered 503",
        f"trace {1:032x}",
    ]


def test_the_syncs_own_line_tells_them_again() -> None:
    """In their order, as objects; a sync without any says nothing of them."""
    done = (
        remedy(Action.VALIDATE, duration_ns=4_000_000),
        remedy(Action.RETRY, Outcome.FAILED, detail="it answered 503"),
    )
    for make in (record, failed):
        [line] = lines(make(who(0), remedies=done))
        assert line["remedies"] == [
            {"action": "validate", "outcome": "done", "duration_seconds": 0.004, "detail": ""},
            {"action": "retry", "outcome": "failed", "duration_seconds": 0.5, "detail": "it answered 503"},
        ]
        [line] = lines(make(who(0)))
        assert "remedies" not in line


def test_the_syncs_own_line_has_a_row_of_them_on_a_terminal() -> None:
    """An outcome is named unless it is done; without any there is no row."""
    done = (
        remedy(Action.VALIDATE, duration_ns=4_000_000),
        remedy(Action.PUBLISH, duration_ns=120_000_000),
        remedy(Action.RETRY, Outcome.FAILED, duration_ns=3_520_000_000),
        remedy(Action.FLUSH, Outcome.SKIPPED, duration_ns=0),
    )
    for make in (record, failed):
        assert console(make(who(0), remedies=done))[-2] == (
            "remedies: validate 0.004 | publish 0.12 | retry 3.52 failed | flush 0.000 skipped"
        )
        assert "remedies" not in "".join(console(make(who(0))))


def test_a_server_that_was_left_paused_is_said_once_a_run() -> None:
    """With the look that found it; the next ones have nothing new, until it was released and left so again."""
    again = seen(ready=False, left_paused=("grpo", "ppo"))
    both = seen(ready=False, left_paused=("grpo", "ppo"), newly_left_paused=("grpo", "ppo"))
    told = lines(PAUSED, again, again, seen(), both)
    assert [(line["event"], line["run"], line["server"]) for line in told] == [
        ("sglang_server.left_paused", "grpo", SERVER),
        ("sglang_server.left_paused", "grpo", SERVER),
        ("sglang_server.left_paused", "ppo", SERVER),
    ]
    assert f"sglang-telemetry check --server http://{SERVER} --release" in str(told[0]["hint"])


def test_a_server_that_was_left_paused_on_a_terminal() -> None:
    """By whom, and the command that releases it; what else the look found is said as well."""
    released = f"sglang-telemetry check --server http://{SERVER} --release"
    assert console(PAUSED) == [
        f"ERROR   sglang_server.left_paused  {SERVER}  run=grpo",
        f"first:  its trainer paused it for a sync and left it so: it answers no rollout; {released}",
    ]
    both = seen(ready=False, left_paused=("grpo",), newly_left_paused=("grpo",), went_back=True)
    assert [line["event"] for line in lines(both)] == ["sglang_server.left_paused", "sglang_server.went_back"]
