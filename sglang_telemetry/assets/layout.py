"""Where what stands in a rule file: the text of its queries and annotations, found by indentation.

The files are edited as text, not read and written as YAML, so that their comments and their layout stay.
"""

import re
from dataclasses import dataclass

_KEY = re.compile(r"^(?P<indent> *)(?P<dash>- )?(?P<key>\w+):(?=[ \n]|$)", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The value of one key, with everything below it.

    Args:
        key: Its name.
        indent: Column of the key.
        start: Index of the first character after the colon.
        end: Index after the last one.
    """

    key: str
    indent: int
    start: int
    end: int


def spans(text: str, key: str) -> list[Span]:
    """All values of a key, in the order of the file."""
    found = []
    after = 0
    for match in _KEY.finditer(text):
        # What looks like a key within a value that was taken already is text.
        if match["key"] != key or match.start() < after:
            continue
        indent = len(match["indent"]) + len(match["dash"] or "")
        after = _end(text, match.end(), indent)
        found.append(Span(key=key, indent=indent, start=match.end(), end=after))
    return found


def _end(text: str, start: int, indent: int) -> int:
    """Where the first line begins that is not indented deeper than the key."""
    outside = re.compile(rf"^ {{0,{indent}}}(?=[^ \n])", re.M)
    line_end = text.find("\n", start)
    match = outside.search(text, line_end + 1) if line_end >= 0 else None
    return match.start() if match else len(text)


def edited(text: str, changes: list[tuple[int, int, str]]) -> str:
    """The text with pieces replaced.

    Args:
        text: The whole.
        changes: Start, end and replacement of each piece; none overlaps another.
    """
    for start, end, replacement in sorted(changes, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text
