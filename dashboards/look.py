"""What both dashboards share: colours, matchers, variables, and the thresholds that the alert rules have.

Red is kept for what pages or will if it stays so, orange for what warns. Most of the others are Okabe and Ito's, which
people with any kind of colour blindness tell apart.
"""

from functools import cache

from dashboards import grafana
from dashboards.grafana import Json, Query
from sglang_telemetry.assets.options import Option, find_options
from sglang_telemetry.assets.source import load
from sglang_telemetry.assets.values import is_duration, milliseconds
from sglang_telemetry.names import Action, Phase, Policy

TAGS = ("sglang", "weight-sync")
WEIGHT_SYNC, RANKS = "weight-sync", "weight-sync-ranks"

PAGE, PAGE_DARK, WARN, FINE, QUIET = "#D62A3B", "#A01E2B", "#E69F00", "#56B4E9", "#6E6E78"
PHASES = {
    Phase.SETUP: "#8E8E99",
    Phase.STATE_DICT: "#F0E442",
    Phase.SAVE: "#009E73",
    Phase.REQUEST: "#56B4E9",
    Phase.CONFIRM: "#0072B2",
    Phase.BROADCAST: "#CC79A7",
    Phase.BARRIER: "#882E72",
    Phase.OTHER: "#CCBB88",
}
POLICIES = {Policy.CURRENT: FINE, Policy.MIXED: "#F0E442", Policy.STALE: WARN, Policy.UNKNOWN: QUIET}
ACTIONS = {
    Action.VALIDATE: "#56B4E9",
    Action.SAFETENSORS: "#0072B2",
    Action.PUBLISH: "#009E73",
    Action.CLEAN_UP: "#44AA99",
    Action.SERIALIZE: "#CCBB88",
    Action.TIMEOUT: "#8E8E99",
    Action.PAUSE: "#CC79A7",
    Action.FLUSH: "#882E72",
    Action.RELEASE: "#AA4499",
    Action.WAIT: "#F0E442",
    Action.RETRY: "#DDCC77",
    Action.CONTINUE_STALE: WARN,
}
SHADES: Json = {"mode": "shades", "fixedColor": FINE}
BY_THRESHOLD: Json = {"mode": "thresholds"}

RUN = 'run=~"$run"'
TARGET = 'run=~"$run",server=~"$server"'
OF_TARGETS = f"and on (server) weight_sync_attempts_total{{{TARGET}}}"
"""Keeps the servers of the chosen runs, where a metric has no run."""


def option(name: str) -> float:
    """The default of a threshold of the alert rules, in seconds where it is a time.

    Raises:
        KeyError: There is none of that name.
    """
    text = _options()[name].default
    return milliseconds(text) / 1000 if is_duration(text) else float(text)


@cache
def _options() -> dict[str, Option]:
    return dict(find_options(load().rules))


def seconds_in(phases: str) -> str:
    """Seconds that the last sync of each run spent in the phases that a pattern matches."""
    return f'sum by (run) (max by (run, phase) (weight_sync_last_phase_duration_seconds{{{RUN},phase=~"{phases}"}}))'


def in_table(expr: str) -> Query:
    """A query whose result is rows of a table, as of the end of the time range."""
    return Query(expr=expr, instant=True, shape="table")


def runbook(path: str) -> str:
    """Address of a runbook."""
    return f"${{runbooks:raw}}/{path}"


def variables(*more: Json) -> list[Json]:
    """The choices at the top."""
    return [
        grafana.source_variable("datasource", "Prometheus", "prometheus"),
        grafana.label_variable(
            "run", "Run", "label_values(weight_sync_attempts_total, run)", "Training jobs by their stable name"
        ),
        grafana.label_variable(
            "server",
            "Server",
            f"label_values(weight_sync_attempts_total{{{RUN}}}, server)",
            "SGLang servers, host:port, that these runs sync to",
        ),
        *more,
        grafana.source_variable("tempo", "Tempo", "tempo"),
        grafana.source_variable("loki", "Loki", "loki"),
        grafana.constant("runbooks", "runbooks"),
    ]


def annotations() -> list[Json]:
    """Failed syncs and restarts of servers, at the second at which they were."""
    return [
        grafana.annotation(
            "Failed syncs",
            f"1000 * (max by (run, server, cause) (weight_sync_last_failure_timestamp_seconds{{{TARGET}}})"
            " > $__from / 1000)",
            PAGE,
            title="{{run}}: {{cause}}",
            text="sync to {{server}} failed",
        ),
        grafana.annotation(
            "Server restarts",
            '1000 * (max by (server) (weight_sync_server_last_restart_timestamp_seconds{server=~"$server"})'
            " > $__from / 1000)",
            WARN,
            title="{{server}} restarted",
            text="it came back with its start weights",
        ),
    ]


def lines(*, fill: int = 0, points: bool = False, stacked: bool = False, threshold: bool = False) -> Json:
    """Field settings of a time series that is drawn with lines."""
    found: Json = {"drawStyle": "line", "lineWidth": 2, "fillOpacity": fill, "showPoints": "auto"}
    found |= {"showPoints": "always", "pointSize": 5} if points else {}
    found |= {"stacking": {"mode": "normal", "group": "A"}} if stacked else {}
    found |= {"thresholdsStyle": {"mode": "dashed"}} if threshold else {}
    return found | {"axisSoftMin": 0}


def bars() -> Json:
    """Field settings of a time series of counts."""
    found: Json = {"drawStyle": "bars", "lineWidth": 0, "fillOpacity": 90, "barAlignment": -1}
    return found | {"stacking": {"mode": "normal", "group": "A"}, "axisSoftMin": 0, "axisSoftMax": 4}


def legend(*calcs: str, right: bool = False) -> Json:
    """Options of a time series: a legend below, or as a table on the right."""
    shape = {"displayMode": "table" if calcs else "list", "placement": "right" if right else "bottom"}
    return {
        "legend": shape | {"showLegend": True, "calcs": list(calcs)},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def heat(*, cells: str, rows: str) -> Json:
    """Options of a heatmap whose rows are there already: buckets (``le``), or a series each (``auto``).

    Args:
        cells: Unit of the values.
        rows: What a row is.
    """
    return {
        "calculate": False,
        "filterValues": {"le": 1e-9},
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "reverse": False},
        "yAxis": {"axisPlacement": "left"} | ({"unit": "s"} if rows == "le" else {}),
        "cellValues": {"unit": cells},
        "rowsFrame": {"layout": rows},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False},
    }


def states(values: str) -> Json:
    """Options of a state timeline; ``values`` is ``auto`` or ``never``, whether the words stand in the bars."""
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    return {"mergeValues": True, "showValue": values, "rowHeight": 0.85, "legend": legend}


CELLS: Json = {"minWidth": 90}
"""Field settings of a table: Grafana's own least width would push columns out of sight."""


def table(sort: str | None = None, *, descending: bool = True) -> Json:
    """Options of a table, sorted by a column."""
    order = {"sortBy": [{"displayName": sort, "desc": descending}]} if sort else {}
    return {"cellHeight": "sm"} | order
