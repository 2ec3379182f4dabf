"""Writes what is generated from the code, the README's tables and the alert's hints, or checks that it is up to date.

usage: python -m tests.generate [--check]
"""

import re
import sys
from pathlib import Path

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.names import METRICS

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
        (ROOT / "README.md", {"metrics": metrics_table(), "causes": causes_table()}),
        (ROOT / "alerts/rules/weight_sync.yml", {"first": first_annotation()}),
    ):
        text = generated(path, blocks)
        if text != path.read_text():
            stale.append(path.name)
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
