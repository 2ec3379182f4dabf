"""Matchers in the queries: in each selector of ours, and in nothing else."""

import json
import re
from pathlib import Path

import pytest
import yaml

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.matchers import Matcher, parse_matchers
from sglang_telemetry.assets.select import add_matchers, restricted
from tests.assets.rules import SMALL, changed_lines, promtool_accepts
from tests.harness.processes import output_of

RL = parse_matchers('job="rl"')
HOSTILE = [
    "a: b #c",
    "%s %d %%",
    "{{ .x }} }}",
    "it's",
    '"',
    "\\",
    "`",
    "ü😀",
    "x" * 1000,
    "# option: window",
    "|>&*!",
    "$",
]


def test_what_changes() -> None:
    """Raw metrics and up; no recording rule, no prose, no comment, nothing already there."""
    assert [new for _, new in changed_lines(SMALL, add_matchers("small.yml", SMALL, RL))] == [
        'expr: max by (run) (weight_sync_active{job="rl",rank="0"})',
        'max_over_time(weight_sync_last_failure_timestamp_seconds{job="rl"}[15m])  # option: window'
        " - longer where nobody looks",
        'unless on () absent(up{job="rl",job="x"}) or on () (weight_sync_payload_bytes{job="rl"} * 0)',
        '{{ with printf "topk(1, weight_sync_last_failure_trace_timestamp_seconds{job=\\"rl\\",run=%q,how!=\\"x\\"})"',
        """late: '{{ $w := "15m" }}{{/* option: window */}}"""
        """{{ with query "weight_sync_active{job=\\"rl\\"}" }}{{ . }}{{ end }}'""",
    ]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_do_no_harm(value: str, tmp_path: Path) -> None:
    """promtool reads the file, and the value that is compared is the one that was given."""
    text = add_matchers("small.yml", SMALL, [Matcher(label="job", operator="=", value=value)])
    promtool_accepts(text, tmp_path)
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    found = re.findall(r'weight_sync_\w+\{job=("(?:\\.|[^"\\])*")', rules[0]["expr"] + rules[1]["expr"])
    assert len(found) == 3
    assert {json.loads(_as_json(one)) for one in found} == {value}
    assert rules[1]["annotations"]["runbook_url"] == "runbooks/Small.md#{{ $labels.run }}"


def _as_json(promql: str) -> str:
    """A PromQL string that has \\x.. and \\U........, which JSON has not."""
    text = re.sub(r"\\x(..)", r"\\u00\1", promql)
    return re.sub(r"\\U(.{8})", lambda match: json.dumps(chr(int(match[1], 16)))[1:-1], text)


@pytest.mark.parametrize("value", ["rl", *HOSTILE])
def test_it_selects_when_prometheus_evaluates(value: str, tmp_path: Path) -> None:
    """The alert fires for the selected job alone, and the query of its annotation finds what it looks for."""
    rules = """\
groups:
  - name: g
    rules:
      - alert: A
        expr: |
          max by (run) (weight_sync_active) > 0
        annotations:
          rank: >-
            {{ with printf "max by (rank) (weight_sync_active{run=%q} == 1)"
            $labels.run | query }}{{ . | first | label "rank" }}{{ end }}
"""
    (tmp_path / "r.yml").write_text(add_matchers("r.yml", rules, [Matcher(label="job", operator="=", value=value)]))
    mine = json.dumps(value, ensure_ascii=False)
    case = {
        "input_series": [
            {"series": f'weight_sync_active{{job={mine},run="a",rank="3"}}', "values": "1"},
            {"series": 'weight_sync_active{job="other",run="a",rank="4"}', "values": "1"},
            {"series": 'weight_sync_active{job="other",run="b",rank="5"}', "values": "1"},
        ],
        "alert_rule_test": [
            {
                "eval_time": "0m",
                "alertname": "A",
                "exp_alerts": [{"exp_labels": {"run": "a"}, "exp_annotations": {"rank": "3"}}],
            }
        ],
    }
    (tmp_path / "t.yml").write_text(yaml.safe_dump({"rule_files": ["r.yml"], "tests": [case]}))
    output_of("promtool", "test", "rules", str(tmp_path / "t.yml"), timeout=60)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('        expr: count({__name__=~"weight_sync_.*"})', "__name__"),
        ('        expr: "weight_sync_active"', "an expr in quotes"),
        ("        expr: 'weight_sync_active'", "an expr in quotes"),
        (
            '        expr: x\n        annotations:\n          a: "{{ query \\"weight_sync_active\\" }}"',
            "a query in double quotes",
        ),
        (
            "        expr: x\n        annotations:\n"
            "          a: '{{ $q := \"weight_sync_active{}\" }}{{ with $q | query }}'",
            "out of",
        ),
        (
            "        expr: x\n        annotations:\n          a: '{{ query \"weight_sync_active\\t\" }}'",
            "no other escapes",
        ),
    ],
)
def test_forms_that_cannot_be_edited(line: str, words: str) -> None:
    """Told, since a selector left out would be an alert about somebody else's run."""
    with pytest.raises(AssetError, match=r"^r.yml: --select") as told:
        add_matchers("r.yml", f"groups:\n  - rules:\n      - alert: A\n{line}\n", RL)
    assert words in str(told.value)


@pytest.mark.parametrize(
    "matcher",
    [
        '=~"sglang[:_]num_running_reqs"',
        "='sglang:token_usage'",
        '=~"sglang(:|_)x"',
        "=~`sglang.*`",
        ' =~ "sglang[:_]$metric"',
    ],
)
def test_sglangs_own_metrics(matcher: str) -> None:
    """Another job serves them, so that the matchers would find none; beside them ours are restricted all the same."""
    query = f"weight_sync_active * on () sum({{__name__{matcher}, a=\"b\"}}) + sglang:token_usage{{a='b'}}"
    assert restricted("q", query, 'job="rl"') == query.replace("active", 'active{job="rl"}')


@pytest.mark.parametrize(
    "matcher",
    [
        '="up"',
        '=~"weight_sync_.*"',
        '=~"sglang:x|weight_sync_active"',
        '=~"sglang(a)|up"',
        '!="sglang:x"',
        '!~"sglang.*"',
        '=~".*sglang"',
        '=~"sglang\\\\(x|up\\\\)"',
        '=~"$metric"',
    ],
)
def test_names_that_may_be_ours(matcher: str) -> None:
    """A series of ours could hide behind them."""
    with pytest.raises(AssetError, match=r"^q: --select cannot see which metric a __name__ matcher means"):
        restricted("q", f"sum({{__name__{matcher}}})", 'job="rl"')
