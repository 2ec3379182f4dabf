"""For the one who digs: who waits for whom, which processes live, and SGLang's own numbers beside the trainer's."""

from dashboards import look
from dashboards.grafana import (
    LAST,
    Json,
    Query,
    columns,
    dashboard,
    dashboard_link,
    fixed,
    label_variable,
    override,
    panel,
    row,
    thresholds,
    words,
)
from dashboards.look import BY_THRESHOLD, FINE, OF_TARGETS, PAGE, QUIET, RUN, SHADES, TARGET, WARN, option
from sglang_telemetry.names import Exit

_RANK = f'{RUN},rank=~"$rank"'
_WAIT = "weight_sync_rank_wait_seconds"
_REQUEST = look.seconds_in("request")
_OF_INSTANCES = (
    f"\nand on (instance) label_replace(group by (server) (weight_sync_attempts_total{{{TARGET}}}), "
    '"instance", "$1", "server", "(.+)")'
)
_AFTER_SUCCESS = f"""unless on (run)
(
  max by (run) (weight_sync_last_failure_timestamp_seconds{{{RUN}}})
  > on (run)
  max by (run) (weight_sync_last_success_timestamp_seconds{{{RUN}}})
)"""


def _sglang(name: str, *matchers: str) -> str:
    """A metric of SGLang's: what the text format calls ``sglang:x`` is ``sglang_x`` in an OpenMetrics scrape."""
    return "{" + ",".join((f'__name__=~"sglang[:_]{name}"', *matchers, 'instance=~"$server"')) + "}"


def _requests(kind: str) -> str:
    """Requests of each server of the chosen runs."""
    # Each rank of a tensor or pipeline parallel server may say the same number.
    once = f"max without (tp_rank, pp_rank, moe_ep_rank) ({_sglang(f'num_{kind}_reqs')})"
    return f"sum by (instance) ({once}){_OF_INSTANCES}"


def _mean_wait(window: str, matchers: str = _RANK) -> str:
    """Seconds that each rank waits in a sync; two scrapes of one exporter count once."""
    waited, syncs = (f"increase({_WAIT}_{part}{{{matchers}}}[{window}])" for part in ("sum", "count"))
    return f"max by (run, rank) ({waited} / ({syncs} > 0))"


def _waiting() -> list[Json]:
    others = f'{_RANK},rank!="0"'
    apart = _mean_wait("$__rate_interval", others)
    return [
        panel(
            "heatmap",
            "Wait of each rank",
            "Mean seconds a sync that the rank spent in broadcast and barrier. In a healthy sync rank 0 waits for "
            "nobody, and the others for its save and its request.",
            Query(expr=_mean_wait("$__rate_interval"), legend="{{run}} {{rank}}"),
            width=14,
            height=10,
            empty="no sync has ended in this time range",
            unit="s",
            options=look.heat(cells="s", rows="auto"),
            interval="5m",
        ),
        panel(
            "bargauge",
            "Who comes last",
            "The ten ranks that wait least, rank 0 apart: who waits least comes last, and the others wait for it.",
            Query(
                expr=f"bottomk(10, {_mean_wait('$__range', others)})",
                legend="{{run}} {{rank}}",
                instant=True,
            ),
            width=10,
            height=10,
            empty="no other rank has synced in this time range",
            unit="s",
            color=fixed(FINE),
            least=0,
            options={
                "displayMode": "basic",
                "orientation": "horizontal",
                "reduceOptions": LAST,
                "showUnfilled": True,
                "valueMode": "text",
            },
        ),
        panel(
            "timeseries",
            "Skew",
            "Seconds between the rank that waits longest and the one that waits least, rank 0 apart: near 0 in a "
            "healthy sync.",
            Query(
                expr=f"max by (run) ({apart})\n- on (run)\nmin by (run) ({apart})",
                legend="{{run}}",
            ),
            width=12,
            height=7,
            empty="no other rank has synced in this time range",
            unit="s",
            color=SHADES,
            custom=look.lines(points=True) | {"spanNulls": 3600000},
            options=look.legend("lastNotNull", "max"),
            interval="5m",
        ),
        panel(
            "timeseries",
            "Rank 0 waits for others",
            "Share of the last sync that rank 0 spent in broadcast and barrier. WeightSyncRankSkew warns at "
            f"{option('skew_ratio'):.0%} in most syncs of an hour.",
            Query(
                expr=f"{look.seconds_in('broadcast|barrier')}\n/ on (run)\n{look.seconds_in('.+')}",
                legend="{{run}}",
            ),
            width=12,
            height=7,
            empty="no live run has synced",
            unit="percentunit",
            color=SHADES,
            custom=look.lines(threshold=True) | {"axisSoftMax": 1, "lineInterpolation": "stepAfter"},
            steps=thresholds("transparent", (option("skew_ratio"), WARN)),
            options=look.legend("lastNotNull"),
        ),
    ]


def _doing() -> list[Json]:
    numbers = {phase: number for number, phase in enumerate(look.PHASES, 1)}
    return [
        panel(
            "state-timeline",
            "Phase of each rank",
            "What each rank was in at each scrape; nothing between syncs. Phases shorter than the scrape interval are "
            "seen by chance.",
            Query(
                expr="max by (run, rank) (\n  "
                + "\n  or\n  ".join(
                    f'{number} * weight_sync_active_phase{{{_RANK},phase="{phase}"}}'
                    for phase, number in numbers.items()
                )
                + "\n)",
                legend="{{run}} {{rank}}",
            ),
            width=24,
            height=9,
            empty="no scrape has met a running sync in this time range",
            mappings=[words({str(number): (phase, look.PHASES[phase]) for phase, number in numbers.items()})],
            color=BY_THRESHOLD,
            steps=thresholds(QUIET),
            custom={"fillOpacity": 90, "lineWidth": 0, "spanNulls": False},
            options=look.states("auto"),
        ),
        panel(
            "state-timeline",
            "Trainer processes",
            "up: it lives. gone: it failed, or vanished, which pages; the exits beside say which. A clean end leaves "
            "nothing.",
            Query(expr=f"max by (run, rank) (weight_sync_process_up{{{_RANK}}})", legend="{{run}} {{rank}}"),
            width=14,
            height=8,
            empty="no trainer process is known",
            mappings=[words({"1": ("up", FINE), "0": ("gone", WARN)})],
            color=BY_THRESHOLD,
            steps=thresholds(QUIET),
            custom={"fillOpacity": 80, "lineWidth": 0},
            options=look.states("never"),
        ),
        panel(
            "timeseries",
            "Exits",
            "Trainer processes that ended: lost ones vanished without a word (SIGKILL, out of memory, node).",
            Query(
                expr=f"sum by (how) (max by (run, how) (increase(weight_sync_process_exits_total{{{RUN}}}"
                "[$__rate_interval]))) > 0",
                legend="{{how}}",
            ),
            width=10,
            height=8,
            empty="no process has ended in this time range",
            unit="short",
            decimals=0,
            custom=look.bars(),
            overrides=[
                override("byName", str(how), {"color": fixed(color)})
                for how, color in ((Exit.CLEAN, FINE), (Exit.FAILED, WARN), (Exit.LOST, PAGE))
            ],
            options=look.legend("sum", right=True),
            interval="1m",
        ),
        panel(
            "table",
            "Runs and versions",
            "The runs whose trainer processes live.",
            look.in_table(f"max by (run, run_id, host, world_size, engine, versions) (weight_sync_run_info{{{RUN}}})"),
            width=24,
            height=5,
            custom=look.CELLS,
            empty="no live run",
            transformations=[
                columns(
                    {
                        "run": "Run",
                        "host": "Host",
                        "world_size": "Ranks",
                        "engine": "Engine",
                        "run_id": "Run id",
                        "versions": "Versions",
                    },
                    "Time",
                    "Value",
                )
            ],
            options=look.table(),
        ),
    ]


def _payload() -> list[Json]:
    payload = f"max by (run) (weight_sync_payload_bytes{{{RUN}}})"
    return [
        panel(
            "timeseries",
            "Checkpoint and free space",
            "Bytes of the last checkpoint, and what is free where it is written; inodes where their number is fixed. "
            f"WeightSyncSharedPathLow warns when less than {option('shared_path_checkpoints'):g} checkpoints, or "
            f"{option('shared_path_inodes'):g} inodes, are free.",
            Query(expr=payload, legend="{{run}}: checkpoint"),
            Query(expr=f"min by (run) (weight_sync_shared_path_free_bytes{{{RUN}}})", legend="{{run}}: free"),
            Query(
                expr=f"min by (run) (weight_sync_shared_path_free_inodes{{{RUN}}})",
                legend="{{run}}: free inodes",
                color="#CC79A7",
            ),
            width=12,
            height=7,
            empty="no live run has written a checkpoint",
            unit="bytes",
            color=SHADES,
            custom=look.lines() | {"lineInterpolation": "stepAfter"},
            overrides=[
                override("byFrameRefID", "B", {"color": {"mode": "shades", "fixedColor": "#009E73"}}),
                override(
                    "byFrameRefID",
                    "C",
                    {
                        "unit": "short",
                        "custom.axisPlacement": "right",
                        "custom.lineStyle": {"fill": "dash", "dash": [10, 10]},
                    },
                ),
            ],
            options=look.legend("lastNotNull", right=True),
        ),
        panel(
            "timeseries",
            "Throughput of the request",
            "Bytes of the last checkpoint by the seconds of its request: how fast the server takes weights in. After a "
            "failed sync nothing is shown.",
            Query(expr=f"{payload}\n/ on (run)\n({_REQUEST} > 0)\n{_AFTER_SUCCESS}", legend="{{run}}"),
            width=12,
            height=7,
            empty="no live run has written a checkpoint",
            unit="Bps",
            color=SHADES,
            custom=look.lines() | {"lineInterpolation": "stepAfter"},
            options=look.legend("lastNotNull", "min"),
        ),
    ]


def _remedies() -> list[Json]:
    ended = f"increase(weight_sync_duration_seconds_count{{{RUN}}}[$__rate_interval])"
    syncs = f"sum by (run) (max by (run, server, transport, result) ({ended}))"
    return [
        panel(
            "timeseries",
            "Remedies",
            "What the remedies did that the trainers asked for. skipped: it was no case for it. failed: the sync went "
            "on without it. refused: it held something back that would have done harm.",
            Query(
                expr="sum by (action, outcome) (max by (run, action, outcome) "
                f"(increase(weight_sync_remedies_total{{{RUN}}}[$__rate_interval]))) > 0",
                legend="{{action}} {{outcome}}",
            ),
            width=12,
            height=7,
            empty="no remedy did anything in this time range; they are off by default",
            unit="short",
            decimals=0,
            color=SHADES,
            custom=look.bars(),
            overrides=[
                *(override("byName", f"{one} done", {"color": fixed(color)}) for one, color in look.ACTIONS.items()),
                override("byRegexp", "^.+ skipped$", {"color": fixed(QUIET)}),
                override("byRegexp", "^.+ (failed|refused)$", {"color": {"mode": "shades", "fixedColor": WARN}}),
            ],
            options=look.legend("sum", right=True),
            interval="5m",
        ),
        panel(
            "timeseries",
            "Seconds of remedies",
            "Mean seconds a sync that each remedy took of the trainer's time, of several runs the mean.",
            Query(
                expr=f"""avg by (action) (
  max by (run, action) (increase(weight_sync_remedy_seconds_total{{{RUN}}}[$__rate_interval]))
  / on (run) group_left ()
  ({syncs} > 0)
) > 0""",
                legend="{{action}}",
            ),
            width=12,
            height=7,
            empty="no remedy took any time in this time range",
            unit="s",
            color=SHADES,
            custom=look.lines(points=True) | {"spanNulls": 3600000},
            overrides=[override("byName", str(one), {"color": fixed(color)}) for one, color in look.ACTIONS.items()],
            options=look.legend("lastNotNull", "max", right=True),
            interval="5m",
        ),
    ]


def _server() -> list[Json]:
    gauge = _sglang("weight_load_duration_seconds")
    load = f'max by (server) (label_replace({gauge}, "server", "$1", "instance", "(.+)")) {OF_TARGETS}'
    answers = _sglang("http_responses_total", 'endpoint=~"/update_weights_from_.*"')
    sent = f"""max by (server) (
  group by (run, server) (weight_sync_timeout_seconds{{{TARGET}}})
  * on (run) group_left ()
  {_REQUEST}
)"""
    return [
        panel(
            "timeseries",
            "Request: waiting and loading",
            "The last request as the trainer saw it, and how long SGLang loaded weights in it. What is between them is "
            "waiting: for running requests, or for the network. SGLang sets its gauge on a failed update too.",
            Query(expr=sent, legend="{{server}}: request, client", color=FINE),
            Query(expr=load, legend="{{server}}: loading, server", color="#009E73"),
            Query(expr=f"clamp_min({sent}\n- on (server)\n({load}), 0)", legend="{{server}}: waiting", color="#CC79A7"),
            width=12,
            height=8,
            empty="no sync yet, or SGLang is not scraped (--enable-metrics, target host:port as the trainer names it)",
            unit="s",
            custom=look.lines() | {"lineInterpolation": "stepAfter"},
            options=look.legend("lastNotNull", "max"),
        ),
        panel(
            "timeseries",
            "Requests in SGLang",
            "Running and queued. An update has to wait for the running ones, unless generation is paused.",
            Query(expr=_requests("running"), legend="{{instance}}: running", color=FINE),
            Query(expr=_requests("queue"), legend="{{instance}}: queued", color="#CC79A7"),
            width=12,
            height=8,
            empty="SGLang is not scraped (--enable-metrics, target host:port as the trainer names it)",
            unit="short",
            custom=look.lines(fill=10),
            options=look.legend("lastNotNull", "max"),
        ),
        panel(
            "timeseries",
            "SGLang's answers to updates",
            "HTTP responses of /update_weights_from_* by status, as SGLang counts them. A request that killed the "
            "server is not among them.",
            Query(
                expr=f"sum by (status_code) (\n  sum by (instance, status_code) (increase({answers}[$__rate_interval]))"
                f"{_OF_INSTANCES}\n) > 0",
                legend="{{status_code}}",
            ),
            width=12,
            height=7,
            empty="no update was answered, or SGLang is not scraped",
            unit="short",
            decimals=0,
            color=SHADES,
            custom=look.bars(),
            overrides=[override("byRegexp", "^[45]..$", {"color": fixed(WARN)})],
            options=look.legend("sum", right=True),
            interval="1m",
        ),
        panel(
            "timeseries",
            "Errors of this monitoring",
            "By component; none of them reached the training. While there are some, what is above may have gaps.",
            Query(
                expr="sum by (component) (increase(weight_sync_telemetry_errors_total[$__rate_interval])) > 0",
                legend="{{component}}",
            ),
            width=12,
            height=7,
            empty="none in this time range",
            unit="short",
            decimals=0,
            color=SHADES | {"fixedColor": WARN},
            custom=look.bars(),
            options=look.legend("sum", right=True),
            interval="1m",
        ),
    ]


def build() -> Json:
    """The dashboard."""
    rank = label_variable(
        "rank", "Rank", f"label_values(weight_sync_last_start_timestamp_seconds{{{RUN}}}, rank)", "Ranks of these runs"
    )
    return dashboard(
        look.RANKS,
        "Weight sync: ranks",
        "Who waits for whom in a weight sync, which processes live, and SGLang's own metrics beside ours.",
        [
            row("Waiting"),
            *_waiting(),
            row("What the ranks do"),
            *_doing(),
            row("Checkpoint"),
            *_payload(),
            row("What remedies do"),
            *_remedies(),
            row("SGLang and this monitoring"),
            *_server(),
        ],
        tags=look.TAGS,
        variables=look.variables(rank),
        annotations=look.annotations(),
        links=[dashboard_link("Weight sync", look.WEIGHT_SYNC, "Fresh, failing, stuck, and what the server runs")],
    )
