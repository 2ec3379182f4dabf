"""Grafana's classic dashboard model behind small helpers; nothing of weight syncs is known here.

Plain dictionaries, and not ``grafana-foundation-sdk``: with both tried on the first tile, its builder read no better,
and wrote a schemaVersion that some Grafanas refuse, no panel ids, and its own defaults. Its classes check the result
in the tests.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

SCHEMA_VERSION = 39
"""Grafana 11 writes it; later ones migrate it, while some refuse what is newer than themselves."""
COLUMNS = 24
LAST: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}
"""How a stat or a bar makes one value of a series."""
ALL = "$__all"
PROMETHEUS: Json = {"type": "prometheus", "uid": "${datasource}"}
LOKI: Json = {"type": "loki", "uid": "${loki}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query of a panel.

    Args:
        expr: PromQL, or LogQL in a panel of logs.
        legend: Template of the series' names.
        instant: At the end of the time range only.
        shape: ``time_series``, ``table`` or ``heatmap``.
        exemplar: Ask for exemplars too.
        color: Of all its series, whatever the panel says.
    """

    expr: str
    legend: str = "__auto"
    instant: bool = False
    shape: str = "time_series"
    exemplar: bool = False
    color: str | None = None

    def target(self, ref: str, source: Json) -> Json:
        """As Grafana has it."""
        if source["type"] == "loki":
            return {"refId": ref, "datasource": source, "expr": self.expr, "queryType": "range", "maxLines": 200}
        target: Json = {"refId": ref, "datasource": source, "expr": self.expr, "format": self.shape}
        target |= {"instant": self.instant, "range": not self.instant}
        if self.shape != "table":
            target["legendFormat"] = self.legend
        if self.exemplar:
            target["exemplar"] = True
        return target


def fixed(color: str) -> Json:
    """One colour."""
    return {"mode": "fixed", "fixedColor": color}


def thresholds(base: str, *steps: tuple[float, str]) -> Json:
    """Colours by value: the base, and each other from its value on."""
    return {
        "mode": "absolute",
        "steps": [{"color": base, "value": None}, *({"color": color, "value": value} for value, color in steps)],
    }


def words(values: Mapping[str, tuple[str, str | None]]) -> Json:
    """A value mapping: value to the text that stands for it, and its colour."""
    result = {
        value: {"text": text, "index": index} | ({"color": color} if color else {})
        for index, (value, (text, color)) in enumerate(values.items())
    }
    return {"type": "value", "options": result}


def link(title: str, url: str) -> Json:
    """A data link; it opens beside the dashboard."""
    return {"title": title, "url": url, "targetBlank": True}


def override(matcher: str, value: str, properties: Mapping[str, Any]) -> Json:
    """Settings of some fields, such as those ``byName``."""
    found = [{"id": name, "value": setting} for name, setting in properties.items()]
    return {"matcher": {"id": matcher, "options": value}, "properties": found}


def columns(names: Mapping[str, str], *without: str) -> Json:
    """A transformation: a table's fields in this order, each with the name that people read, and some left out."""
    options = {
        "excludeByName": dict.fromkeys(without, True),
        "indexByName": {name: index for index, name in enumerate(names)},
        "renameByName": dict(names),
    }
    return {"id": "organize", "options": options}


def panel(
    kind: str,
    title: str,
    description: str,
    *queries: Query,
    width: int,
    height: int,
    empty: str,
    unit: str = "none",
    decimals: int | None = None,
    least: float | None = None,
    color: Json | None = None,
    steps: Json | None = None,
    mappings: Sequence[Json] = (),
    links: Sequence[Json] = (),
    overrides: Sequence[Json] = (),
    custom: Json | None = None,
    options: Json | None = None,
    transformations: Sequence[Json] = (),
    interval: str | None = None,
    source: Json = PROMETHEUS,
) -> Json:
    """A panel without its place.

    Args:
        kind: Grafana's panel type.
        title: Unique in its dashboard: the id is made of it, and stays when panels come and go.
        description: Behind the panel's ``i``.
        queries: Named A, B, C in their order.
        width: In columns of 24.
        height: In grid units of 38 pixels.
        empty: Shown where no query has a result.
        unit: Grafana's id of a unit.
        decimals: Digits; Grafana's own choice by default.
        least: Where the scale begins; the smallest value by default.
        color: Of the values.
        steps: Thresholds.
        mappings: Words for values.
        links: Of each value.
        overrides: Of some fields.
        custom: Field settings of that kind of panel.
        options: Of that kind of panel.
        transformations: Of the results, in their order.
        interval: Smallest step of a query.
        source: Where the queries go.
    """
    defaults: Json = {"unit": unit, "noValue": empty}
    defaults |= {"decimals": decimals} if decimals is not None else {}
    defaults |= {"min": least} if least is not None else {}
    defaults |= {"color": color} if color else {}
    defaults |= {"thresholds": steps} if steps else {}
    defaults |= {"mappings": list(mappings)} if mappings else {}
    defaults |= {"links": list(links)} if links else {}
    defaults |= {"custom": custom} if custom else {}
    refs = [chr(ord("A") + index) for index in range(len(queries))]
    colored = [
        override("byFrameRefID", ref, {"color": fixed(query.color)})
        for ref, query in zip(refs, queries, strict=True)
        if query.color
    ]
    found: Json = {"id": _id(title), "type": kind, "title": title, "description": description}
    found |= {"gridPos": {"x": 0, "y": 0, "w": width, "h": height}, "datasource": source}
    found |= {"interval": interval} if interval else {}
    found |= {"targets": [query.target(ref, source) for ref, query in zip(refs, queries, strict=True)]}
    # In a table, the words for an empty panel would stand in each empty cell.
    cells = [override("byRegexp", ".*", {"noValue": "-"})] if kind == "table" else []
    found |= {"fieldConfig": {"defaults": defaults, "overrides": [*colored, *cells, *overrides]}}
    found |= {"options": options} if options else {}
    found |= {"transformations": list(transformations)} if transformations else {}
    return found


def row(title: str, *, collapsed: Sequence[Json] | None = None) -> Json:
    """A header; with panels it is collapsed, and Grafana asks nothing for them until somebody opens it."""
    hidden = placed(collapsed) if collapsed else []
    place = {"x": 0, "y": 0, "w": COLUMNS, "h": 1}
    return {"id": _id(f"row {title}"), "type": "row", "title": title, "gridPos": place} | {
        "collapsed": bool(hidden),
        "panels": hidden,
    }


def placed(panels: Iterable[Json]) -> list[Json]:
    """The panels from left to right, line by line, each line as high as its highest."""
    found: list[Json] = []
    x = y = height = 0
    for one in panels:
        place = one["gridPos"]
        if x + place["w"] > COLUMNS:
            x, y, height = 0, y + height, 0
        found.append(one | {"gridPos": place | {"x": x, "y": y}})
        x, height = x + place["w"], max(height, place["h"])
    return found


def source_variable(name: str, label: str, kind: str) -> Json:
    """A choice of a data source."""
    return {"name": name, "label": label, "type": "datasource", "query": kind, "refresh": 1, "hide": 0}


def label_variable(name: str, label: str, query: str, description: str) -> Json:
    """A choice of label values, several or all; all is whatever there is, also where the label is missing."""
    return {
        "name": name,
        "label": label,
        "description": description,
        "type": "query",
        "datasource": PROMETHEUS,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": [ALL]},
        "hide": 0,
    }


def constant(name: str, value: str) -> Json:
    """A text that links use; who provisions the dashboard sets it."""
    current = {"text": value, "value": value}
    return {"name": name, "type": "constant", "query": value, "current": current, "hide": 2}


def annotation(name: str, expr: str, color: str, *, title: str, text: str) -> Json:
    """Marks at the times, in milliseconds, that the values of a query are."""
    found: Json = {"name": name, "enable": True, "iconColor": color, "datasource": PROMETHEUS, "expr": expr}
    return found | {"titleFormat": title, "textFormat": text, "step": "60s", "useValueForTime": True}


def dashboard_link(title: str, uid: str, tooltip: str) -> Json:
    """A link at the top to another dashboard, which gets the same choices and the same time range."""
    found: Json = {"title": title, "type": "link", "url": f"/d/{uid}", "tooltip": tooltip, "icon": "dashboard"}
    return found | {"tags": [], "asDropdown": False, "targetBlank": False, "includeVars": True, "keepTime": True}


def dashboard(
    uid: str,
    title: str,
    description: str,
    panels: Iterable[Json],
    *,
    tags: Sequence[str],
    variables: Sequence[Json],
    annotations: Sequence[Json],
    links: Sequence[Json],
) -> Json:
    """A whole dashboard.

    Args:
        uid: Fixed: alerts link to it.
        title: As in the list.
        description: Below it.
        panels: In their order; they are placed here.
        tags: To find it by.
        variables: At the top.
        annotations: Marks in all graphs.
        links: At the top.
    """
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": list(tags),
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "timezone": "browser",
        "templating": {"list": list(variables)},
        "annotations": {"list": list(annotations)},
        "links": list(links),
        "panels": placed(panels),
    }


def _id(title: str) -> int:
    return zlib.crc32(title.encode()) % 10**6
