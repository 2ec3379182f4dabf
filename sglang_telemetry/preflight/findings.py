"""What a check found: how bad it is, what was seen, and the one thing to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import orjson

from sglang_telemetry.checkpoint.errors import line

FORMAT = 1
"""Of the JSON; it goes up when a field goes or changes its meaning."""
_MAX_TEXT = 600
# The same check is a command and a method of the trainer's ``telemetry``: words that fit both.
THE_MODEL = "give the model that is trained (--model DIR, or model=)"
A_DRY_RUN = "a dry run (--dry-run, or dry_run=True)"


class Level(StrEnum):
    """How bad it is; ``warn`` is said only where a person should do something."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"

    @property
    def exit_code(self) -> int:
        """0 is good, 1 a warning, 2 a failure."""
        return {Level.OK: 0, Level.WARN: 1, Level.FAIL: 2}[self]


class Check(StrEnum):
    """What was looked at."""

    FOLDER = "folder"
    ROOM = "room"
    FILESYSTEM = "filesystem"
    CHECKPOINT = "checkpoint"
    TIMEOUT = "timeout"
    ADDRESS = "address"
    PROXY = "proxy"
    PROGRAM = "program"
    VERSION = "version"
    ROUTES = "routes"
    KEYS = "keys"
    READY = "ready"
    WEIGHTS = "weights"
    CLOCK = "clock"
    LOADER = "loader"
    MODEL = "model"
    VISIBILITY = "visibility"
    DRY_RUN = "dry run"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: What.
        level: How bad it is.
        reason: What was seen.
        fix: One thing to do; empty when it is good.
        place: Whom it is about: ``host:port`` of a server, or the folder.
    """

    name: Check
    level: Level
    reason: str
    fix: str = ""
    place: str = ""


def ok(name: Check, reason: str) -> Finding:
    """It is good, or nobody has to do anything about it."""
    return Finding(name, Level.OK, line(reason, limit=_MAX_TEXT))


def warn(name: Check, reason: str, fix: str) -> Finding:
    """A sync can work, and somebody should do something."""
    return Finding(name, Level.WARN, line(reason, limit=_MAX_TEXT), line(fix, limit=_MAX_TEXT))


def fail(name: Check, reason: str, fix: str) -> Finding:
    """A sync will not work."""
    return Finding(name, Level.FAIL, line(reason, limit=_MAX_TEXT), line(fix, limit=_MAX_TEXT))


def at(place: str, findings: Iterable[Finding | None]) -> tuple[Finding, ...]:
    """Those that there are, with the place that they are about."""
    return tuple(replace(one, place=place) for one in findings if one is not None)


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order in which a sync meets them: the folder, then each server."""

    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        """The worst."""
        return max((one.level for one in self.findings), key=lambda level: level.exit_code, default=Level.OK)

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return self.level.exit_code

    @property
    def first(self) -> Finding | None:
        """What to begin with: the first of the worst; None when all is good."""
        worst = self.level
        return None if worst is Level.OK else next(one for one in self.findings if one.level is worst)

    def count(self, level: Level) -> int:
        """How many findings are so bad."""
        return sum(one.level is level for one in self.findings)

    def to_json(self) -> str:
        """The same for programs, as one JSON object."""
        first = self.first
        content = {
            "format": FORMAT,
            "level": self.level,
            "exit_code": self.exit_code,
            "counts": {level.value: self.count(level) for level in Level},
            "first": None if first is None else {"name": first.name, "place": first.place, "fix": first.fix},
            "findings": [
                {"name": one.name, "level": one.level, "place": one.place, "reason": one.reason, "fix": one.fix}
                for one in self.findings
            ],
        }
        return orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()
