"""The fields that a manifest may have (monitoring.coreos.com/v1 and ConfigMap), as strictly as the API server reads it.

Written from the operator's API reference: known fields only, with their types; those that are required are there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LABEL = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
DURATION = re.compile(r"0|(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """A mapping with known keys."""

    fields: Mapping[str, Any]
    required: frozenset[str] = field(default_factory=frozenset)


STRINGS = dict[str, str]
META = Object(
    fields={"name": NAME, "namespace": NAME, "labels": STRINGS, "annotations": STRINGS}, required=frozenset({"name"})
)
RULE = Object(
    fields={
        "record": str,
        "alert": str,
        "expr": (str, int),
        "for": DURATION,
        "keep_firing_for": DURATION,
        "labels": STRINGS,
        "annotations": STRINGS,
    },
    required=frozenset({"expr"}),
)
GROUP = Object(
    fields={
        "name": str,
        "interval": DURATION,
        "query_offset": DURATION,
        "limit": int,
        "labels": STRINGS,
        "partial_response_strategy": str,
        "rules": [RULE],
    },
    required=frozenset({"name"}),
)
ENDPOINT = Object(
    fields={
        "port": str,
        "portNumber": int,
        "path": str,
        "scheme": str,
        "interval": DURATION,
        "scrapeTimeout": DURATION,
        "honorLabels": bool,
        "honorTimestamps": bool,
        "relabelings": [dict],
        "metricRelabelings": [dict],
    }
)
SELECTOR = Object(fields={"matchLabels": STRINGS, "matchExpressions": [dict]})


def manifest(spec: Object, kind: str) -> Object:
    """A whole object of a kind."""
    return Object(
        fields={
            "apiVersion": re.compile("monitoring.coreos.com/v1"),
            "kind": re.compile(kind),
            "metadata": META,
            "spec": spec,
        },
        required=frozenset({"apiVersion", "kind", "metadata", "spec"}),
    )


PROMETHEUS_RULE = manifest(Object(fields={"groups": [GROUP]}), "PrometheusRule")
POD_MONITOR = manifest(
    Object(
        fields={
            "selector": SELECTOR,
            "podMetricsEndpoints": [ENDPOINT],
            "namespaceSelector": Object(fields={"any": bool, "matchNames": [str]}),
            "jobLabel": str,
            "podTargetLabels": [str],
            "sampleLimit": int,
            "targetLimit": int,
            "scrapeProtocols": [str],
        },
        required=frozenset({"selector", "podMetricsEndpoints"}),
    ),
    "PodMonitor",
)
CONFIG_MAP = Object(
    fields={
        "apiVersion": re.compile("v1"),
        "kind": re.compile("ConfigMap"),
        "metadata": META,
        "data": STRINGS,
    },
    required=frozenset({"apiVersion", "kind", "metadata", "data"}),
)


def complaints(value: object, schema: Any, where: str = "") -> list[str]:
    """What the API server would refuse."""
    if isinstance(schema, Object):
        if not isinstance(value, dict):
            return [f"{where}: no object"]
        found = [f"{where}.{key}: missing" for key in sorted(schema.required - value.keys())]
        for key, item in value.items():
            known = schema.fields.get(key)
            found += [f"{where}.{key}: unknown"] if known is None else complaints(item, known, f"{where}.{key}")
        return found
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where}: no list"]
        return [one for number, item in enumerate(value) for one in complaints(item, schema[0], f"{where}[{number}]")]
    if isinstance(schema, re.Pattern):
        good = isinstance(value, str) and schema.fullmatch(value) is not None
    elif schema == STRINGS:
        good = isinstance(value, dict) and all(isinstance(one, str) for pair in value.items() for one in pair)
    else:
        good = isinstance(value, schema)
    return [] if good else [f"{where}: {value!r} is not {schema}"]
