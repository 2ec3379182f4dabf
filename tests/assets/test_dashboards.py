"""Dashboards: matchers in their queries of our metrics, an address before their runbooks, and all else as it was."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_telemetry.assets.dashboards import edited_dashboard
from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.export import ExportSettings, exported
from sglang_telemetry.assets.formats import Format
from sglang_telemetry.assets.matchers import Matcher, parse_matchers
from sglang_telemetry.assets.source import Assets, load
from sglang_telemetry.sinks.log import LogSink
from tests.harness.promql import asked_for
from tests.sinks import failed, who
from tests.sinks.test_log import host_logging

PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
LOKI = {"type": "loki", "uid": "${loki}"}
RL = parse_matchers('job="rl"')
REAL = {path: text for path, text in load().dashboards.items() if path.endswith(".json")}
PROVISIONING = Path(__file__).parents[2] / "dashboards" / "provisioning"


def panel(*queries: str, **more: Any) -> dict[str, Any]:
    """A panel that asks a Prometheus."""
    return {"title": "P", "datasource": PROMETHEUS, "targets": [{"expr": one} for one in queries], **more}


def dashboard(*panels: dict[str, Any], variables: list[Any] | None = None, notes: list[Any] | None = None) -> str:
    """A dashboard as the file is written."""
    runbooks = {"name": "runbooks", "type": "constant", "query": "runbooks", "hide": 2}
    parts = {
        "title": "ü $run",
        "annotations": {"list": notes or []},
        "panels": list(panels),
        "templating": {"list": [runbooks, *(variables or [])]},
        "links": [{"url": "/d/other?${run:queryparam}"}],
    }
    return json.dumps(parts, indent=2, ensure_ascii=False) + "\n"


def selected(text: str, matchers: tuple[Matcher, ...] = RL) -> Any:
    """The dashboard with matchers."""
    return json.loads(edited_dashboard("d.json", text, matchers=matchers, runbook_base=None))


def query(text: str, matchers: tuple[Matcher, ...] = RL) -> str:
    """A query in a panel of its own, with matchers."""
    found: str = selected(dashboard(panel(text)), matchers)["panels"][0]["targets"][0]["expr"]
    return found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("weight_sync_active", 'weight_sync_active{job="rl"}'),
        (
            'sum by (run) (rate(weight_sync_attempts_total{run=~"${run:regex}"}[$__rate_interval]))',
            'sum by (run) (rate(weight_sync_attempts_total{job="rl",run=~"${run:regex}"}[$__rate_interval]))',
        ),
        (
            'topk(${n}, weight_sync_active{run=~"$run"}[${__range_s}s:$step]) by ($by) + up{}',
            'topk(${n}, weight_sync_active{job="rl",run=~"$run"}[${__range_s}s:$step]) by ($by) + up{job="rl"}',
        ),
        (
            "weight_sync_active * $up / ${weight_sync_active}",
            'weight_sync_active{job="rl"} * $up / ${weight_sync_active}',
        ),
        ('run:weight_sync:p95_1h{run=~"$run"}', None),
        ('ALERTS{alertname=~"WeightSync.*",run=~"$run"}', None),
        ('sum({__name__=~"sglang[:_]num_running_reqs",instance=~"$server"})', None),
        ('sglang:token_usage{instance=~"$server"} or sglang_token_usage', None),
    ],
)
def test_queries(before: str, after: str | None) -> None:
    """Raw metrics of ours and up; Grafana's variables survive, and nothing else has these labels."""
    assert query(before) == (before if after is None else after)


def test_all_places() -> None:
    """Panels, also within a collapsed row, annotations and variables; what another kind of source is asked stays."""
    asked, wanted = "weight_sync_active", 'weight_sync_active{job="rl"}'
    mixed = panel(asked, asked, asked, datasource={"type": "datasource", "uid": "-- Mixed --"})
    for target, source in zip(mixed["targets"], (PROMETHEUS, LOKI, {"type": "tempo", "uid": "t"}), strict=True):
        target["datasource"] = source
    values = 'label_values(weight_sync_attempts_total{run=~"$run"}, server)'
    text = dashboard(
        panel(asked),
        mixed,
        {"title": "no query", "type": "text"},
        {"type": "row", "collapsed": True, "panels": [panel(asked), panel(asked, datasource=LOKI)]},
        variables=[
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            {
                "name": "server",
                "type": "query",
                "datasource": PROMETHEUS,
                "definition": values,
                "query": {"query": values, "refId": "S", "qryType": 1},
            },
            {"name": "old", "type": "query", "datasource": PROMETHEUS, "query": "label_values(up, job)"},
            {"name": "l", "type": "query", "datasource": LOKI, "query": {"label": "up", "stream": "", "type": 1}},
        ],
        notes=[
            {"builtIn": 1, "datasource": {"type": "grafana", "uid": "-- Grafana --"}, "target": {"type": "dashboard"}},
            {"name": "failed", "datasource": PROMETHEUS, "expr": asked},
            {"name": "lines", "datasource": LOKI, "expr": asked},
        ],
    )
    expected = json.loads(text)
    expected["panels"][0]["targets"][0]["expr"] = wanted
    expected["panels"][1]["targets"][0]["expr"] = wanted
    expected["panels"][3]["panels"][0]["targets"][0]["expr"] = wanted
    expected["annotations"]["list"][1]["expr"] = wanted
    server, old = expected["templating"]["list"][2:4]
    server["definition"] = server["query"]["query"] = values.replace("{run", '{job="rl",run')
    old["query"] = 'label_values(up{job="rl"}, job)'
    assert selected(text) == expected


@pytest.mark.parametrize("value", ["rl$", "$run", "${run}", "[[run]]", "[[[x", "a\\[[x", 'it\'s "{x}"', "ü😀 %s"])
def test_a_value_that_looks_like_a_variable(value: str) -> None:
    """Grafana finds nothing to put in, and Prometheus reads the value that was given."""
    made = query("weight_sync_active", (Matcher(label="job", operator="=", value=value),))
    assert "$" not in made
    assert "[[" not in made
    [written] = re.findall(r'job=("(?:\\.|[^"\\])*")', made)
    text = re.sub(r"\\x(..)", r"\\u00\1", written)
    text = re.sub(r"\\U(.{8})", lambda match: json.dumps(chr(int(match[1], 16)))[1:-1], text)
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ('{__name__=~"weight_sync_.*"}', "a __name__ matcher"),
        ('$metric{run="a"}', "which metric a variable stands for"),
        ("rate(${metric}[5m])", "which metric a variable stands for"),
        ("weight_sync_$kind", "which metric a variable stands for"),
        ("${prefix}_active", "which metric a variable stands for"),
        ("label_values(server)", "write label_values(METRIC, LABEL)"),
        ("metrics(weight_sync_.*)", "write label_values(METRIC, LABEL)"),
    ],
)
def test_queries_that_cannot_be_restricted(asked: str, words: str) -> None:
    """Told with the file and the panel, since a panel that shows another's runs would not be seen."""
    with pytest.raises(AssetError, match=r"^d.json, panel 'P': --select") as told:
        query(asked)
    assert words in str(told.value)


@pytest.mark.parametrize("source", [None, "Prometheus", {"uid": "x"}, {"type": "datasource", "uid": "-- Mixed --"}])
def test_a_source_of_unknown_kind(source: object) -> None:
    """It could be ours."""
    with pytest.raises(AssetError, match=r"^d.json, panel 'P': .*write the type of its datasource"):
        selected(dashboard(panel("weight_sync_active", datasource=source)))


def test_runbooks() -> None:
    """The hidden variable is the address, and so is what Grafana showed last, where that is written down."""
    base = "https://wiki.example/rl"
    text = dashboard(panel("weight_sync_active"))
    made = edited_dashboard("d.json", text, matchers=(), runbook_base=base)
    assert made == text.replace('"query": "runbooks"', f'"query": "{base}"')
    shown = json.loads(text)
    shown["templating"]["list"][0]["current"] = {"text": "runbooks", "value": "runbooks", "selected": False}
    again = json.loads(edited_dashboard("d.json", json.dumps(shown), matchers=(), runbook_base=base))
    assert again["templating"]["list"][0]["current"] == {"text": base, "value": base, "selected": False}


@pytest.mark.parametrize("variables", [[], [{"name": "runbooks", "type": "textbox", "query": "runbooks"}]])
def test_no_place_for_the_runbooks(variables: list[Any]) -> None:
    """The file is named."""
    text = json.dumps({"templating": {"list": variables}})
    with pytest.raises(AssetError, match=r"^d.json: --runbook-base needs a constant variable 'runbooks'"):
        edited_dashboard("d.json", text, matchers=(), runbook_base="https://wiki.example")


def test_no_json() -> None:
    """One line."""
    with pytest.raises(AssetError, match=r"^d.json: this is no JSON"):
        edited_dashboard("d.json", "{", matchers=RL, runbook_base=None)


def test_no_wish_is_byte_for_byte() -> None:
    """Whatever it is; with a wish, the examples of provisioning are left alone too."""
    assert edited_dashboard("d.json", " {}\r\n", matchers=(), runbook_base=None) == " {}\r\n"
    files = {"d.json": dashboard(panel("up")), "provisioning/a.yml": "expr: up\n"}
    assets = Assets(rules={"r.yml": "groups: []\n"}, alertmanager={}, runbooks={}, dashboards=files)
    made = exported(assets, ExportSettings(matchers=RL, runbook_base="https://wiki.example"))
    assert made["dashboards/provisioning/a.yml"] == "expr: up\n"
    assert 'up{job=\\"rl\\"}' in made["dashboards/d.json"]
    assert '"query": "https://wiki.example"' in made["dashboards/d.json"]
    objects = exported(assets, ExportSettings(format=Format.OPERATOR, matchers=RL))
    [text] = yaml.safe_load(objects["dashboards/d.yml"])["data"].values()
    assert text == edited_dashboard("d.json", files["d.json"], matchers=RL, runbook_base=None)


def strings(value: Any) -> Iterator[str]:
    """All texts of a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


@pytest.mark.parametrize("path", REAL)
def test_the_projects_own(path: str) -> None:
    """Taken out again, the matchers leave the file as it was; read with other eyes, none of our metrics is without."""
    made = edited_dashboard(path, REAL[path], matchers=parse_matchers('zone="z"'), runbook_base=None)
    assert made != REAL[path]
    assert made.replace('{zone=\\"z\\"}', "").replace('zone=\\"z\\",', "") == REAL[path]
    seen = 0
    for text in strings(json.loads(made)):
        if 'zone="z"' not in text or text.startswith("label_values("):
            continue
        plain = re.sub(r"\$\{?\w+(?::\w+)?\}?", "1m", text)
        for metric, labels in asked_for(plain).items():
            if metric is not None and re.fullmatch(r"weight_sync_\w+|up", metric):
                assert "zone" in labels, text
                seen += 1
    assert seen
    edited_dashboard(path, REAL[path], matchers=(), runbook_base="https://wiki.example")


def provisioned(kind: str, key: str) -> list[dict[str, Any]]:
    """What an example declares."""
    document = yaml.safe_load((PROVISIONING / kind / "sglang-telemetry.yml").read_text())
    assert document["apiVersion"] == 1
    found: list[dict[str, Any]] = document[key]
    return found


def test_sources_know_each_other() -> None:
    """Each uid that one names is another's, and none can be changed where the next start would undo it."""
    sources = {one["uid"]: one for one in provisioned("datasources", "datasources")}
    assert {one["type"] for one in sources.values()} == {"prometheus", "alertmanager", "tempo", "loki"}
    assert {one["editable"] for one in sources.values()} == {False}
    named = {
        one["uid"]: re.findall(r'"(?:datasourceUid|alertmanagerUid)": "(\w+)"', json.dumps(one))
        for one in sources.values()
    }
    assert named == {"prometheus": ["alertmanager", "tempo"], "alertmanager": [], "tempo": ["loki"], "loki": ["tempo"]}


def test_a_log_line_leads_to_its_trace() -> None:
    """The expression finds the id in a line as it is written; the dollar is Grafana's, not the environment's."""
    stream = io.StringIO()
    with host_logging():
        LogSink(fmt="json", stream=stream).emit(failed(who(0), sequence=0xABC))
    [loki] = [one for one in provisioned("datasources", "datasources") if one["type"] == "loki"]
    [field] = loki["jsonData"]["derivedFields"]
    assert re.findall(field["matcherRegex"], stream.getvalue()) == [f"{0xABC:032x}"]
    assert field["url"] == "$${__value.raw}"


def test_dashboards_are_provisioned() -> None:
    """From files, and not to be changed in Grafana."""
    [provider] = provisioned("dashboards", "providers")
    assert (provider["type"], provider["folder"], provider["allowUiUpdates"]) == ("file", "SGLang", False)
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards/sglang-telemetry"
