"""The three formats: the same groups in each, and manifests that the API server takes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.formats import (
    Format,
    Kubernetes,
    checked_namespace,
    checked_port,
    dashboard_files,
    parse_pair,
    rule_files,
)
from sglang_telemetry.assets.source import load
from tests.assets.crd import CONFIG_MAP, LABEL, NAME, POD_MONITOR, PROMETHEUS_RULE, complaints
from tests.assets.rules import SMALL
from tests.harness.processes import output_of

RULES = {"small_rules.yml": SMALL, "more.yml": "groups: []\n"}


def made(chosen: Format, kubernetes: Kubernetes | None = None) -> dict[str, str]:
    """What two files become."""
    return rule_files(RULES, chosen, kubernetes or Kubernetes())


def test_prometheus() -> None:
    """The files as they are."""
    assert made(Format.PROMETHEUS) == {"rules/small_rules.yml": SMALL, "rules/more.yml": "groups: []\n"}


def test_mimir() -> None:
    """A namespace each, since mimirtool refuses a repeated one; the groups as they are."""
    files = {path: yaml.safe_load(text) for path, text in made(Format.MIMIR).items()}
    assert [one["namespace"] for one in files.values()] == ["sglang_telemetry_small_rules", "sglang_telemetry_more"]
    assert files["rules/small_rules.yml"]["groups"] == yaml.safe_load(SMALL)["groups"]
    named = made(Format.MIMIR, Kubernetes(namespace="team-rl"))
    assert named["rules/more.yml"] == 'namespace: "team_rl_more"\ngroups: []\n'


def test_operator() -> None:
    """A PrometheusRule a file and one PodMonitor, with comments and groups as they were."""
    kubernetes = Kubernetes(namespace="monitoring", labels={"release": "on"}, pod_labels={"app": "1"}, port_name="m")
    files = made(Format.OPERATOR, kubernetes)
    assert list(files) == ["prometheusrule-small_rules.yaml", "prometheusrule-more.yaml", "podmonitor.yaml"]
    rule, _, pods = (yaml.safe_load(text) for text in files.values())
    assert complaints(rule, PROMETHEUS_RULE) == complaints(pods, POD_MONITOR) == []
    labels = {"app.kubernetes.io/name": "sglang-telemetry", "release": "on"}
    assert rule["metadata"] == {"name": "sglang-telemetry-small-rules", "namespace": "monitoring", "labels": labels}
    assert rule["spec"] == yaml.safe_load(SMALL)
    assert "\n        # Says why; and up comes after it.\n" in files["prometheusrule-small_rules.yaml"]
    assert pods["spec"] == {
        "selector": {"matchLabels": {"app": "1"}},
        "podMetricsEndpoints": [{"port": "m", "interval": "15s"}],
    }


def test_no_namespace_unless_asked() -> None:
    """kubectl's own then counts."""
    files = made(Format.OPERATOR).values()
    assert ["namespace" in yaml.safe_load(text)["metadata"] for text in files] == [False, False, False]


def test_real_rules_as_manifests() -> None:
    """All that the project's files use is known to the API server."""
    files = rule_files(load().rules, Format.OPERATOR, Kubernetes())
    for path, text in files.items():
        assert complaints(yaml.safe_load(text), POD_MONITOR if path == "podmonitor.yaml" else PROMETHEUS_RULE) == []


ODD = {"title": "it's: #1 {{ x }} ü😀 \x7f\x85\u2028\ufeff", "panels": [{"expr": 'a{b=~"$c"}'}]}
DASHBOARDS = {
    "weight_sync.json": json.dumps(ODD, indent=2, ensure_ascii=False) + "\n",
    "more/Other.json": "{}\n",
    "provisioning/a.yml": "a: 1\n",
}


@pytest.mark.parametrize("chosen", [Format.PROMETHEUS, Format.MIMIR])
def test_dashboards_as_files(chosen: Format) -> None:
    """As they are."""
    files = dashboard_files(DASHBOARDS, chosen, Kubernetes())
    assert files == {f"dashboards/{path}": text for path, text in DASHBOARDS.items()}


def test_dashboards_as_objects() -> None:
    """A ConfigMap each, with the label that a sidecar of Grafana looks for, side by side where kubectl finds them."""
    kubernetes = Kubernetes(namespace="monitoring", labels={"release": "on"})
    files = dashboard_files(DASHBOARDS, Format.OPERATOR, kubernetes)
    assert files.pop("dashboards/provisioning/a.yml") == "a: 1\n"
    assert set(files) == {"dashboards/weight_sync.yml", "dashboards/more-Other.yml"}
    made = yaml.safe_load(files["dashboards/weight_sync.yml"])
    assert complaints(made, CONFIG_MAP) == []
    assert made["metadata"] == {
        "name": "sglang-telemetry-dashboard-weight-sync",
        "namespace": "monitoring",
        "labels": {"app.kubernetes.io/name": "sglang-telemetry", "grafana_dashboard": "1", "release": "on"},
    }
    [(key, text)] = made["data"].items()
    assert (key, json.loads(text)) == ("weight_sync.json", ODD)
    assert NAME.fullmatch(yaml.safe_load(files["dashboards/more-Other.yml"])["metadata"]["name"])


def test_another_label_for_the_sidecar() -> None:
    """The site's own word counts."""
    files = dashboard_files(DASHBOARDS, Format.OPERATOR, Kubernetes(labels={"grafana_dashboard": "yes"}))
    assert yaml.safe_load(files["dashboards/weight_sync.yml"])["metadata"]["labels"]["grafana_dashboard"] == "yes"


def test_real_dashboards_as_objects() -> None:
    """The same text, and short enough for the annotation in which kubectl apply keeps a whole object."""
    dashboards = {path: text for path, text in load().dashboards.items() if path.endswith(".json")}
    for path, text in dashboards.items():
        [(where, manifest)] = dashboard_files({path: text}, Format.OPERATOR, Kubernetes()).items()
        made = yaml.safe_load(manifest)
        assert (where, complaints(made, CONFIG_MAP)) == (f"dashboards/{path.removesuffix('.json')}.yml", [])
        assert made["data"] == {path: text}
        assert len(json.dumps(made)) < 256 * 1024


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl_reads_the_objects(tmp_path: Path) -> None:
    """Without a server: each of them and nothing else in the folder, though files of Grafana lie in one below it."""
    dashboards = {**DASHBOARDS, **load().dashboards}
    for path, text in dashboard_files(dashboards, Format.OPERATOR, Kubernetes()).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    folder = str(tmp_path / "dashboards")
    read = output_of("kubectl", "label", "--local", "-f", folder, "a=b", "-o", "jsonpath={.data}{'\\n'}", timeout=60)
    texts = [text for line in read.splitlines() if line for text in json.loads(line).values()]
    given = [text for path, text in dashboards.items() if path.endswith(".json")]
    assert sorted(map(json.loads, texts), key=str) == sorted(map(json.loads, given), key=str)


def test_the_checker_sees_faults() -> None:
    """A judge that finds nothing wrong with anything would be none."""
    [text] = [text for path, text in made(Format.OPERATOR).items() if "small" in path]
    good: dict[str, Any] = yaml.safe_load(text)
    rule = good["spec"]["groups"][0]["rules"][1]
    rule |= {"severity": "x", "for": "soon", "labels": {"a": 1}}
    del good["metadata"]["name"]
    assert len(complaints(good, PROMETHEUS_RULE)) == 4
    assert complaints(good, POD_MONITOR) != []


@pytest.mark.parametrize("text", ["---\ngroups: []\n", "groups:\n\t- a\n", "%YAML 1.2\n"])
def test_what_cannot_be_wrapped(text: str) -> None:
    """Told, not made into something else."""
    with pytest.raises(AssetError, match=r"x.yml: document marks and tabs cannot be wrapped"):
        rule_files({"x.yml": text}, Format.OPERATOR, Kubernetes())


@pytest.mark.parametrize("text", ["", "A", "a_b", "-a", "a-", "a.b", "x" * 64, "a\n", "a: b", '"', "{{x}}", "é"])
@pytest.mark.parametrize("check", [checked_namespace, checked_port])
def test_names_that_kubernetes_refuses(check: Callable[[str], str], text: str) -> None:
    """One line."""
    with pytest.raises(AssetError, match=r"^--(namespace|port-name) .*: write lower-case letters") as told:
        check(text)
    assert len(str(told.value).splitlines()) == 1


def test_names_that_kubernetes_takes() -> None:
    """As they are."""
    assert [checked_namespace("team-1"), checked_port("http-metrics")] == ["team-1", "http-metrics"]
    with pytest.raises(AssetError):
        checked_port("9464")


@pytest.mark.parametrize("text", ["a=b", "app.kubernetes.io/name=x", "release=kube-prometheus-stack", "a="])
def test_kubernetes_labels(text: str) -> None:
    """Key and value."""
    key, value = parse_pair("--pod-selector", text)
    assert f"{key}={value}" == text
    assert LABEL.fullmatch(key)


@pytest.mark.parametrize(
    "text", ["", "a", "=b", "a b=c", "a=b c", "a=b: c", "a=b\n", "A.B_/c=x", "a=-", "a=" + "x" * 64, "/a=b"]
)
def test_what_is_no_kubernetes_label(text: str) -> None:
    """One line that shows one."""
    with pytest.raises(AssetError, match=r"^--pod-selector .*: write a Kubernetes label") as told:
        parse_pair("--pod-selector", text)
    assert len(str(told.value).splitlines()) == 1
