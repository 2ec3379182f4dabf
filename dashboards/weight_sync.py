"""For whoever is on call: is it fresh, does it fail and why, is it stuck, does the server run what was sent."""

from collections.abc import Sequence

from dashboards import look
from dashboards.grafana import (
    LAST,
    LOKI,
    Json,
    Query,
    columns,
    dashboard,
    dashboard_link,
    fixed,
    link,
    override,
    panel,
    row,
    thresholds,
    words,
)
from dashboards.look import BY_THRESHOLD, FINE, OF_TARGETS, PAGE, QUIET, RUN, SHADES, TARGET, WARN, option
from sglang_telemetry.causes import FailureCause

_FRESH = f"""max by (run) (
  weight_sync_last_success_timestamp_seconds{{{TARGET}}}
  or
  weight_sync_process_start_timestamp_seconds{{{RUN},rank="0"}}
)"""
_AGE = f"time() - {_FRESH} and on (run) weight_sync_active{{{RUN}}}"


def _older(least: str) -> str:
    """The age of each run that is past its intervals, and past an option's seconds."""
    return f"""time() - {_FRESH}
  > on (run)
  clamp_min(
    {option("stale_intervals"):g} * max by (run) (weight_sync_expected_interval_seconds{{{RUN}}}),
    {option(least):g}
  )
  and on (run) weight_sync_active{{{RUN}}}"""


_STALE = f"""(
  {_older("stale_min_seconds")}
  and on (run) weight_sync_published_version{{{RUN}}} >= {option("stale_min_syncs"):g}
  or
  {_older("stale_first_seconds")}
  unless on (run) weight_sync_published_version{{{RUN}}}
)"""

# A run that ended leaves its counters with a lasting exporter; an exporter that goes takes them with it.
_SILENT = f"""group by (run) (last_over_time(weight_sync_active{{{RUN}}}[$__range]))
unless on (run) (weight_sync_attempts_total{{{RUN}}} or weight_sync_process_exits_total{{{RUN}}})"""

_FAILED = f"""max by (run, server, cause) (
  max_over_time(weight_sync_last_failure_timestamp_seconds{{{TARGET}}}[$__range]) > $__from / 1000
)"""
_SUCCEEDED = f"max_over_time(weight_sync_last_success_timestamp_seconds{{{TARGET}}}[$__range])"
# A failure whose server is not known is mended by a success with any.
_UNMENDED = f"""(
  {_FAILED}
  unless on (run, server, cause)
  ({_FAILED} <= on (run, server) group_left () (max by (run) ({_SUCCEEDED}) or max by (run, server) ({_SUCCEEDED})))
)"""

_START = "weight_sync_active_phase_start_timestamp_seconds"
_IN_PHASE = f"max by (run, rank, phase) (time() - {_START}{{{RUN}}})"
_STUCK = f"""(
  max by (run, rank, phase) (time() - {_START}{{{RUN},phase="request"}})
  > on (run) group_left ()
  (
    max by (run) (weight_sync_timeout_seconds{{{RUN}}}) + {option("stuck_after_timeout_seconds"):g}
    or
    max by (run) ({_START}{{{RUN}}}) * 0 + {option("stuck_request_seconds"):g}
  )
  or
  max by (run, rank, phase) (time() - {_START}{{{RUN},phase!~"request|broadcast|barrier"}})
  > {option("stuck_phase_seconds"):g}
  or
  max by (run, rank, phase) (time() - {_START}{{{RUN},phase=~"broadcast|barrier"}})
  and on (run)
  min by (run) (time() - {_START}{{{RUN},phase=~"broadcast|barrier"}})
  > {option("stuck_waiting_seconds"):g}
  unless on (run) {_START}{{{RUN},phase!~"broadcast|barrier"}}
)"""

_SERVER = 'server=~"$server"'
_SERVER_STATE = f"""(
  (max by (server) (weight_sync_server_up{{{_SERVER}}}) == 0) + 5
  or
  (max by (server) (weight_sync_server_left_paused{{{TARGET}}}) == 1) + 3
  or
  (max by (server) (weight_sync_server_ready{{{_SERVER}}}) == 0) + 3
  or
  (min by (server) (weight_sync_server_current{{{TARGET}}}) == 0) + 2
  or
  (min by (server) (weight_sync_server_current{{{TARGET}}}) == 1) * 0
  or
  max by (server) (weight_sync_server_up{{{_SERVER}}}) * 0 + 1
)
{OF_TARGETS}"""
_SERVER_WORDS = words(
    {
        "5": ("down", look.PAGE_DARK),
        "4": ("left paused", PAGE),
        "3": ("not ready", PAGE),
        "2": ("other weights", PAGE),
        "1": ("not known", QUIET),
        "0": ("synced", FINE),
    }
)

# A late finding raises the confirmed one first: a scrape in between would see less than nothing.
_BEHIND = f"""max by (run) (
  max by (run, server) (weight_sync_published_version{{{TARGET}}})
  - on (run, server)
  max by (run, server) (weight_sync_confirmed_version{{{TARGET}}})
  >= 0
)"""
_DELAY = "weight_sync_confirmation_delay_seconds"
_DELAYED, _CONFIRMED = (
    f"sum by (claimed, applied) (increase({_DELAY}_{part}{{{TARGET}}}[$__rate_interval]))" for part in ("sum", "count")
)
_FIRST_DELAYED, _FIRST_CONFIRMED = (
    f"""sum by (claimed, applied) (
    {_DELAY}_{part}{{{TARGET}}} unless {_DELAY}_{part}{{{TARGET}}} offset $__rate_interval
  )"""
    for part in ("sum", "count")
)

_LAST = f"max by (run, phase) (weight_sync_last_phase_duration_seconds{{{RUN}}})"
_OF_TIMEOUT = f"""{look.seconds_in("request")}
/ on (run)
max by (run) (weight_sync_timeout_seconds{{{RUN}}})"""
_STEP_SHARE = f"max by (run) (weight_sync_step_share_ratio{{{RUN}}})"
_COUNT = f'weight_sync_duration_seconds_count{{{TARGET},result!="cancelled"}}'
_BUCKETS = _COUNT.replace("_count", "_bucket")


def _tile(
    title: str,
    description: str,
    *queries: Query,
    empty: str,
    unit: str = "none",
    color: Json | None = None,
    steps: Json | None = None,
    mappings: Sequence[Json] = (),
) -> Json:
    return panel(
        "stat",
        title,
        description,
        *queries,
        width=4,
        height=4,
        empty=empty,
        unit=unit,
        color=color or fixed(QUIET),  # without a colour of its own, a tile that is empty would be green
        steps=steps,
        mappings=mappings,
        options={
            "reduceOptions": LAST,
            "textMode": "value_and_name",
            "colorMode": "background_solid",
            "graphMode": "none",
            "justifyMode": "center",
        },
    )


def _now(expr: str, legend: str, color: str) -> Query:
    return Query(expr=expr, legend=legend, instant=True, color=color)


def _worst(bad: str, any_one: str, legend: str) -> tuple[Query, Query]:
    """The worst of what pages, in red; without any, the largest of all."""
    return (
        _now(f"topk(1, {bad})", legend, PAGE),
        _now(f"topk(1, {any_one}) unless on () {bad}", legend, FINE),
    )


def _tiles() -> list[Json]:
    ago = f"time() - topk(1, {_UNMENDED})", f"time() - topk(1, {_FAILED}) unless on () {_UNMENDED}"
    return [
        _tile(
            "Live runs",
            "Runs whose trainer lives, as far as the exporter knows. Orange: those whose exporter has gone in this "
            "time range, with or without the run: nothing is known of them now.",
            _now(f"count(group by (run) (weight_sync_active{{{RUN}}}))", "runs", FINE),
            _now(f"count({_SILENT})", "not heard of", WARN),
            empty="no live run known",
        ),
        _tile(
            "Since a sync or start",
            "Time since the last successful sync, or since the start, of the live run that waits longest, "
            "with any server. Red: past the threshold of WeightSyncStale.",
            *_worst(_STALE, _AGE, "{{run}}"),
            empty="no live run",
            unit="s",
        ),
        _tile(
            "Last failure",
            "How long ago a sync failed last in this time range, and why. Red: the run has not synced since.",
            _now(ago[0], "{{cause}} · {{run}}", PAGE),
            _now(ago[1], "{{cause}} · {{run}} · mended", FINE),
            empty="no failure seen",
            unit="s",
        ),
        _tile(
            "In one phase for",
            "The rank that has been longest in one phase of a running sync. Red: past the threshold of "
            "WeightSyncStuck.",
            *_worst(_STUCK, _IN_PHASE, "{{run}} rank {{rank}} · {{phase}}"),
            empty="no sync runs",
            unit="s",
        ),
        _tile(
            "Server",
            "The worst state of any server: does it run what was synced last? By /ready, by the checksum of "
            "/weights_checker, and by /model_info.",
            Query(expr=f"topk(1, {_SERVER_STATE})", legend="{{server}}", instant=True),
            empty="not known",
            mappings=[_SERVER_WORDS],
            color=BY_THRESHOLD,
            steps=thresholds(QUIET),
        ),
        _tile(
            "Request, of its time-out",
            "Share of the engine's time-out that the last request took, of the run that is nearest to it. Orange: "
            "WeightSyncNearTimeout warns when most syncs are so.",
            Query(expr=f"topk(1, {_OF_TIMEOUT})", legend="{{run}}", instant=True),
            empty="no sync yet",
            unit="percentunit",
            color=BY_THRESHOLD,
            steps=thresholds(FINE, (option("near_timeout_ratio"), WARN)),
        ),
    ]


_COLORED: Json = {"custom.cellOptions": {"type": "color-text"}}


def _warned(column: str, unit: str, least: float) -> Json:
    """A column that is orange from a value on."""
    looks = {"unit": unit, "color": BY_THRESHOLD, "thresholds": thresholds("text", (least, WARN))}
    return override("byName", column, _COLORED | looks)


def _runs() -> Json:
    named = ["Run", "Synced", "Failed", "Took", "Of time-out", "Of step", "Every", "Unchanged", "Stale"]
    fields = ["run", *(f"Value #{ref}" for ref in "ABCDEFGH")]
    return panel(
        "table",
        "Runs",
        "The live runs, the oldest weights first. Synced, or else started, and failed: so long ago. Unchanged: so many "
        "syncs in a row sent the content of the one before, although the model was trained; WeightSyncSameBytes warns. "
        "Stale: over so many failed syncs in a row it went on, as the remedy on_failure lets it.",
        look.in_table(_AGE),
        look.in_table(f"time() - max by (run) ({_FAILED}) and on (run) weight_sync_active{{{RUN}}}"),
        look.in_table(f"sum by (run) ({_LAST})"),
        look.in_table(_OF_TIMEOUT),
        look.in_table(_STEP_SHARE),
        look.in_table(f"max by (run) (weight_sync_expected_interval_seconds{{{RUN}}})"),
        look.in_table(f"max by (run) (weight_sync_unchanged_syncs{{{RUN}}})"),
        look.in_table(f"max by (run) (weight_sync_stale_syncs{{{RUN}}})"),
        width=13,
        height=7,
        empty="no live run",
        unit="s",
        custom={"minWidth": 75},
        transformations=[
            {"id": "merge", "options": {}},
            columns(dict(zip(fields, named, strict=True)), "Time"),
        ],
        overrides=[
            override(
                "byName",
                "Run",
                {
                    "links": [
                        link("Ranks of this run", f"/d/{look.RANKS}?var-run=${{__value.raw}}&${{__url_time_range}}")
                    ]
                },
            ),
            override("byRegexp", "^(Synced|Failed|Took|Every)$", {"custom.width": 70}),
            override("byName", "Failed", {"noValue": "none"}),
            _warned("Of time-out", "percentunit", option("near_timeout_ratio")),
            _warned("Of step", "percentunit", option("slow_share_ratio")),
            _warned("Unchanged", "none", option("unchanged_syncs")),
            _warned("Stale", "none", 1),
            override("byRegexp", "^(Of time-out|Unchanged)$", {"custom.width": 84}),
            override("byName", "Stale", {"custom.width": 50}),
        ],
        options=look.table("Synced"),
    )


def _alerts() -> Json:
    fields = {"severity": "Severity", "alertname": "Alert", "run": "Run", "server": "Server", "cause": "Cause"}
    firing = (
        'alertname=~"WeightSync.*|SGLangServer.*",alertname!="WeightSyncHeartbeat",alertstate="firing",'
        'run=~"$run|",server=~"$server|"'
    )
    return panel(
        "table",
        "Firing alerts",
        "What Prometheus says now; a click on the name opens the runbook. Empty also where the rules are not loaded.",
        look.in_table(f"max by (alertname, severity, run, server, cause) (ALERTS{{{firing}}})"),
        width=11,
        height=7,
        empty="no alert is firing",
        custom=look.CELLS,
        transformations=[columns(fields, "Time", "Value")],
        overrides=[
            override(
                "byName",
                "Severity",
                _COLORED
                | {
                    "mappings": [
                        words({"critical": ("pages", PAGE), "warning": ("warns", WARN), "info": ("tells", QUIET)})
                    ],
                    "custom.width": 75,
                },
            ),
            override(
                "byName", "Alert", {"custom.width": 200, "links": [link("Runbook", look.runbook("${__value.raw}.md"))]}
            ),
        ],
        options=look.table("Severity", descending=False),
    )


def _failures() -> list[Json]:
    counted = f"max by (run, server, cause) (increase(weight_sync_failures_total{{{TARGET}}}[$__rate_interval])) > 0"
    born = f"""max by (run, server, cause) (
    weight_sync_last_failure_timestamp_seconds{{{TARGET}}} > time() - $__rate_interval_ms / 1000
    unless weight_sync_last_failure_timestamp_seconds{{{TARGET}}} offset $__rate_interval
  ) * 0 + 1"""
    fields = ["Value", "run", "server", "cause", "first", "trace_id"]
    named = ["When", "Run", "Server", "Cause", "First", "Trace"]
    explore = (
        '/explore?schemaVersion=1&panes={"t":{"datasource":"${tempo}","queries":[{"refId":"A","queryType":"traceql",'
        '"query":"${__value.raw}"}],"range":{"from":"${__from}","to":"${__to}"}}}'
    )
    return [
        panel(
            "timeseries",
            "Failures by cause",
            "Failed syncs, counted once a sync. A cause whose first failure comes before its counter was ever scraped "
            "is counted by its time stamp.",
            Query(expr=f"sum by (cause) (\n  {counted}\n  or\n  {born}\n)", legend="{{cause}}"),
            width=8,
            height=8,
            empty="no sync has failed in this time range",
            unit="short",
            decimals=0,
            color=SHADES | {"fixedColor": PAGE},
            custom=look.bars(),
            options=look.legend(),
            interval="5m",
        ),
        panel(
            "table",
            "Last failures",
            "Each failed sync that a scrape has seen in this time range, the last first, with the first thing to do. "
            "The trace opens in the chosen Tempo.",
            look.in_table(
                "1000 * (label_join(\n  max by (run, server, cause, trace_id) "
                f"(max_over_time(weight_sync_last_failure_trace_timestamp_seconds{{{TARGET}}}[$__range])),\n"
                '  "first", "", "cause"\n) > $__from / 1000)'
            ),
            width=16,
            height=8,
            custom=look.CELLS,
            empty="no sync has failed in this time range",
            transformations=[columns(dict(zip(fields, named, strict=True)), "Time")],
            overrides=[
                override("byName", "When", {"unit": "dateTimeFromNow", "custom.width": 115}),
                override("byRegexp", "Run|Server", {"custom.width": 120}),
                override(
                    "byName",
                    "Cause",
                    {
                        "custom.width": 120,
                        "links": [link("Runbook", look.runbook("WeightSyncFailed.md#${__value.raw}"))],
                    },
                ),
                override(
                    "byName",
                    "First",
                    {
                        "mappings": [words({str(cause): (cause.hint, None) for cause in FailureCause})],
                        "custom.minWidth": 200,
                    },
                ),
                override("byName", "Trace", {"custom.width": 90, "links": [link("Trace in Tempo", explore)]}),
            ],
            options=look.table("When"),
        ),
    ]


def _durations() -> list[Json]:
    quantiles = [
        Query(
            expr=f"histogram_quantile({quantile}, sum by (le) (rate({_BUCKETS}[$__rate_interval]))) > 0",
            legend=f"p{100 * quantile:g}",
            exemplar=quantile == 0.99,
            color=color,
        )
        for quantile, color in ((0.5, "#56B4E9"), (0.95, "#0072B2"), (0.99, "#CC79A7"))
    ]
    return [
        panel(
            "timeseries",
            "Duration of a sync",
            "Of all chosen runs, as the coordinator saw it; within its histogram bucket a quantile is a guess. The "
            "dots are exemplars: they lead to the trace where the data source has a destination for trace_id.",
            *quantiles,
            width=12,
            height=8,
            empty="no sync has ended in this time range",
            unit="s",
            custom=look.lines(points=True) | {"spanNulls": 3600000},
            options=look.legend("lastNotNull", "max"),
            interval="5m",
        ),
        panel(
            "heatmap",
            "How many syncs took how long",
            "Syncs by duration; each cell is a bucket of the histogram.",
            # Each bucket has to have the same points: Grafana subtracts them by number, not by time.
            Query(
                expr=f"sum by (le) (increase({_BUCKETS}[$__rate_interval]))\n"
                f"and on () (sum(increase({_COUNT}[$__rate_interval])) > 0)",
                legend="{{le}}",
                shape="heatmap",
            ),
            width=12,
            height=8,
            empty="no sync has ended in this time range",
            options=look.heat(cells="short", rows="le"),
            interval="5m",
        ),
        panel(
            "timeseries",
            "Phases of the last sync",
            "Seconds of each phase, stacked; their sum is the sync's duration. Of several runs the mean.",
            Query(expr=f"avg by (phase) ({_LAST}) > 0", legend="{{phase}}"),
            width=12,
            height=8,
            empty="no live run has synced",
            unit="s",
            custom=look.lines(fill=70, stacked=True) | {"lineWidth": 1, "lineInterpolation": "stepAfter"},
            overrides=[override("byName", str(phase), {"color": fixed(color)}) for phase, color in look.PHASES.items()],
            options=look.legend("lastNotNull", right=True),
        ),
        panel(
            "timeseries",
            "Near to limits",
            "The last request as a share of the engine's time-out, and the last sync as a share of the time between "
            f"two syncs. WeightSyncNearTimeout warns at {option('near_timeout_ratio'):.0%}, WeightSyncSlow at "
            f"{option('slow_share_ratio'):.0%} of the step.",
            Query(expr=_OF_TIMEOUT, legend="{{run}}: request of time-out"),
            Query(expr=_STEP_SHARE, legend="{{run}}: sync of step"),
            width=12,
            height=8,
            empty="no live run has synced",
            unit="percentunit",
            color=SHADES,
            custom=look.lines(threshold=True) | {"axisSoftMax": 1, "lineInterpolation": "stepAfter"},
            steps=thresholds("transparent", (option("near_timeout_ratio"), WARN)),
            overrides=[override("byFrameRefID", "B", {"color": {"mode": "shades", "fixedColor": "#CC79A7"}})],
            options=look.legend("lastNotNull"),
        ),
    ]


def _server() -> list[Json]:
    return [
        panel(
            "state-timeline",
            "State of each server",
            "synced: it runs what was synced last, by the checksum of /weights_checker; where there is none, by the "
            "names that /model_info shows. other weights: it does not. not ready: /ready says 503, as in a pause. "
            "left paused: by a trainer, which is gone or could not end it; sglang-telemetry check --release does. "
            "down: no answer.",
            Query(expr=_SERVER_STATE, legend="{{server}}"),
            width=14,
            height=6,
            empty="no server of a live run has been asked",
            mappings=[_SERVER_WORDS],
            color=BY_THRESHOLD,
            steps=thresholds(QUIET),
            custom={"fillOpacity": 80, "lineWidth": 0},
            options=look.states("auto"),
        ),
        panel(
            "table",
            "Servers",
            "SGLang's version, when a restart was noticed last, and how often in this time range the server went back: "
            "it showed the weight version of an earlier sync than the one that it was seen to run.",
            look.in_table(f"max by (server, version) (weight_sync_server_info{{{_SERVER}}}) {OF_TARGETS}"),
            look.in_table(
                f"1000 * max by (server) (weight_sync_server_last_restart_timestamp_seconds{{{_SERVER}}}) {OF_TARGETS}"
            ),
            look.in_table(
                f"round(max by (server) (increase(weight_sync_server_went_back_total{{{_SERVER}}}[$__range]))) "
                f"{OF_TARGETS}"
            ),
            width=10,
            height=6,
            empty="no server of a live run has been asked",
            transformations=[
                {"id": "merge", "options": {}},
                columns(
                    {"server": "Server", "version": "SGLang", "Value #B": "Restarted", "Value #C": "Went back"},
                    "Time",
                    "Value #A",
                ),
            ],
            overrides=[
                override(
                    "byName",
                    "Restarted",
                    {"unit": "dateTimeFromNow", "noValue": "not seen", "custom.width": 125},
                ),
                _warned("Went back", "none", 1),
            ],
            custom=look.CELLS,
            options=look.table(),
        ),
        panel(
            "timeseries",
            "Sent, and seen to run",
            "Behind: so many syncs are between the one that was sent last and the one that the server was last seen to "
            "run. It should be 0, and 1 for a moment after a sync; absent where nothing can tell. Dots: mean time from "
            "the end of a sync until it was known whether the server took it, by what the sync had said (yes, no, "
            "unknown) and what was found.",
            Query(expr=_BEHIND, legend="{{run}}: syncs behind"),
            Query(
                expr=f"{_DELAYED} / ({_CONFIRMED} > 0)\nor\n{_FIRST_DELAYED} / {_FIRST_CONFIRMED}",
                legend="said {{claimed}}, found {{applied}}",
                color="#0072B2",
            ),
            width=12,
            height=8,
            empty="no server has been seen to run a sync",
            color=SHADES,
            custom=look.lines(fill=20) | {"lineInterpolation": "stepAfter", "axisSoftMax": 4},
            overrides=[
                override("byFrameRefID", "A", {"decimals": 0}),
                override(
                    "byFrameRefID",
                    "B",
                    {
                        "unit": "s",
                        "custom.drawStyle": "points",
                        "custom.fillOpacity": 0,
                        "custom.pointSize": 4,
                        "custom.axisPlacement": "right",
                    },
                ),
                override("byRegexp", "^said (unknown|no), found yes$", {"color": fixed("#CC79A7")}),
                override("byName", "said yes, found no", {"color": fixed(WARN)}),
            ],
            options=look.legend(),
            interval="1m",
        ),
        panel(
            "timeseries",
            "Rollouts by policy",
            "Answers a second, by the weights that made them, as the weight_version in each says. stale: of an older "
            "sync; mixed: of several, as when an update comes while they are generated. unknown: no label that is "
            "known, as without tag_weights, or of a server with its start weights. Cut off: as many of them were "
            "aborted.",
            # Each exporter tells of the ranks of its host only, so that those of all have to be added.
            Query(
                expr=f"sum by (policy) (rate(weight_sync_rollouts_total{{{RUN}}}[$__rate_interval])) > 0",
                legend="{{policy}}",
            ),
            Query(
                expr=f"sum(rate(weight_sync_rollouts_aborted_total{{{RUN}}}[$__rate_interval])) > 0",
                legend="cut off",
                color="#CC79A7",
            ),
            width=12,
            height=8,
            empty="no instrumented engine got an answer in this time range",
            unit="suffix:/s",
            custom={key: value for key, value in look.bars().items() if key != "axisSoftMax"},
            overrides=[
                *(override("byName", str(policy), {"color": fixed(color)}) for policy, color in look.POLICIES.items()),
                override(
                    "byFrameRefID",
                    "B",
                    {
                        "custom.drawStyle": "line",
                        "custom.lineWidth": 2,
                        "custom.fillOpacity": 0,
                        "custom.stacking": {"mode": "none", "group": "A"},
                    },
                ),
            ],
            options=look.legend(),
            interval="5m",
        ),
    ]


def _logs() -> Json:
    return panel(
        "logs",
        "Log lines",
        "The lines of sglang-telemetry, as JSON, from the trainers' output.",
        Query(
            expr='{service_name=~".+"} |= `"event":"weight_sync.` | json | run=~"$run" | line_format '
            "`{{.level}} {{.event}} {{.run}} sync={{.sequence}} rank={{.rank}} {{.cause}} {{.hint}} {{.response_text}}`"
        ),
        width=24,
        height=10,
        empty="no line of these runs in the chosen Loki",
        options={
            "showTime": True,
            "wrapLogMessage": True,
            "enableLogDetails": True,
            "sortOrder": "Descending",
            "dedupStrategy": "none",
        },
        source=LOKI,
    )


def build() -> Json:
    """The dashboard."""
    return dashboard(
        look.WEIGHT_SYNC,
        "Weight sync",
        "Weight syncs of RL trainers into SGLang: fresh, failing, stuck, and what the server runs.",
        [
            *_tiles(),
            _runs(),
            _alerts(),
            row("Failures"),
            *_failures(),
            row("Durations"),
            *_durations(),
            row("What the servers do"),
            *_server(),
            row("Logs, from Loki", collapsed=[_logs()]),
        ],
        tags=look.TAGS,
        variables=look.variables(),
        annotations=look.annotations(),
        links=[dashboard_link("Ranks", look.RANKS, "Who waits for whom, processes, SGLang's own metrics")],
    )
