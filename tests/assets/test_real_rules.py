"""The project's own rule files under every option: what is asked for changes, nothing else, and the tools agree."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_telemetry.assets.export import ExportSettings, exported
from sglang_telemetry.assets.formats import Format
from sglang_telemetry.assets.matchers import parse_matchers
from sglang_telemetry.assets.options import find_options, set_options
from sglang_telemetry.assets.source import load
from sglang_telemetry.assets.values import as_duration, is_duration, milliseconds
from tests.assets.rules import changed_lines
from tests.harness.assets import rules_in
from tests.harness.processes import output_of

ASSETS = load()
OPTIONS = find_options(ASSETS.rules)
ALERTS = Path(__file__).parents[2] / "alerts"
SELECT = r"""cluster=~"a\\.b|c: #",job="it's {{ \"x\" }} %s" """


def check(rules: dict[str, str], folder: Path) -> None:
    """promtool over all files at once."""
    for name, text in rules.items():
        (folder / name).write_text(text)
    output_of("promtool", "check", "rules", *(str(folder / name) for name in rules), timeout=60)


def everything(chosen: Format) -> ExportSettings:
    """An export with all that can be asked for."""
    return ExportSettings(
        format=chosen,
        values={name: option.default for name, option in OPTIONS.items()},
        matchers=parse_matchers(SELECT),
        runbook_base="https://wiki.example/rl%20ops",
        dashboard_base="https://grafana.example:3000/g",
        labels={"team": 'r"l: #{'},
    )


def groups(text: str) -> list[Any]:
    """The groups of a file of any format."""
    document = yaml.safe_load(text)
    found: list[Any] = document.get("spec", document)["groups"]
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option(name: str, tmp_path: Path) -> None:
    """Twice as much changes exactly its places, is what the option then is, and suits promtool."""
    option = OPTIONS[name]
    value = as_duration(2 * milliseconds(option.default)) if option.timed else f"{2 * float(option.default):g}"
    rules = set_options(ASSETS.rules, {name: value})
    changed = [(name, pair) for name, text in rules.items() for pair in changed_lines(ASSETS.rules[name], text)]
    assert len(changed) == len({(place.file, place.line) for place in option.places})
    assert find_options(rules)[name].default == value
    assert {other.name: other.default for other in find_options(rules).values() if other.name != name} == {
        other.name: other.default for other in OPTIONS.values() if other.name != name
    }
    check(rules, tmp_path)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_default_is_its_own_value(name: str) -> None:
    """What the table shows can be given back; durations may then be spelt as the table spells them."""
    option = OPTIONS[name]
    rules = set_options(ASSETS.rules, {name: option.default})
    assert find_options(rules)[name].default == option.default
    if all(
        not is_duration(place.literal) or as_duration(milliseconds(place.literal)) == place.literal
        for place in option.places
    ):
        assert rules == ASSETS.rules


def test_nothing_asked_for_is_byte_for_byte() -> None:
    """The export without options is the folder."""
    files = exported(ASSETS, ExportSettings())
    for path, text in files.items():
        folder = ALERTS.parent if path.startswith("dashboards/") else ALERTS
        assert (folder / path).read_bytes() == text.encode()
    assert {path for path in files if path.startswith("rules/")} == {f"rules/{name}" for name in ASSETS.rules}


def test_the_projects_rule_tests_pass_over_the_export(tmp_path: Path) -> None:
    """promtool's unit tests find the exported rules beside them; the shortest will do, since all files are the same."""
    for path, text in exported(ASSETS, ExportSettings()).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    shutil.copytree(ALERTS / "tests", tmp_path / "tests")
    shortest = min((tmp_path / "tests").glob("*.yml"), key=lambda path: path.stat().st_size)
    output_of("promtool", "test", "rules", str(shortest), timeout=60)


@pytest.mark.parametrize("chosen", Format)
def test_each_format_is_valid(chosen: Format, tmp_path: Path) -> None:
    """With and without all that can be asked for, the groups are rules to promtool."""
    for settings in (ExportSettings(format=chosen), everything(chosen)):
        files = exported(ASSETS, settings)
        texts = [text for path, text in files.items() if path.startswith(("rules/", "prometheusrule-"))]
        assert len(texts) == len(ASSETS.rules)
        extracted = {f"{number}.yml": yaml.safe_dump({"groups": groups(text)}) for number, text in enumerate(texts)}
        check(extracted, tmp_path)


@pytest.mark.parametrize("chosen", Format)
def test_formats_hold_the_same_groups(chosen: Format) -> None:
    """What is said to Prometheus does not depend on the way it is told."""
    plain = [groups(text) for path, text in exported(ASSETS, everything(Format.PROMETHEUS)).items() if "rules/" in path]
    files = exported(ASSETS, everything(chosen))
    assert [groups(text) for path, text in files.items() if path.startswith(("rules/", "prometheusrule-"))] == plain


def test_select_is_in_every_selector(tmp_path: Path) -> None:
    """Read with other eyes than the code's: no raw metric of ours without it, in expressions or annotations."""
    matchers = parse_matchers(SELECT)
    rules = {
        path.removeprefix("rules/"): text
        for path, text in exported(ASSETS, ExportSettings(matchers=matchers)).items()
        if path.startswith("rules/")
    }
    check(rules, tmp_path)
    text = ",".join(map(str, matchers))
    queries = [str(one["expr"]) for one in rules_in(rules.values())]
    annotations = [value for one in rules_in(rules.values()) for value in one.get("annotations", {}).values()]
    queries += [
        literal.replace('\\"', '"').replace("\\\\", "\\")
        for value in annotations
        for action in re.findall(r"\{\{(?!/\*)(.*?)\}\}", value, re.S)
        for literal in re.findall(r'"((?:\\.|[^"\\])*)"', action)
        if "query" in action
    ]
    seen = 0
    for query in queries:
        query = re.sub(r"(?m)\s# option:.*$", "", query)
        for name in re.finditer(r"(?<![\w:])(?:weight_sync_\w+|up)(?![\w:])", query):
            assert query.startswith("{" + text, name.end()), query[name.start() :]
            seen += 1
    whole = "".join(queries)
    assert seen == whole.count(text) > 20
    assert not re.search(r":\w+\{cluster", whole)


def test_select_touches_nothing_else() -> None:
    """Taken out again, the files are what they were, comments and prose included."""
    matchers = parse_matchers('zone="z"')
    for path, text in exported(ASSETS, ExportSettings(matchers=matchers)).items():
        if path.startswith("rules/"):
            plain = text.replace('{zone="z"}', "").replace('{zone=\\"z\\"}', "")
            plain = plain.replace('zone="z",', "").replace('zone=\\"z\\",', "")
            assert plain == ASSETS.rules[path.removeprefix("rules/")]


def test_links_and_labels_reach_every_alert() -> None:
    """No link is left relative, and no alert is without the label."""
    files = exported(ASSETS, everything(Format.PROMETHEUS))
    alerts = [one for one in rules_in(text for path, text in files.items() if "rules/" in path) if "alert" in one]
    assert alerts
    for one in alerts:
        assert one["labels"]["team"] == 'r"l: #{'
        assert one["annotations"]["runbook_url"].startswith(f"https://wiki.example/rl%20ops/{one['alert']}.md")
        assert (
            one["annotations"]
            .get("dashboard_url", "https://grafana.example:3000/g/d/")
            .startswith("https://grafana.example:3000/g/d/")
        )


def test_labels_reach_no_record() -> None:
    """A recording rule's series stay what the alerts ask for."""
    files = exported(ASSETS, everything(Format.PROMETHEUS))
    records = [one for one in rules_in(text for path, text in files.items() if "rules/" in path) if "record" in one]
    assert [one for one in records if "team" in one.get("labels", {})] == []
