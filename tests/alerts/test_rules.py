"""The alert rules, judged by Debian's own tools; runbooks and alerts fit together."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.names import METRICS
from tests.harness.processes import tool

ALERTS = Path(__file__).parents[2] / "alerts"
RULES = sorted((ALERTS / "rules").glob("*.yml"))
TESTS = sorted((ALERTS / "tests").glob("*.yml"))


def names() -> set[str]:
    return {
        rule["alert"]
        for path in RULES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


def check(*command: str) -> None:
    done = subprocess.run([tool(command[0]), *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_are_valid(path: Path) -> None:
    """promtool's check, with all its lints."""
    check("promtool", "check", "rules", "--lint=all", "--lint-fatal", str(path))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_rules_fire_and_stay_silent(path: Path) -> None:
    """promtool's unit tests."""
    check("promtool", "test", "rules", str(path))


def test_most_cases_assert_silence() -> None:
    """A page for nothing costs more trust than a late one: more than half of the cases expect none."""
    cases = [case["name"] for path in TESTS for case in yaml.safe_load(path.read_text())["tests"]]
    silent = [name for name in cases if name.startswith("silent - ")]
    assert len(silent) > len(cases) / 2
    assert len(set(cases)) == len(cases)


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_only_our_metrics_are_used(path: Path) -> None:
    """Each name in a rule is a metric that the exporter serves."""
    known = {metric.served_as for metric in METRICS}
    used = set(re.findall(r"\bweight_sync_\w+(?=[\[{ )])", path.read_text()))
    assert used
    assert used <= known


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    """And the runbook has what a person needs at 3 a.m."""
    runbooks = {path.stem: path.read_text() for path in (ALERTS / "runbooks").glob("*.md")}
    assert runbooks.keys() == names()
    for text in runbooks.values():
        heads = re.findall(r"^## (.+)$", text, re.M)
        assert heads[:5] == ["Meaning", "Impact", "Diagnosis", "Mitigation", "Prevention"]


def test_first_move_of_each_cause() -> None:
    """The page says for each of the closed set of causes what its log line says, and nothing else."""
    rules = yaml.safe_load((ALERTS / "rules" / "weight_sync.yml").read_text())["groups"][0]["rules"]
    [first] = [rule["annotations"]["first"] for rule in rules if rule.get("alert") == "WeightSyncFailed"]
    found = re.findall(r'{{-? (?:else )?if eq \$labels\.cause "(\w+)" -}}(.*?)(?={{-)', first, re.S)
    assert [(cause, " ".join(text.split())) for cause, text in found] == [(c.value, c.hint) for c in FailureCause]


def test_each_cause_has_a_section_in_the_runbook() -> None:
    """The links of log line and page lead to it: the heading is the cause's name."""
    text = (ALERTS / "runbooks" / "WeightSyncFailed.md").read_text()
    sections = re.findall(r"^## (.+)$", text, re.M)[5:]
    assert sections == [cause.value for cause in FailureCause]


def test_each_cause_section_has_all_its_parts() -> None:
    """First move, meaning, evidence, a way to verify it and a way to prevent it, in that order."""
    text = (ALERTS / "runbooks" / "WeightSyncFailed.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    for cause in FailureCause:
        parts = re.findall(r"^\*\*(\w+):\*\*", sections[cause.value], re.M)
        assert (cause, parts) == (cause, ["First", "Means", "Evidence", "Verify", "Prevent"])
