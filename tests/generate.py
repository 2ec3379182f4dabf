"""Writes the reference tables of the README from the code, or checks that they are what the code says.

usage: python -m tests.generate [--check]
"""

import re
import sys
from pathlib import Path

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.names import METRICS

README = Path(__file__).parents[1] / "README.md"


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


def generated(text: str) -> str:
    """The README with its tables made anew."""
    for name, table in (("metrics", metrics_table()), ("causes", causes_table())):
        pattern = rf"(<!-- generated: {name} -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(pattern, lambda m, t=table: m[1] + t + m[2], text, flags=re.S)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"README.md: no place marked for the table of {name}")
    return text


def main() -> int:
    """Write or check."""
    before = README.read_text()
    after = generated(before)
    if "--check" in sys.argv:
        if after != before:
            print("README.md: its tables are not what the code says: run `make assets`")
        return int(after != before)
    README.write_text(after)
    print("assets ok: the tables of README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
