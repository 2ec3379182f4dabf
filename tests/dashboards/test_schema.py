"""The dashboards are JSON that Grafana understands, and the schema that says so catches what it should.

The one decision: the mistakes are made in a small dashboard of the test's own, which has each panel type, so that they
do not depend on what ours happen to show.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.dashboards.schema import PANELS, errors, validator

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
# Ours by name too: an empty folder is then a failure, not a skip.
NAMES = sorted({"weight-sync.json", "weight-sync-ranks.json", *(path.name for path in DASHBOARDS.glob("*.json"))})

PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
LOKI = {"type": "loki", "uid": "${loki}"}
ABSENT = object()


def field(custom: dict[str, Any] | None = None, overrides: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """A fieldConfig with a threshold, a mapping and a link."""
    defaults: dict[str, Any] = {
        "unit": "s",
        "thresholds": {"mode": "absolute", "steps": [{"color": "green", "value": None}, {"color": "red", "value": 1}]},
        "mappings": [{"type": "value", "options": {"0": {"text": "ok", "color": "green", "index": 0}}}],
        "links": [{"title": "Ranks", "url": "/d/ranks?${__url_time_range}", "targetBlank": False}],
    }
    return {"defaults": defaults | ({} if custom is None else {"custom": custom}), "overrides": list(overrides)}


def override(key: str, value: object) -> dict[str, Any]:
    """An override of one property, by a field's name."""
    return {"matcher": {"id": "byName", "options": "p99"}, "properties": [{"id": key, "value": value}]}


def panel(kind: str, options: dict[str, Any], config: dict[str, Any] | None = None) -> dict[str, Any]:
    """A panel with one target, titled by its type."""
    source = LOKI if kind == "logs" else PROMETHEUS
    made: dict[str, Any] = {
        "id": 1,
        "type": kind,
        "title": kind,
        "datasource": source,
        "gridPos": {"h": 8, "w": 12, "x": 0, "y": 0},
        "targets": [{"refId": "A", "expr": "up", "datasource": source}],
        "options": options,
    }
    return made if config is None else made | {"fieldConfig": config}


def sample() -> dict[str, Any]:
    """A valid dashboard with each panel type, of which a row holds the last."""
    legend = {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["max"]}
    tooltip = {"mode": "multi", "sort": "desc"}
    graph = {"lineWidth": 2, "thresholdsStyle": {"mode": "line"}, "spanNulls": 60000}
    cell = {"type": "color-background", "mode": "basic"}
    spread = {"calculate": False, "color": {"mode": "scheme", "scheme": "Oranges"}, "yAxis": {"unit": "s"}}
    return {
        "id": None,
        "uid": "sample",
        "title": "Sample",
        "schemaVersion": 39,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "templating": {
            "list": [
                {"type": "datasource", "name": "datasource", "query": "prometheus", "hide": 0},
                {"type": "query", "name": "run", "query": "label_values(up, run)", "refresh": 2, "multi": True},
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Failures",
                    "enable": True,
                    "iconColor": "red",
                    "datasource": PROMETHEUS,
                    "expr": "up == 0",
                    "titleFormat": "{{run}}",
                    "useValueForTime": False,
                },
                {
                    "name": "Lines",
                    "enable": True,
                    "iconColor": "red",
                    "datasource": LOKI,
                    "target": {"refId": "A", "expr": "{a=`b`}"},
                },
            ]
        },
        "links": [],
        "panels": [
            panel("stat", {"colorMode": "value", "reduceOptions": {"calcs": ["lastNotNull"]}}, field()),
            panel(
                "timeseries",
                {"legend": legend, "tooltip": tooltip},
                field(graph, [override("custom.thresholdsStyle.mode", "area"), override("unit", "bytes")]),
            ),
            panel("table", {"showHeader": True}, field({"align": "left"}, [override("custom.cellOptions", cell)])),
            panel("heatmap", spread, field({"hideFrom": {"tooltip": False, "legend": False, "viz": False}})),
            panel("state-timeline", {"mergeValues": True, "showValue": "never"}, field({"fillOpacity": 70})),
            panel("bargauge", {"displayMode": "gradient"}, field()),
            panel("text", {"mode": "markdown", "content": "Read this."}),
            {
                "id": 9,
                "type": "row",
                "title": "Lines",
                "collapsed": True,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": 8},
                "panels": [panel("logs", {"showTime": True, "sortOrder": "Descending"})],
            },
        ],
    }


@pytest.mark.parametrize("name", NAMES)
def test_dashboard_is_valid(name: str) -> None:
    """By Grafana's own types, to the last key."""
    assert errors(json.loads((DASHBOARDS / name).read_text())) == []


def test_sample_is_valid_and_has_each_panel_type() -> None:
    """Without that, the mistakes below would prove nothing."""
    board = sample()
    assert errors(board) == []
    row = board["panels"][-1]
    assert {made["type"] for made in (*board["panels"][:-1], *row["panels"])} == set(PANELS)


@pytest.mark.parametrize("owner", [module.Options for module in PANELS.values()], ids=PANELS)
def test_schema_is_one(owner: type) -> None:
    """What is derived from the classes is itself valid JSON Schema."""
    Draft202012Validator.check_schema(validator(owner).schema)


MISTAKES: list[tuple[str, object, str, str]] = [
    ("colour", "red", "dashboard", "'colour' was unexpected"),
    ("schemaVersion", ABSENT, "dashboard", "'schemaVersion' is a required property"),
    ("graphTooltip", 7, "dashboard.graphTooltip", "7 is not one of [0, 1, 2]"),
    ("panels.0.datasorce", {}, "panel 'stat' (stat)", "'datasorce' was unexpected"),
    ("panels.0.type", ABSENT, "panel 'stat' (None)", "'type' is a required property"),
    ("panels.0.type", "stats", "panel 'stat' (stats).type", "'stats' is none of row,"),
    ("panels.0.gridPos.w", "x", "panel 'stat' (stat).gridPos.w", "'x' is not of type 'integer'"),
    ("panels.0.options.colourMode", "value", "panel 'stat' (stat).options", "'colourMode' was unexpected"),
    ("panels.0.options.colorMode", "values", "panel 'stat' (stat).options.colorMode", "'values' is not one of"),
    ("panels.0.options.reduceOptions.calc", [], "panel 'stat' (stat).options.reduceOptions", "'calc' was unexpected"),
    ("panels.0.fieldConfig.defaults.units", "s", "panel 'stat' (stat).fieldConfig.defaults", "'units' was unexpected"),
    ("panels.0.fieldConfig.defaults.custom", {"lineWidth": 1}, "panel 'stat' (stat)", "'lineWidth' was unexpected"),
    ("panels.0.fieldConfig.defaults.links.0.link", "/", "panel 'stat' (stat)", "'link' was unexpected"),
    ("panels.0.fieldConfig.defaults.mappings.0.type", "range", "panel 'stat' (stat)", ".fieldConfig.defaults.mappings"),
    ("panels.0.fieldConfig.defaults.thresholds.steps.0.value", ABSENT, "panel 'stat' (stat)", "'value' is a required"),
    ("panels.0.targets.0.exprs", "up", "panel 'stat' (stat).targets[0]", "'exprs' was unexpected"),
    ("panels.0.targets.0.maxLines", 10, "panel 'stat' (stat).targets[0]", "'maxLines' was unexpected"),
    ("panels.0.targets.0.datasource.type", "prom", "panel 'stat' (stat).targets[0]", "'prom' is none of"),
    ("panels.1.fieldConfig.defaults.custom.lineWidht", 2, "panel 'timeseries'", "'lineWidht' was unexpected"),
    ("panels.1.fieldConfig.overrides.0.properties.0.value", "areas", "panel 'timeseries'", "'areas' is not one of"),
    ("panels.1.fieldConfig.overrides.1.properties.0.id", "units", "panel 'timeseries'", "'units' was unexpected"),
    ("panels.2.fieldConfig.overrides.0.properties.0.value.mode", "lcd", "panel 'table'", ".custom.cellOptions"),
    ("panels.7.panels.0.options.sortOrder", "Down", "panel 'logs' (logs).options.sortOrder", "'Down' is not one of"),
    ("panels.7.panels.0.targets.0.expr", ABSENT, "panel 'logs' (logs).targets[0]", "'expr' is a required property"),
    ("panels.7.collapsed", ABSENT, "panel 'Lines' (row)", "'collapsed' is a required property"),
    ("templating.list.0.type", "data", "dashboard.templating.list[0].type", "'data' is not one of"),
    ("annotations.list.0.expression", "up", "dashboard.annotations.list[0]", "'expression' was unexpected"),
    ("annotations.list.1.target.exemplar", True, "annotation 'Lines'.target", "'exemplar' was unexpected"),
]


@pytest.mark.parametrize(("where", "value", "place", "message"), MISTAKES)
def test_mistake_is_caught(where: str, value: object, place: str, message: str) -> None:
    """Once, with its place and what is wrong."""
    board = json.loads(json.dumps(sample()))  # nothing in it shared
    *steps, last = where.split(".")
    holder: Any = board
    for step in steps:
        holder = holder[int(step) if isinstance(holder, list) else step]
    if value is ABSENT:
        del holder[last]
    else:
        holder[last] = value
    (error,) = errors(board)
    assert error.startswith(place)
    assert message in error
