"""Writes what is generated, tables of both READMEs and the alert's hints, or checks that it is up to date.

usage: python -m tests.generate [--check]
"""

import re
import sys
from pathlib import Path
from typing import Any

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.names import METRICS
from tests.e2e.by_cause import RECEIVERS, ROWS, Row
from tests.harness.assets import alerts
from tests.harness.remedy_matrix import MATRIX

ROOT = Path(__file__).parents[1]


def metrics_table() -> str:
    """All metrics with type, labels and meaning."""
    rows = [
        f"| `{metric.served_as}` | {metric.kind} | {', '.join(metric.labels)} | {metric.help} |" for metric in METRICS
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])


def causes_table() -> str:
    """All causes with the first thing to do."""
    rows = [f"| [`{cause}`](alerts/{cause.runbook}) | {cause.hint} |" for cause in FailureCause]
    return "\n".join(["| cause | first |", "|---|---|", *rows])


def remedies_table() -> str:
    """What each remedy buys, fault by fault."""
    rows = [f"| {row.name} | {row.without} | {row.switched_on} | {row.remedied} |" for row in MATRIX]
    return "\n".join(["| fault | without | remedy | with |", "|---|---|---|---|", *rows])


def alerts_table() -> str:
    """All alerts of the rules: who is told, after which time, of what."""
    head = ["| alert | severity | tells | after | says |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(_alert, alerts())])


def _alert(rule: dict[str, Any]) -> str:
    labels, summary = rule["labels"], rule["annotations"]["summary"]
    kind = "".join(f" `{name}={labels[name]}`" for name in ("how", "reason") if name in labels)
    receiver = RECEIVERS.get(labels["severity"], "heartbeat")
    link = f"[{rule['alert']}]({rule['annotations']['runbook_url'].partition('#')[0]})"
    return f"| {link}{kind} | {labels['severity']} | {receiver} | {rule.get('for', 'at once')} | {summary} |"


def by_cause_table() -> str:
    """Which alerts come of which cause."""
    names = list(dict.fromkeys(alert.name for row in ROWS for alert in (*row.sent, *row.silenced)))
    head = ["cause", "then", *names]
    rows = [
        " | ".join((f"[`{row.cause}`]({row.cause.runbook})", row.then, *(_cell(row, name) for name in names)))
        for row in ROWS
    ]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {row} |" for row in rows)])


def _cell(row: Row, name: str) -> str:
    """Where an alert of that name goes in that row, empty when there is none."""
    told = []
    for alert in dict.fromkeys((*row.sent, *row.silenced)):
        if alert.name == name:
            detail = f" ({alert.detail})" if alert.detail and alert.detail != row.cause else ""
            where = [alert.receiver] * (alert in row.sent) + ["silenced"] * (alert in row.silenced)
            told.append(", then ".join(where) + detail)
    return "; ".join(told)


def first_annotation() -> str:
    """The alert's annotation ``first``: the hint of the cause in its labels."""
    lines = []
    for number, cause in enumerate(FailureCause):
        test = "{{ if" if number == 0 else "{{- else if"
        lines += [f'{test} eq $labels.cause "{cause}" -}}}}', cause.hint]
    branches = "\n            ".join([*lines, "{{- end }}"])
    return f"          first: >-\n            {branches}"


def generated(path: Path, blocks: dict[str, str]) -> str:
    """A file with its marked blocks made anew."""
    text = path.read_text()
    for name, block in blocks.items():
        pattern = rf"((?:<!--|#) generated: {name}(?: -->)?\n).*?(\n *(?:<!--|#) end(?: -->)?\n)"
        text, count = re.subn(pattern, lambda m, b=block: m[1] + b + m[2], text, flags=re.S)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{path}: no place marked for {name}")
    return text


def main() -> int:
    """Write or check."""
    stale = []
    for path, blocks in (
        (
            ROOT / "README.md",
            {"metrics": metrics_table(), "causes": causes_table(), "remedies": remedies_table()},
        ),
        (ROOT / "alerts/rules/failures.yml", {"first": first_annotation()}),
        (ROOT / "alerts/README.md", {"alerts": alerts_table(), "alerts by cause": by_cause_table()}),
    ):
        text = generated(path, blocks)
        if text != path.read_text():
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in sys.argv:
                path.write_text(text)
    if "--check" in sys.argv:
        if stale:
            print(f"not what the code says: {', '.join(stale)}; run `make assets`")
        return int(bool(stale))
    print(f"assets ok: {', '.join(stale) or 'all up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
