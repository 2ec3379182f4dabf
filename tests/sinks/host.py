"""A host with or without logging of its own, and what it gets of a log sink."""

import contextlib
import io
import json
import logging
from collections.abc import Iterator

from sglang_telemetry.events import Event
from sglang_telemetry.names import LOGGER
from sglang_telemetry.sinks.log import LogSink


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """It does not ask."""
        return True


class Keeping(logging.Handler):
    """The host's handler."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record."""
        self.records.append(record)


@contextlib.contextmanager
def host_logging(*handlers: logging.Handler, level: int = logging.WARNING) -> Iterator[None]:
    """The root logger as a host has it; pytest's own handlers are put aside."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers[:] = handlers
    root.setLevel(level)
    try:
        yield
    finally:
        root.handlers[:], level = before
        root.setLevel(level)


@contextlib.contextmanager
def our_level(level: int) -> Iterator[None]:
    """The level that a user sets for our logger."""
    logger = logging.getLogger(LOGGER)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def lines(*events: Event, fmt: str = "json") -> list[dict[str, object]]:
    """What an unconfigured host gets, as objects."""
    stream = io.StringIO()
    with host_logging():
        sink = LogSink(fmt=fmt, stream=stream)
        for event in events:
            sink.emit(event)
    return [json.loads(line) for line in stream.getvalue().splitlines()]
