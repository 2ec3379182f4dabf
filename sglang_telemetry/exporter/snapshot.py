"""Counts and read positions of one moment in one file, so that a restarted exporter goes on exactly where it was."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_telemetry.codec import converter, fields_of
from sglang_telemetry.exporter.follow import Followed
from sglang_telemetry.server_truth.reconcile import ServerState
from sglang_telemetry.sinks.process_state import ProcessState, process_key
from sglang_telemetry.sinks.series import Buckets
from sglang_telemetry.sinks.tally import Tally

FILE_NAME = "exporter-state.json"
VERSION = 1

_TO_STATE = converter(ProcessState)
_TO_BUCKETS = converter(Buckets)
_TO_FOLLOWED = converter(Followed)
_TO_SERVER = converter(ServerState)


def save(folder: Path, tally: Tally, followed: dict[str, Followed], servers: Sequence[ServerState] = ()) -> None:
    """Write the snapshot, whole or not at all.

    Raises:
        OSError: It could not be written; the one before is untouched.
    """
    content = {
        "version": VERSION,
        "counters": _rows(tally.counters),
        "stamps": _rows(tally.stamps),
        "histograms": _rows(tally.histograms),
        "processes": list(tally.processes.values()),
        "followed": list(followed.values()),
        "servers": servers,
    }
    path, fresh = folder / FILE_NAME, folder / f"{FILE_NAME}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps(content, default=fields_of, separators=(",", ":")).encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def load(folder: Path) -> tuple[Tally, dict[str, Followed], list[ServerState]]:
    """Read the snapshot; an empty one when there is none, and no servers in one of an earlier version.

    Raises:
        ValueError: There is one that cannot be used; the counts have to be made anew from the journals.
    """
    tally = Tally()
    try:
        content = json.loads((folder / FILE_NAME).read_bytes())
    except FileNotFoundError:
        return tally, {}, []
    except RecursionError as error:
        raise ValueError(f"{FILE_NAME}: {error}") from error
    try:
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}, this exporter writes {VERSION}")
        tally.counters = _table(content["counters"], int)
        tally.stamps = _table(content["stamps"], float)
        tally.histograms = _table(content["histograms"], _TO_BUCKETS)
        for state in map(_TO_STATE, content["processes"]):
            tally.processes[process_key(state.identity)] = state
        followed = {one.stem: one for one in map(_TO_FOLLOWED, content["followed"])}
        servers = _servers(content.get("servers", ()))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return tally, followed, servers


def _servers(rows: Any) -> list[ServerState]:
    """What was known of servers; nothing where another version knew it in another form: it is asked again."""
    try:
        return list(map(_TO_SERVER, rows))
    except (KeyError, TypeError, AttributeError, ValueError):
        return []


def _rows(tables: dict[str, dict[tuple[str, ...], Any]]) -> dict[str, list[list[Any]]]:
    return {name: [[list(labels), value] for labels, value in series.items()] for name, series in tables.items()}


def _table(rows: dict[str, list[list[Any]]], convert: Any) -> dict[str, dict[tuple[str, ...], Any]]:
    return {name: {tuple(labels): convert(value) for labels, value in series} for name, series in rows.items()}
