"""Labels for every alert, and addresses before the links."""

from pathlib import Path

import pytest
import yaml

from sglang_telemetry.assets.annotate import add_base, add_labels, parse_base, parse_label
from sglang_telemetry.assets.error import AssetError
from tests.assets.rules import SMALL, promtool_accepts


def rules_of(text: str) -> list[dict[str, dict[str, str]]]:
    """The rules of the first group."""
    found: list[dict[str, dict[str, str]]] = yaml.safe_load(text)["groups"][0]["rules"]
    return found


def test_labels(tmp_path: Path) -> None:
    """Alerts with and without labels of their own get them; recording rules do not."""
    text = add_labels("small.yml", SMALL, {"team": "rl", "tier": "on"})
    promtool_accepts(text, tmp_path)
    record, small, bare = rules_of(text)
    assert "labels" not in record
    assert small["labels"] == {"team": "rl", "tier": "on", "severity": "critical"}
    assert bare["labels"] == {"team": "rl", "tier": "on"}
    assert [line for line in SMALL.splitlines() if line not in text.splitlines()] == []


@pytest.mark.parametrize(
    "value", ["a: b #c", "it's", '"', "\\", "{x}", "%s", "ü😀", "yes", "1", "x" * 1000, " a ", "- a", "$x"]
)
def test_any_printable_value(value: str, tmp_path: Path) -> None:
    """It is a string in YAML, and it is what was given."""
    name, read = parse_label(f"team={value}")
    text = add_labels("small.yml", SMALL, {name: read})
    promtool_accepts(text, tmp_path)
    assert [rule["labels"]["team"] for rule in rules_of(text)[1:]] == [value, value]


@pytest.mark.parametrize(
    "text",
    [
        "team",
        "=x",
        "team=",
        "te am=x",
        "té=x",
        "1a=x",
        "__a=x",
        "a-b=x",
        "team=a\nb",
        "team={{ $labels.run }}",
        "team=\x00",
        "severity=info",
        "run=x",
        "server=x",
        "cause=x",
        "alertname=x",
        "team=" + "x" * 2000,
        "team=\u2028",
        "team=\ud800",
    ],
)
def test_refused_labels(text: str) -> None:
    """What is no label, would be expanded as a template, or is part of the alert's identity."""
    with pytest.raises(AssetError, match=r"^--label") as told:
        parse_label(text)
    assert len(str(told.value).splitlines()) == 1


def test_a_label_that_an_alert_has() -> None:
    """Told, since two keys of one name are no YAML."""
    with pytest.raises(AssetError, match=r"--label how: an alert of r.yml has it already"):
        add_labels("r.yml", SMALL.replace("severity:", "how:"), {"how": "x"})


def test_labels_in_one_line() -> None:
    """A form that is not edited is told."""
    text = SMALL.replace("labels:\n          severity: critical", "labels: {severity: critical}")
    with pytest.raises(AssetError, match=r"each on a line of its own"):
        add_labels("r.yml", text, {"team": "rl"})


def test_bases() -> None:
    """Each link has the address before it, also one that is an alias of another."""
    base = parse_base("--runbook-base", "https://wiki.example/rl/")
    text = add_base("small.yml", SMALL, annotation="runbook_url", prefix="runbooks/", base=f"{base}/")
    text = add_base("small.yml", text, annotation="dashboard_url", prefix="/d/", base="http://g:3000/d/")
    _, small, bare = rules_of(text)
    assert small["annotations"]["runbook_url"] == "https://wiki.example/rl/Small.md#{{ $labels.run }}"
    assert bare["annotations"]["runbook_url"] == "https://wiki.example/rl/Bare.md"
    expected = "http://g:3000/d/weight-sync?var-run={{ $labels.run | urlquery }}&to=now"
    assert small["annotations"]["dashboard_url"] == bare["annotations"]["dashboard_url"] == expected


def test_a_link_of_another_form() -> None:
    """Told, since a relative link in a page leads nowhere."""
    with pytest.raises(AssetError, match=r"r.yml: runbook_url does not begin with runbooks/"):
        add_base(
            "r.yml",
            SMALL.replace("runbooks/Bare", "books/Bare"),
            annotation="runbook_url",
            prefix="runbooks/",
            base="x",
        )


@pytest.mark.parametrize(
    "text",
    [
        "https://h",
        "http://h:3000/",
        "https://git.example/a/b/blob/main/x%20y",
        "https://[::1]:3000/g",
        "https://h/~a/(b)",
    ],
)
def test_good_addresses(text: str, tmp_path: Path) -> None:
    """They fit into a rule file."""
    base = parse_base("--runbook-base", text)
    promtool_accepts(add_base("r", SMALL, annotation="runbook_url", prefix="runbooks/", base=f"{base}/"), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "ftp://h/",
        "https://",
        "https://u:p@h/",
        "https://h/?a=1",
        "https://h/#a",
        "https://h/a b",
        "https://h/\n",
        "https://h/{{ 1 }}",
        "https://h/%",
        "https://h/%zz",
        "https://h/'",
        'https://h/"',
        "https://h/ #",
        "javascript:alert(1)",
        "https://h/" + "x" * 2000,
        "https://h/é",
        "https://h/\\",
    ],
)
def test_bad_addresses(text: str) -> None:
    """One line that shows a good one."""
    with pytest.raises(AssetError, match=r"^--dashboard-base .*: write an address such as") as told:
        parse_base("--dashboard-base", text)
    assert len(str(told.value).splitlines()) == 1
