"""Lines and events: every kind there and back, and what a reader makes of other versions."""

import json
import os
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import Event, ProcessEnded, SyncRecord, TelemetryError
from sglang_telemetry.journal.format import BadLine, decode, encode
from sglang_telemetry.names import Applied, Component, Exit, Phase, Result, Transport
from tests.journal import EVERY_KIND, HEAD, IDENTITY, RECORD


def changed(event: Event, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The event's line as another version would have written its fields."""
    line = json.loads(encode(event))
    change(line["data"])
    return json.dumps(line).encode()


def relabelled(source: Event, **label: object) -> bytes:
    """The event's line with another version, another kind or more beside them."""
    return json.dumps(json.loads(encode(source)) | label).encode()


def test_samples_are_complete() -> None:
    """A kind of event that is added gets its round trip here too."""
    assert {type(event) for event in EVERY_KIND} == set(typing.get_args(Event))


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda event: type(event).__name__)
def test_round_trip(event: Event) -> None:
    """What was written is read: the same values of the same types, in one line."""
    line = encode(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == event
    assert decode(line.rstrip()) == event


def test_enum_members_come_back_as_such() -> None:
    """Not as the strings that they look like."""
    back = decode(encode(RECORD))
    assert isinstance(back, SyncRecord)
    assert [type(value) for value in (back.result, back.cause, back.weights_applied, back.phases[0].phase)] == [
        Result,
        FailureCause,
        Applied,
        Phase,
    ]
    assert isinstance(back.phases, tuple)


def test_line_says_what_it_is() -> None:
    """A log shipper finds the version and the kind in each line."""
    assert json.loads(encode(ProcessEnded(identity=IDENTITY, at=1.0, how=Exit.CLEAN))) == {
        "v": "1.0",
        "event": "process_ended",
        "data": {
            "identity": {"run": "grpo", "run_id": "abc", "rank": 3, "world_size": 8, "host": "node-1", "pid": 4711},
            "at": 1.0,
            "how": "clean",
        },
    }


def test_unknown_fields_are_ignored() -> None:
    """Also inside of a field."""

    def add(fields: dict[str, Any]) -> None:
        fields["weather"] = {"sunny": [1]}
        fields["identity"]["shoe_size"] = 43
        fields["exchanges"][0]["http2"] = True

    assert decode(changed(RECORD, add)) == RECORD


def test_null_is_a_field_that_is_not_there() -> None:
    """``None`` is unknown, however it is spelled."""
    line = changed(HEAD, lambda fields: fields.update(engine=None, launch_id=None))
    back = decode(line)
    assert getattr(back, "engine", "?") is None
    assert getattr(back, "launch_id", "?") is None


def test_unknown_members_become_the_fallback() -> None:
    """A cause that only a newer version knows still counts as a failure."""

    def newer(fields: dict[str, Any]) -> None:
        fields.update(cause="gremlins", result="half", weights_applied="maybe")
        fields["target"]["transport"] = "pigeon"
        fields["phases"][1]["phase"] = "prayer"

    back = decode(changed(RECORD, newer))
    assert isinstance(back, SyncRecord)
    assert (back.cause, back.result, back.weights_applied) == (
        FailureCause.UNKNOWN,
        Result.FAILURE,
        Applied.UNKNOWN,
    )
    assert (back.target.transport, back.phases[1].phase) == (Transport.DISK, Phase.OTHER)


def test_unknown_exit_and_component_become_the_fallback() -> None:
    """The other two closed sets."""
    ended = changed(ProcessEnded(identity=IDENTITY, at=1.0, how=Exit.CLEAN), lambda f: f.update(how="evaporated"))
    assert decode(ended) == ProcessEnded(identity=IDENTITY, at=1.0, how=Exit.FAILED)
    told = TelemetryError(identity=IDENTITY, component=Component.LOG, text="x")
    assert decode(changed(told, lambda f: f.update(component="oven"))) == TelemetryError(
        identity=IDENTITY, component=Component.SINK, text="x"
    )


def test_unknown_kind_is_none() -> None:
    """An event that only newer versions know is passed over without a complaint."""
    assert decode(relabelled(RECORD, event="server_restarted")) is None
    assert decode(b'{"v": "1.3", "event": "server_restarted"}') is None


def test_newer_minor_is_read() -> None:
    """1.7 adds fields; those known here mean the same."""
    assert decode(relabelled(RECORD, v="1.7", host_zone="b")) == RECORD


@pytest.mark.parametrize("version", ["2.0", "0.9", "10.0", "x", "", 2, None])
def test_other_major_is_refused(version: object) -> None:
    """It is said which versions they are, not guessed what the fields mean."""
    with pytest.raises(BadLine, match="upgrade it"):
        decode(relabelled(RECORD, v=version))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"null",
        b"7",
        b"[]",
        b'"text"',
        b"{}",
        b'{"v": "1.0"}',
        b'{"event": "sync_record"}',
        b'{"v": "1.0", "event": "sync_record"}',
        b'{"v": "1.0", "event": "process_ended", "data": null}',
        b'{"v": "1.0", "event": "process_ended", "data": []}',
        b'{"v": "1.0", "event": "process_ended", "data": {}}',
        b'{"v": "1.0", "event": "process_ended", "data": {"identity": 7, "at": 1, "how": "clean"}}',
        b'{"v": "1.0", "event": "process_ended", "data": {"identity": {"run": 1}, "at": 1, "how": "clean"}}',
        b'{"v": "1.0", "event": ["process_ended"]}',
        b'{"v": "1.0", "event": {}}',
        b"\xff\xfe\x00",
        b"\0" * 100,
        b"[" * 100_000,
        encode(RECORD)[:-20],
        encode(RECORD)[20:],
    ],
)
def test_garbage_is_refused(line: bytes) -> None:
    """Whatever stands there, it is a BadLine and nothing else."""
    with pytest.raises(BadLine):
        decode(line)


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda event: type(event).__name__)
def test_every_beginning_of_a_line_is_refused(event: Event) -> None:
    """A torn line is never taken for a smaller event."""
    line = encode(event).rstrip()
    for length in range(len(line)):
        with pytest.raises(BadLine):
            decode(line[:length])


def test_wrong_type_of_a_field_is_refused() -> None:
    """A text where a number belongs would break the counts later, far from its cause."""
    for wrong in ({"sequence": "7"}, {"sequence": 7.5}, {"duration_ns": True}, {"phases": 3}, {"started_at": "x"}):
        with pytest.raises(BadLine):
            decode(changed(RECORD, lambda fields, wrong=wrong: fields.update(wrong)))


def test_text_that_is_no_utf8() -> None:
    """A run that is named in another encoding, as the environment has it, must not cost the journal."""
    name = os.fsdecode(b"gewichte-\xfc")
    back = decode(encode(replace(RECORD, identity=replace(IDENTITY, run=name), version=name)))
    assert isinstance(back, SyncRecord)
    assert back.identity.run.startswith("gewichte-")
    assert replace(back, identity=IDENTITY, version=RECORD.version) == RECORD
