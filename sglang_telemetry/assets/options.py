"""The thresholds that a rule file offers: ``# option: NAME - when to change it`` behind the number on its line.

The mark lies in the rule, not in a list beside it, so that a person who edits the file by hand sees it too. In an
annotation, where PromQL's comment would end the folded line, it is ``{{/* option: NAME */}}``, anywhere in the line.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.values import LITERAL, as_duration, as_seconds, is_duration, milliseconds, number

_NAME = r"(?P<name>[a-z][a-z0-9_]*)"
_MARK = re.compile(
    rf"\s*# option: {_NAME}(?: - (?P<about>\S.*?))?\s*$|\{{\{{/\* option: {_NAME.replace('name', 'inner')} \*/\}}\}}"
)
_MISSPELT = re.compile(r"(?:#|\{\{-?\s*/\*)\s*options?\b", re.I)
_RULE = re.compile(r"\s*- (?:alert|record): *(\S+)")
_DELAY = re.compile(r"\s*(?:- )?(?:for|keep_firing_for|interval):")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One literal of an option.

    Args:
        file: Name of the rule file.
        line: Index of the line.
        start: Where the literal begins in the line.
        literal: What stands there.
        rule: The alert or record that it is part of.
        positive: May it be no zero? A range of 0 s is refused by Prometheus, a delay of 0 s is not.
    """

    file: str
    line: int
    start: int
    literal: str
    rule: str
    positive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One threshold with all its places.

    Args:
        name: As in the mark.
        about: When to change it; empty where no place says so.
        timed: Is it a duration? Else it is a plain number.
        places: At least one.
    """

    name: str
    about: str
    timed: bool
    places: tuple[Place, ...]

    @property
    def default(self) -> str:
        """What the files say."""
        literal = self.places[0].literal
        return as_duration(milliseconds(literal)) if self.timed else literal

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the alerts and records it is used in."""
        return tuple(dict.fromkeys(place.rule for place in self.places if place.rule))


def find_options(rules: Mapping[str, str]) -> dict[str, Option]:
    """All options of all files, by name.

    Raises:
        AssetError: A mark is misspelt or has no number, or the places of an option do not agree.
    """
    places: dict[str, list[Place]] = {}
    about: dict[str, str] = {}
    for file, text in rules.items():
        rule = ""
        for index, line in enumerate(text.split("\n")):
            if line.lstrip().startswith("#"):
                continue
            if named := _RULE.match(line):
                rule = named[1]
            for name, words, literal in _marks(f"{file}:{index + 1}", line):
                positive = is_duration(literal[0]) and not _DELAY.match(line)
                about[name] = about.get(name) or words
                places.setdefault(name, []).append(
                    Place(
                        file=file, line=index, start=literal.start(), literal=literal[0], rule=rule, positive=positive
                    )
                )
    return {name: _option(name, about[name], tuple(found)) for name, found in sorted(places.items())}


def set_options(rules: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """The files with other thresholds; nothing but the literals of these options changes.

    Args:
        rules: Text of each file.
        values: New value of each option, as the user wrote it.

    Raises:
        AssetError: An option is not known, or its value is not of its kind.
    """
    options = find_options(rules)
    edits: list[tuple[Place, str]] = []
    for name, value in values.items():
        if name not in options:
            raise AssetError(_unknown(name, options))
        edits += _edits(options[name], value.strip())
    lines = {file: text.split("\n") for file, text in rules.items()}
    # From the right, since two places may be on one line.
    for place, literal in sorted(edits, key=lambda edit: edit[0].start, reverse=True):
        line = lines[place.file][place.line]
        lines[place.file][place.line] = line[: place.start] + literal + line[place.start + len(place.literal) :]
    return {file: "\n".join(edited) for file, edited in lines.items()}


def _marks(where: str, line: str) -> Iterator[tuple[str, str, re.Match[str]]]:
    """Name, meaning and literal of each mark of a line; mostly there is one."""
    after = 0
    for mark in _MARK.finditer(line):
        literals = [one for one in LITERAL.finditer(line, after, mark.start()) if mark["inner"] or not _text(line, one)]
        if not literals:
            raise AssetError(f"{where}: no number stands before the mark of option {mark['name'] or mark['inner']}")
        yield mark["name"] or mark["inner"], mark["about"] or "", literals[-1]
        after = mark.end()
    if _MISSPELT.search(line, after):
        raise AssetError(f"{where}: write an option as a number and '# option: name - when to change it'")


def _text(line: str, literal: re.Match[str]) -> bool:
    """Is it a label's value? In a template a string is what a variable is set to."""
    return line[: literal.start()].endswith(('"', "'"))


def _option(name: str, about: str, places: tuple[Place, ...]) -> Option:
    timed = name.endswith("_seconds") or any(is_duration(place.literal) for place in places)
    sizes = {milliseconds(one.literal) if timed else float(one.literal) for one in places}
    if len(sizes) > 1:
        where = ", ".join(f"{one.literal} at {one.file}:{one.line + 1}" for one in places)
        raise AssetError(f"the places of option {name} do not agree: {where}")
    return Option(name=name, about=about, timed=timed, places=places)


def _edits(option: Option, value: str) -> list[tuple[Place, str]]:
    try:
        if not option.timed:
            return [(place, number(value)) for place in option.places]
        length = milliseconds(value)
    except AssetError as error:
        raise AssetError(f"--set {option.name}: {error}") from None
    if length == 0 and any(place.positive for place in option.places):
        raise AssetError(f"--set {option.name}: a window of no length sees nothing: write 1s or more")
    return [
        (place, as_duration(length) if is_duration(place.literal) else as_seconds(length)) for place in option.places
    ]


def _unknown(name: str, options: Mapping[str, Option]) -> str:
    close = difflib.get_close_matches(name, options, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"--set {name!r}: no such option{meant} Known: {', '.join(options) or 'none'}"
