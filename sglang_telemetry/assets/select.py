"""Puts label matchers into every selector of our metrics, in expressions and in the queries of annotations.

Series that a recording rule makes (a colon in their name) get none: what they are made of has been selected.
"""

import re
from collections.abc import Iterable

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.layout import edited, spans
from sglang_telemetry.assets.matchers import Matcher

TEXT = r"""\#[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`"""
"""A comment or a string of PromQL, in which nothing is selected."""
_GRAFANA = r"\$\w+|\$\{[^{}]*\}"
_TOKEN = re.compile(
    rf"(?P<skip>{TEXT}|{_GRAFANA})|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<brace>[{{}}])",
    re.S,
)
_OURS = re.compile(r"weight_sync_\w+|up")
# SGLang's own metrics, whose prefix differs between its versions. Another alternative could be a metric of ours.
_SGLANG = re.compile(r"""\s*=~?\s*(?P<quote>["'`])sglang(?:[^|()\\"'`]|\([^()\\"'`]*\))*(?P=quote)""")
_COMMENT = r"\{\{-?\s*/\*.*?\*/\s*-?\}\}"
_LITERAL = r'"(?:\\.|[^"\\])*"|`[^`]*`'
_ACTION = re.compile(rf"(?P<comment>{_COMMENT})|\{{\{{(?:{_LITERAL}|[^\"`}}]|\}}(?!\}}))*\}}\}}", re.S)


def add_matchers(file: str, text: str, matchers: Iterable[Matcher]) -> str:
    """A rule file whose queries see only what the matchers select.

    Args:
        file: Its name, for errors.
        text: Its text.
        matchers: At least one.

    Raises:
        AssetError: The file has a query in a form that cannot be edited.
    """
    added = ",".join(map(str, matchers))
    changes = []
    for one in spans(text, "expr"):
        # To PromQL it would be one string, in which nothing is selected.
        if text[one.start : one.end].lstrip().startswith(("'", '"')):
            raise AssetError(f"{file}: --select cannot read an expr in quotes; write it as a block")
        changes.append((one.start, one.end, restricted(file, text[one.start : one.end], added)))
    for one in spans(text, "annotations"):
        changes.append((one.start, one.end, _in_templates(file, text[one.start : one.end], added)))
    return edited(text, changes)


def restricted(file: str, query: str, added: str) -> str:
    """A query whose selectors of our metrics have more matchers.

    SGLang's own metrics get none, since another job scrapes them; Grafana's variables stay as they are.

    Args:
        file: Where it stands, for errors.
        query: PromQL, or what Grafana wraps around it.
        added: Matchers, as they stand between braces.

    Raises:
        AssetError: It has a selector of which it cannot be told whether it is ours.
    """
    changes: list[tuple[int, int, str]] = []
    depth = 0
    for token in _TOKEN.finditer(query):
        if token["brace"]:
            depth += 1 if token["brace"] == "{" else -1
        elif token["name"] == "__name__":
            if _SGLANG.match(query, token.end()):
                continue
            raise AssetError(
                f"{file}: --select cannot see which metric a __name__ matcher means; write the metric's name"
            )
        elif token["name"] and depth == 0 and _OURS.fullmatch(token["name"]):
            after = re.compile(r"\s*\{(\s*\})?").match(query, token.end())
            if after is None:
                changes.append((token.end(), token.end(), f"{{{added}}}"))
            else:
                brace = query.index("{", token.end()) + 1
                changes.append((brace, brace, added if after[1] else f"{added},"))
    return edited(query, changes)


def _in_templates(file: str, text: str, added: str) -> str:
    changes = []
    for quoted in re.finditer(r'^ +\w+: +(?:&\w+ +)?"(?:\\.|[^"\\])*"', text, re.M):
        if re.search(r"\bquery\b", quoted[0]):
            raise AssetError(f"{file}: --select cannot read a query in double quotes; write the annotation as a block")
    for action in _ACTION.finditer(text):
        if action["comment"]:
            continue
        code = action[0]
        asks = re.search(r"\bquery\b", re.sub(_LITERAL, "", code)) is not None
        for literal in re.finditer(_LITERAL, code):
            if asks:
                start = action.start() + literal.start()
                changes.append((start, start + len(literal[0]), _in_literal(file, literal[0], added)))
            elif re.search(r"\bweight_sync_\w+[\[{()]", literal[0]):
                raise AssetError(f"{file}: --select cannot follow a query out of its template action: {literal[0]}")
    return edited(text, changes)


def _in_literal(file: str, literal: str, added: str) -> str:
    """A Go string that holds a query, or the format of one."""
    inner = literal[1:-1]
    if literal[0] == "`":
        return f"`{restricted(file, inner, added)}`"
    query = re.sub(r'\\([\\"])', r"\1", inner)
    if _quoted(query) != literal:
        raise AssetError(f'{file}: --select cannot read the query {literal}: no other escapes than \\\\ and \\"')
    return _quoted(restricted(file, query, added))


def _quoted(query: str) -> str:
    return '"' + query.replace("\\", "\\\\").replace('"', '\\"') + '"'
