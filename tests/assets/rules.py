"""A small rule file with all forms that the real ones may have, and what the tools say of a text."""

from collections.abc import Iterable
from pathlib import Path

from tests.harness.processes import output_of

SMALL = """\
# A line in a comment that names "# option: nothing" is none; weight_sync_active neither.
groups:
  - name: small
    rules:
      - record: run:weight_sync_active:max
        expr: max by (run) (weight_sync_active{rank="0"})
      # Says why; and up comes after it.
      - alert: Small
        expr: |
          max by (run) (
            max_over_time(weight_sync_last_failure_timestamp_seconds[15m])  # option: window - longer where nobody looks
          )
          > time() - 900  # option: window
          and on (run) run:weight_sync_active:max >= 0.5  # option: share
          unless on () absent(up{job="x"}) or on () (weight_sync_payload_bytes{} * 0)
        for: 1m30s  # option: delay - longer than a blip
        labels:
          severity: critical
        annotations:
          summary: Small, up and weight_sync_active in prose
          trace: >-
            {{ with printf "topk(1, weight_sync_last_failure_trace_timestamp_seconds{run=%q,how!=\\"x\\"})"
            $labels.run | query }}{{ . | first | label "trace_id" }}{{ end }}
          over_at: >-
            {{ with printf "vector(%.0f + 900)" $value | query }}{{ . }}{{ end }}{{/* option: window */}} o'clock
          late: '{{ $w := "15m" }}{{/* option: window */}}{{ with query "weight_sync_active" }}{{ . }}{{ end }}'
          runbook_url: runbooks/Small.md#{{ $labels.run }}
          dashboard_url: &link >-
            /d/weight-sync?var-run={{ $labels.run | urlquery }}&to=now
      - alert: Bare
        expr: vector(1)
        annotations:
          summary: It has no labels
          runbook_url: runbooks/Bare.md
          dashboard_url: *link
"""


def promtool_accepts(text: str, folder: Path) -> None:
    """promtool's check of a rule file."""
    path = folder / "checked.yml"
    path.write_text(text)
    output_of("promtool", "check", "rules", str(path), timeout=60)


def changed_lines(before: str, after: str) -> list[tuple[str, str]]:
    """Lines that differ, of two texts with the same number of lines."""
    pairs: Iterable[tuple[str, str]] = zip(before.splitlines(), after.splitlines(), strict=True)
    return [(old.strip(), new.strip()) for old, new in pairs if old != new]
