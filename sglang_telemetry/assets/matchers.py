"""PromQL label matchers of ``--select``: read strictly, and written so that they fit into any place of a rule file.

A value is written with escapes for all that means something to YAML, to a Go template or to ``printf``: the same text
may then stand in a plain scalar, in a folded one and in a format string.
"""

import re
import warnings
from dataclasses import dataclass

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.names import METRICS

_ONE = re.compile(
    r"""\s*(?P<label>[^\s=!~"',{}`]*)\s*(?P<operator>=~|!~|!=|=)\s*"""
    r"""(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)\s*(?:,\s*|$)"""
)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_LONGEST = 1024
_AS_TEXT = re.compile(r":(?=\s|$)|[^A-Za-z0-9_./|*+?()\[\]^$~=!@,:;<>& -]", re.ASCII)
"""What is written as an escape: a colon too, where YAML would take it for its own."""
_NOT_RE2 = re.compile(r"\(\?(?:[=!>(#]|<[=!]|P=)|\\[1-9]|[*+?}]\+")

# Not every metric has them, so a selector by one of them would silence the alerts about the others.
OURS = frozenset({label for metric in METRICS if metric.kind != "info" for label in metric.labels} | {"le", "quantile"})
"""Labels that the metrics come with. A scrape adds job, instance, cluster, namespace, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """One matcher, with its value as it is compared."""

    label: str
    operator: str
    value: str

    def __str__(self) -> str:
        """PromQL, in ASCII and without a character that its surroundings could take for theirs."""
        return f'{self.label}{self.operator}"{_AS_TEXT.sub(_escaped, self.value)}"'


def parse_matchers(text: str) -> tuple[Matcher, ...]:
    """Matchers of ``job="rl",cluster=~"a|b"``.

    Raises:
        AssetError: They are not PromQL, or cannot be added to the rules.
    """
    if len(text) > _LONGEST:
        raise AssetError(f"--select: {len(text)} characters are too long, {_LONGEST} may be")
    found: list[Matcher] = []
    at = 0
    while at < len(text) or not found:
        match = _ONE.match(text, at)
        if match is None:
            raise AssetError(f"--select {text[at:]!r}: write label matchers without braces, such as 'job=\"rl\"'")
        value = _unquoted(match["quoted"])
        found.append(_checked(match["label"], match["operator"], value))
        at = match.end()
    return tuple(found)


def _checked(label: str, operator: str, value: str) -> Matcher:
    if not _LABEL.fullmatch(label) or label.startswith("__"):
        raise AssetError(f"--select: {label!r} is no label that a scraped series has")
    if label in OURS:
        raise AssetError(
            f"--select: {label} is a label of the metrics themselves, and not all of them have it; select by one that "
            "the scrape adds, such as job or cluster, and sort by ours in Alertmanager's routes"
        )
    if not value.isprintable():
        raise AssetError(f"--select: the value of {label} has characters that cannot be printed")
    if operator in ("=~", "!~"):
        _check_expression(label, value)
    return Matcher(label=label, operator=operator, value=value)


def _check_expression(label: str, value: str) -> None:
    """Python's expressions are nearly those of Prometheus; what only Python knows is refused here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(value)
        good = not _NOT_RE2.search(value)
    except (re.error, OverflowError, RecursionError):
        good = False
    if not good:
        raise AssetError(f"--select: {value!r} of {label} is no regular expression that Prometheus knows (RE2)")


def _unquoted(quoted: str) -> str:
    if quoted[0] == "`":
        return quoted[1:-1]
    value = quoted[1:-1]
    if re.sub(r"""\\[\\"']""", "", value).count("\\"):
        raise AssetError(f"--select {quoted}: a backslash is written twice in PromQL, such as 'job=~\"a\\\\.b\"'")
    return re.sub(r"""\\([\\"'])""", r"\1", value)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character in '"\\':
        return "\\" + character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
