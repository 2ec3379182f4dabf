"""The alert rules, judged by Debian's own tools; runbooks and alerts fit together."""

import re
from pathlib import Path

import pytest
import yaml

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.names import METRICS
from tests.harness.assets import ALERTS, RULES, alerts, recorded, rules, samples
from tests.harness.processes import output_of
from tests.harness.promql import asked_for, queries_in

TESTS = sorted((ALERTS / "tests").glob("*.yml"))


def names() -> set[str]:
    return {rule["alert"] for rule in alerts()}


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_are_valid(path: Path) -> None:
    """promtool's check, with all its lints."""
    output_of("promtool", "check", "rules", "--lint=all", "--lint-fatal", str(path))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_rules_fire_and_stay_silent(path: Path) -> None:
    """promtool's unit tests."""
    output_of("promtool", "test", "rules", str(path))


def test_most_cases_assert_silence() -> None:
    """A page for nothing costs more trust than a late one: more than half of the cases expect none."""
    cases = [case["name"] for path in TESTS for case in yaml.safe_load(path.read_text())["tests"]]
    silent = [name for name in cases if name.startswith("silent - ")]
    assert len(silent) > len(cases) / 2
    assert len(set(cases)) == len(cases)


def test_each_alert_has_cases_that_fire_and_more_that_do_not() -> None:
    """In the file that bears its name."""
    for name in names():
        cases = yaml.safe_load((ALERTS / "tests" / f"{name}_test.yml").read_text())["tests"]
        silent = [case for case in cases if case["name"].startswith("silent - ")]
        exact = [
            expected
            for case in cases
            for test in case.get("alert_rule_test", ())
            if test["alertname"] == name
            for expected in test["exp_alerts"]
        ]
        variants = sum(rule["alert"] == name for rule in alerts())
        assert len(silent) >= (0 if name == "WeightSyncHeartbeat" else 2), name
        assert len({str(sorted(one["exp_labels"])) + one["exp_annotations"]["summary"] for one in exact}) >= variants
        for one in exact:
            assert {"summary", "description", "first", "runbook_url", "dashboard_url"} <= one["exp_annotations"].keys()


def test_annotations_of_each_alert() -> None:
    """A summary without templates, a description, the first move, a runbook of its own, and a dashboard."""
    for rule in alerts():
        said = rule["annotations"]
        assert said.keys() - {"over_at", "trace"} == {"summary", "description", "first", "runbook_url", "dashboard_url"}
        assert "{{" not in said["summary"]
        assert re.fullmatch(rf"runbooks/{rule['alert']}\.md(#{{{{ \$labels\.cause }}}})?", said["runbook_url"])
        assert re.match(r"/d/weight-sync(-ranks)?\b", said["dashboard_url"])
        assert rule["labels"]["severity"] in {"critical", "warning", "info", "none"}


def test_names_of_recorded_series() -> None:
    """level:metric:operation, where the level are the labels that are left."""
    for rule in rules():
        if "record" in rule:
            level, metric, operation = rule["record"].split(":")
            assert set(level.split("_")) <= {label for one in METRICS for label in one.labels}
            assert operation
            assert metric.startswith("weight_sync_")


def test_only_our_metrics_are_asked_for() -> None:
    """With labels that they have; also in the queries of annotations, which no tool looks into."""
    known, made = samples(), recorded()
    for rule in rules():
        texts = [rule["expr"], *(text for one in rule.get("annotations", {}).values() for text in queries_in(one))]
        for metric, labels in [item for text in texts for item in asked_for(text).items()]:
            if metric not in made:
                assert labels <= known[metric], (metric, rule)


def test_first_move_of_each_cause() -> None:
    """The page says for each of the closed set of causes what its log line says, and nothing else."""
    [first] = [rule["annotations"]["first"] for rule in alerts() if rule["alert"] == "WeightSyncFailed"]
    found = re.findall(r'{{-? (?:else )?if eq \$labels\.cause "(\w+)" -}}(.*?)(?={{-)', first, re.S)
    assert [(cause, " ".join(text.split())) for cause, text in found] == [(c.value, c.hint) for c in FailureCause]
