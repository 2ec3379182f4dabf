"""The runbooks: each alert has one, what it names exists, and what it tells a person to paste is valid."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sglang_telemetry.assets.options import find_options
from sglang_telemetry.causes import FailureCause
from sglang_telemetry.cli.main import main
from sglang_telemetry.names import METRICS
from tests.harness.assets import ALERTS, RULES, alerts, recorded, samples
from tests.harness.processes import output_of

RUNBOOKS = sorted((ALERTS / "runbooks").glob("*.md"))
FAILED = ALERTS / "runbooks" / "WeightSyncFailed.md"
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "Prevention"]

each_runbook = pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of each fenced block."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.M | re.S)
    return [(language, content) for _, language, content in found]


def anchors(text: str) -> set[str]:
    """The headings as GitHub makes links of them."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    """The file's name is the alert's, and every alert links to it."""
    assert {path.stem for path in RUNBOOKS} == {rule["alert"] for rule in alerts()}


@each_runbook
def test_what_a_person_needs_at_3_am(path: Path) -> None:
    """The alert's name, the first move before anything else, and the five sections in the same order everywhere."""
    text = path.read_text()
    top, _, _ = text.partition("\n## ")
    assert top.startswith(f"# {path.stem}\n")
    assert len(re.findall(r"^\*\*First:\*\* ", top, re.M)) == 1
    assert len(top.splitlines()) <= 8
    heads = re.findall(r"^## (.+)$", text, re.M)
    assert heads[:5] == HEADINGS
    assert path == FAILED or (heads[5:] == [] and len(text.splitlines()) <= 90)
    assert [line for line in text.splitlines() if len(line) > 120] == []


@each_runbook
def test_options_are_the_rules(path: Path) -> None:
    """Each threshold of the alert is named with its default, and nothing else is."""
    options = find_options({path.name: path.read_text() for path in RULES})
    prevention = path.read_text().partition("\n## Prevention\n")[2].partition("\n## ")[0]
    named = dict(re.findall(r"`([a-z]\w*)` \(([^)]+)\)", prevention))
    assert named == {name: one.default for name, one in options.items() if path.stem in one.rules}
    mentioned = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", prevention))
    assert mentioned - {"weight_version"} <= options.keys()


@each_runbook
def test_settings_can_be_exported(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each ``assets export`` that it gives is taken as it stands."""
    given = re.findall(r"sglang-telemetry assets export DIR((?:\s+--set \S+=[^\s`]+)*)", path.read_text())
    for number, settings in enumerate(given):
        assert main(["assets", "export", str(tmp_path / str(number)), *settings.split()]) == 0
    capsys.readouterr()


@each_runbook
def test_metrics_exist(path: Path) -> None:
    """Each metric is one that the exporter or a recording rule makes, or SGLang's or Prometheus's own."""
    used = set(re.findall(r"(?<![\w:])(?:[a-z_]+:)*weight_sync_\w*[a-z0-9](?![\w(])(?::\w+)*", path.read_text()))
    assert used <= samples().keys() | {metric.served_as for metric in METRICS} | recorded()


@each_runbook
def test_links_resolve(path: Path) -> None:
    """Each relative link leads to a runbook, and to a heading in it."""
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", path.read_text()):
        file = path.parent / target if target else path
        assert file.is_file(), target
        assert not anchor or anchor in anchors(file.read_text()), f"{target}#{anchor}"


@each_runbook
def test_shell_is_valid(path: Path) -> None:
    """Every fenced block is shell, and bash can read it."""
    found = blocks(path.read_text())
    assert {language for language, _ in found} == {"sh"}
    for _, content in found:
        done = subprocess.run(["bash", "-n"], input=content, capture_output=True, text=True, check=False)
        assert done.returncode == 0, content + done.stderr


@each_runbook
def test_shell_helpers_are_defined(path: Path) -> None:
    """A runbook stands alone: what its commands use is defined in it, and a read of the terminal ends its block."""
    shell = "\n".join(content for _, content in blocks(path.read_text()))
    code = shell + "\n".join(re.findall(r"`((?:ask|q|curl|df) [^`]*)`", path.read_text()))
    for name in set(re.findall(r"\$\{?([A-Z]+)\b", code)) - {"SGLANG"}:
        assert re.search(rf"(?:^|[;\s]){name}=|^read -rs {name}\b", shell, re.M), name
    for helper in set(re.findall(r"(?:^ *|[`;] *)(ask|q|checksum|hourly) ", code, re.M)):
        assert f"{helper}() {{" in shell, helper
    for _, content in blocks(path.read_text()):
        lines = [number for number, line in enumerate(content.splitlines()) if line.strip().startswith("read -rs")]
        assert lines in ([], [len(content.splitlines()) - 1])


def test_promql_is_valid(tmp_path: Path) -> None:
    """Prometheus can read each query; one file of rules with all of them, so that promtool starts once."""
    asked = r'(?:(?:^|[;` ])(?:q|hourly)|promtool query instant "\$PROM") "([^"]*)"'
    found = [query for path in RUNBOOKS for query in re.findall(asked, path.read_text(), re.M) if query != "$1"]
    queries = [re.sub(r"\$[A-Z]+", "x", query) for query in found]
    assert len(queries) > 40
    groups = [{"name": "q", "rules": [{"record": f"q:{n}", "expr": query} for n, query in enumerate(queries)]}]
    (tmp_path / "q.yml").write_text(yaml.safe_dump({"groups": groups}))
    output_of("promtool", "check", "rules", "--lint=none", str(tmp_path / "q.yml"))


def test_commands_exist() -> None:
    """No runbook tells of a command that ``sglang-telemetry`` does not have."""
    help_text = subprocess.run(
        [sys.executable, "-m", "sglang_telemetry", "--help"], capture_output=True, text=True, check=True
    ).stdout
    [commands] = re.findall(r"^usage: sglang-telemetry \[-h\] (\S+) \.\.\.", help_text, re.M)
    for path in RUNBOOKS:
        used = set(re.findall(r"\bsglang-telemetry (?!--)([a-z][\w-]*)", path.read_text()))
        assert used <= set(commands.split("|")), path.name


def test_each_cause_has_a_section_in_the_runbook() -> None:
    """The links of log line and page lead to it: the heading is the cause's name."""
    sections = re.findall(r"^## (.+)$", FAILED.read_text(), re.M)[5:]
    assert sections == [cause.value for cause in FailureCause]


def test_each_cause_section_has_all_its_parts() -> None:
    """First move, meaning, evidence, a way to verify it and a way to prevent it, in that order."""
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", FAILED.read_text(), re.M | re.S))
    for cause in FailureCause:
        parts = re.findall(r"^\*\*(\w+):\*\*", sections[cause.value], re.M)
        assert (cause, parts) == (cause, ["First", "Means", "Evidence", "Verify", "Prevent"])
