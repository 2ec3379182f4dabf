"""The three ways in which rules reach a Prometheus: as files, as Kubernetes objects, through Mimir's ruler.

Dashboards are files too, and ConfigMaps where the rules are objects.

Made by putting lines before the text of a rule file and indenting it, which YAML allows at any depth: no library is
needed at run time, and the comments come along.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from types import MappingProxyType

from sglang_telemetry.assets.error import AssetError

APP = "sglang-telemetry"
POD_LABELS: Mapping[str, str] = MappingProxyType({"app.kubernetes.io/name": APP})
"""What a pod that runs an exporter is told by, unless the site says otherwise."""
_ABOUT_PODS = """\
# Pods that run the exporter, in this object's namespace; for others add spec.namespaceSelector. The port has to be
# declared in the pod, and the exporter started with --listen :9464, since it serves the loopback alone by default.
# Trace ids come as exemplars over OpenMetrics, which Prometheus asks for unless scrapeProtocols says otherwise; it
# stores them with the feature exemplar-storage.
"""
_DNS = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_PORT = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class Format(StrEnum):
    """Who reads the rules and dashboards."""

    PROMETHEUS = "prometheus"
    OPERATOR = "prometheus-operator"
    MIMIR = "mimir"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """Where the objects live, and whom they look at.

    Args:
        namespace: Of the objects; for Mimir the first part of the rules' namespaces.
        labels: On the objects, for the operator's selectors.
        pod_labels: Of the pods that run an exporter.
        port_name: Of the exporter's port in these pods.
    """

    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    pod_labels: Mapping[str, str] = field(default_factory=lambda: POD_LABELS)
    port_name: str = "metrics"


def checked_namespace(text: str) -> str:
    """A name that Kubernetes takes.

    Raises:
        AssetError: It does not.
    """
    if not _DNS.fullmatch(text):
        raise AssetError(f"--namespace {text[:100]!r}: write lower-case letters, digits and '-', at most 63")
    return text


def checked_port(text: str) -> str:
    """The name of a port.

    Raises:
        AssetError: Kubernetes has no such names.
    """
    if not _PORT.fullmatch(text):
        raise AssetError(
            f"--port-name {text[:100]!r}: write lower-case letters, digits and '-', at most 15, not digits alone"
        )
    return text


def parse_pair(option: str, text: str) -> tuple[str, str]:
    """A Kubernetes label ``key=value``.

    Raises:
        AssetError: It is none.
    """
    key, sign, value = text.partition("=")
    domain, slash, name = key.rpartition("/")
    good = bool(sign and _PART.fullmatch(name) and (value == "" or _PART.fullmatch(value)))
    if slash:
        good = good and len(domain) <= 253 and all(_DNS.fullmatch(part) for part in domain.split("."))
    if not good:
        raise AssetError(f"{option} {text[:100]!r}: write a Kubernetes label, such as app.kubernetes.io/name={APP}")
    return key, value


def rule_files(rules: Mapping[str, str], chosen: Format, kubernetes: Kubernetes) -> dict[str, str]:
    """What holds the rules in a format, by path below the export's folder.

    Raises:
        AssetError: A file cannot be wrapped.
    """
    if chosen is Format.PROMETHEUS:
        return {f"rules/{file}": text for file, text in rules.items()}
    for file, text in rules.items():
        if re.search(r"^(?:---|\.\.\.|%)", text, re.M) or "\t" in text:
            raise AssetError(f"{file}: document marks and tabs cannot be wrapped; remove them")
    if chosen is Format.MIMIR:
        # mimirtool refuses a namespace that two of its files have.
        prefix = (kubernetes.namespace or APP).replace("-", "_")
        return {
            f"rules/{file}": f"namespace: {_string(f'{prefix}_{PurePosixPath(file).stem}')}\n{text}"
            for file, text in rules.items()
        }
    made = {
        f"prometheusrule-{PurePosixPath(file).stem}.yaml": _prometheus_rule(PurePosixPath(file).stem, text, kubernetes)
        for file, text in rules.items()
    }
    return made | {"podmonitor.yaml": _pod_monitor(kubernetes)}


def dashboard_files(dashboards: Mapping[str, str], chosen: Format, kubernetes: Kubernetes) -> dict[str, str]:
    """What holds the dashboards in a format, by path below the export's folder; what is no JSON stays as it is.

    As objects they are ConfigMaps with the label that the Grafana of kube-prometheus-stack looks for.
    """
    files = {f"dashboards/{file}": text for file, text in dashboards.items()}
    if chosen is not Format.OPERATOR:
        return files
    for file, text in dashboards.items():
        if file.endswith(".json"):
            del files[f"dashboards/{file}"]
            # kubectl looks into no folder below the one it is given.
            stem = file.removesuffix(".json").replace("/", "-")
            files[f"dashboards/{stem}.yml"] = _config_map(stem, text, kubernetes)
    return files


def _config_map(stem: str, text: str, kubernetes: Kubernetes) -> str:
    name = f"{APP}-dashboard-{stem.lower().replace('_', '-')}"
    head = _head("ConfigMap", name, kubernetes, version="v1", labels={"grafana_dashboard": "1"})
    # They would end a line or be refused in YAML, and in JSON they stand in strings alone.
    text = _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text.strip())
    return head + f"data:\n  {_string(f'{stem}.json')}: |\n" + re.sub(r"^(?=[^\n])", "    ", text, flags=re.M) + "\n"


def _prometheus_rule(stem: str, text: str, kubernetes: Kubernetes) -> str:
    head = _head("PrometheusRule", f"{APP}-{stem.lower().replace('_', '-')}", kubernetes)
    return head + "spec:\n" + re.sub(r"^(?=[^\n])", "  ", text, flags=re.M)


def _pod_monitor(kubernetes: Kubernetes) -> str:
    return (
        _head("PodMonitor", APP, kubernetes)
        + _ABOUT_PODS
        + "spec:\n  selector:\n    matchLabels:\n"
        + _pairs(kubernetes.pod_labels, 6)
        + f"  podMetricsEndpoints:\n    - port: {_string(kubernetes.port_name)}\n      interval: 15s\n"
    )


def _head(
    kind: str,
    name: str,
    kubernetes: Kubernetes,
    *,
    version: str = "monitoring.coreos.com/v1",
    labels: Mapping[str, str] = MappingProxyType({}),
) -> str:
    namespace = f"  namespace: {_string(kubernetes.namespace)}\n" if kubernetes.namespace else ""
    labels = {"app.kubernetes.io/name": APP, **labels, **kubernetes.labels}
    return f"apiVersion: {version}\nkind: {kind}\nmetadata:\n  name: {name}\n{namespace}  labels:\n{_pairs(labels, 4)}"


def _pairs(labels: Mapping[str, str], indent: int) -> str:
    return "".join(f"{' ' * indent}{key}: {_string(value)}\n" for key, value in labels.items())


def _string(value: str) -> str:
    """Quoted, since a plain ``on`` or ``1`` would be no string."""
    return json.dumps(value)
