"""What a site adds to each alert: labels that its Alertmanager routes by, and the addresses before the links.

A label value is a template to Prometheus and part of the alert's identity: what would be expanded, or would take the
place of one of ours, is refused.
"""

import json
import re
from collections.abc import Mapping

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.layout import Span, edited, spans
from sglang_telemetry.assets.matchers import OURS

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_BASE = re.compile(
    r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:/(?:[A-Za-z0-9._~!$&()*+,;=@:/-]|%[0-9A-Fa-f]{2})*)?"
)
_LONGEST = 1024
_TAKEN = OURS | {"alertname", "severity"}


def parse_label(text: str) -> tuple[str, str]:
    """Name and value of ``team=rl``.

    Raises:
        AssetError: It is none, or none that an alert may be given.
    """
    name, sign, value = text.partition("=")
    if not sign or not _LABEL.fullmatch(name) or name.startswith("__"):
        raise AssetError(f"--label {text!r}: write NAME=VALUE, such as team=rl")
    if name in _TAKEN:
        raise AssetError(f"--label {name}: the alerts use it themselves; choose another name")
    if not value or not value.isprintable() or "{{" in value or len(value) > _LONGEST:
        raise AssetError(
            f"--label {name}: its value is some text on one line, without '{{{{', of at most {_LONGEST} characters"
        )
    return name, value


def parse_base(option: str, text: str) -> str:
    """An address that links can be put behind, without a slash at its end.

    Raises:
        AssetError: It is none, or has user, query or fragment.
    """
    if not _BASE.fullmatch(text) or "@" in text.split("/")[2] or len(text) > _LONGEST:
        raise AssetError(
            f"{option} {text[:100]!r}: write an address such as https://wiki.example/runbooks, "
            "with no user, query or fragment"
        )
    return text.rstrip("/")


def add_labels(file: str, text: str, labels: Mapping[str, str]) -> str:
    """Each alert with more labels; recording rules stay as they are.

    Raises:
        AssetError: An alert has such a label already, or its labels are not written as a block.
    """
    changes = []
    blocks = spans(text, "labels")
    for alert in spans(text, "alert"):
        end = _end_of_rule(text, alert)
        own = [one for one in blocks if alert.end <= one.start < end]
        pad = " " * (alert.indent + 2)
        added = "".join(f"{pad}{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in labels.items())
        if not own:
            changes.append((alert.end, alert.end, f"{' ' * alert.indent}labels:\n{added}"))
            continue
        block = text[own[0].start : own[0].end]
        for name in labels:
            if re.search(rf"^ +{name}:", block, re.M):
                raise AssetError(f"--label {name}: an alert of {file} has it already; choose another name")
        head = re.match(r" *(?:#[^\n]*)?\n( +)\S", block)
        if head is None:
            raise AssetError(f"{file}: --label wants the labels of an alert each on a line of its own")
        added = re.sub(rf"^{pad}", head[1], added, flags=re.M)
        at = own[0].start + block.index("\n") + 1
        changes.append((at, at, added))
    return edited(text, changes)


def add_base(file: str, text: str, *, annotation: str, prefix: str, base: str) -> str:
    """Links with an address before them.

    Args:
        file: Name of the rule file, for errors.
        text: Its text.
        annotation: Key of the links.
        prefix: What each link begins with; the base takes its place.
        base: Put there.

    Raises:
        AssetError: A link does not begin so.
    """
    changes = []
    link = re.compile(rf"\s*(?:&\w+\s+)?(?:[>|][-+]?[^\n]*\n\s*)?[\"']?({re.escape(prefix)})")
    for one in spans(text, annotation):
        value = text[one.start : one.end]
        if value.strip().startswith("*"):
            continue  # an alias: the link is edited where its anchor is
        match = link.match(value)
        if match is None:
            raise AssetError(f"{file}: {annotation} does not begin with {prefix}:{value.rstrip()}")
        changes.append((one.start + match.start(1), one.start + match.end(1), base))
    return edited(text, changes)


def _end_of_rule(text: str, alert: Span) -> int:
    following = re.compile(rf"^ {{0,{alert.indent - 2}}}[^ \n#]", re.M).search(text, alert.end)
    return following.start() if following else len(text)
