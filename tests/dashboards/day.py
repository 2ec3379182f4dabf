"""A scripted day of two runs, loaded into a real Prometheus: what the dashboards are asked and drawn over.

The one decision: the day stands still at a fixed date, and each state that a dashboard has to show is a window of it.
So a picture is the same each time, and all states are there after one loading. Only SGLang's own metrics are made up
here; the rest is events through the exporter's metrics, and alerts and recorded series are made by the project's rules.
What the servers run, and what their answers are counted as, is found out as in life: see ``truth.py``.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import PhaseStarted, ProcessLost, SyncRecord
from sglang_telemetry.names import Exit, Phase
from tests.dashboards.truth import LATE_SECONDS, Server, Trained, found_out, rollouts
from tests.harness.assets import rules
from tests.harness.backfill import Scrape, backfill, evaluate
from tests.harness.simulation import SCRAPE, scrapes

BASE = datetime(2026, 1, 15, tzinfo=UTC).timestamp()
HOUR = 3600.0


def at(clock: str) -> float:
    """Unix time of ``hours:minutes`` or ``hours:minutes:seconds`` of the day."""
    return datetime.fromisoformat(f"2026-01-15T{clock}+00:00").timestamp()


class State(StrEnum):
    """What a dashboard has to show; each is a window of the day, at whose end it is so."""

    HEALTHY = "healthy"
    """Nothing has been wrong."""
    FAILING = "failing"
    """Three syncs of one run have failed in the last hour, the last one by a time-out two minutes ago: its weights came
    ten seconds later. They have been the same for four syncs. An hour and a half ago an old replica answered for some
    minutes in the server's place, and took nothing. The run uses remedies: it waited for the busy server in vain, did
    not send again what may have been taken, and went on each time."""
    STUCK = "stuck"
    """Rank 0 of one run has been in its request for nine minutes, the others in their broadcast."""
    SERVER_RESTARTED = "server_restarted"
    """A server came back three minutes ago, with its start weights."""

    @property
    def start(self) -> float:
        """Unix time of the window's begin."""
        return at(_WINDOWS[self][0])

    @property
    def now(self) -> float:
        """Unix time of the window's end, which is "now" for whoever looks at it."""
        return at(_WINDOWS[self][1])


_WINDOWS = {
    State.HEALTHY: ("02:00", "05:00"),
    State.FAILING: ("05:30", "08:00"),
    State.STUCK: ("08:30", "11:00"),
    State.SERVER_RESTARTED: ("11:30", "14:00"),
}

NOTHING = at("00:30")
"""Before anything was started: every query gives nothing."""
BEGIN, END = at("01:00"), at("14:30")

GRPO, PPO = "grpo-math", "ppo-code"
GRPO_SERVER, PPO_SERVER = "10.0.0.7:30000", "10.0.0.8:30000"
EXPORTER = {"instance": "node:9464", "job": "rl"}


def _grpo(start: str, end: str, **more: object) -> Trained:
    # Rank 5 comes late to each sync, rank 2 a little.
    late = {2: 0.4, 5: 3.0}
    return Trained(run=GRPO, server=GRPO_SERVER, start=at(start), end=at(end), late=late, **more)  # type: ignore[arg-type]


def _ppo(start: str, end: str) -> Trained:
    return Trained(
        run=PPO,
        server=PPO_SERVER,
        start=at(start),
        end=at(end),
        ranks=2,
        interval=60.0,
        save=0.6,
        request=1.8,
        timeout=60.0,
        payload=1 << 30,
        aborts=6,
        remedies=("validate", "publish_atomically", "timeout"),
    )


LIVES = [
    _grpo("01:05", "05:20"),
    # Two updates are refused, a third has no answer in time. The trainer does not sync again, ends of it some minutes
    # later, and is started again by hand.
    _grpo(
        "05:26",
        "08:01:30",
        how=Exit.FAILED,
        pinned={
            at("07:15"): FailureCause.SERVER_BUSY,
            at("07:36"): FailureCause.SERVER_BUSY,
            at("07:55:50"): FailureCause.TIMEOUT,
        },
        rests=((at("07:56"), at("08:02")),),
        frozen=(at("07:37"), at("08:02")),
        remedies=("validate", "retry", "on_failure"),
    ),
    # A request that never ends; somebody kills the trainer.
    _grpo("08:10", "11:06", how=Exit.LOST, stuck=at("10:50:53")),
    # The server is restarted during an evaluation, and the sync after it puts all right.
    _grpo("11:15", "18:00", pinned={at("13:49"): None}, rests=((at("13:49:30"), at("14:03")),)),
    _ppo("01:10", "06:30"),
    _ppo("06:33", "18:00"),
]
SERVERS = [
    Server(
        address=GRPO_SERVER,
        model="Qwen3-8B",
        load=24.0,
        downs=((at("13:52"), at("13:57")),),
        replicas=((at("06:23"), at("06:36")),),
    ),
    Server(address=PPO_SERVER, model="Qwen3-1.7B", load=8.0),
]


def load(folder: Path) -> Path:
    """Make the blocks of the whole day, with what the rules make of it.

    Returns:
        The data folder for a Prometheus.
    """
    data = folder / "data"
    by_address = {server.address: server for server in SERVERS}
    looks = found_out(LIVES, SERVERS, begin=BEGIN, end=END)
    answers = [timed for life in LIVES for timed in rollouts(life, by_address[life.server], LIVES)]
    backfill(
        chain(
            (
                Scrape(at=BEGIN + offset, families=families, target=EXPORTER)
                for offset, families in scrapes(LIVES, seconds=END - BEGIN, begin=BEGIN, extra=[*looks, *answers])
            ),
            # A scrape as text names SGLang's metrics with a colon, one as OpenMetrics with an underscore.
            *(_sglang(server, prefix) for server, prefix in zip(SERVERS, ("sglang:", "sglang_"), strict=True)),
        ),
        data,
    )
    evaluate(rules(), data, start=BEGIN, end=END)
    return data


SCALE_NOW = BASE + HOUR
"""The end of the hour that :func:`scale` loads."""


def scale(folder: Path, ranks: int) -> tuple[Path, int]:
    """Make the blocks of one hour of one run of so many ranks, the first hour of the day; no rules.

    Returns:
        The data folder for a Prometheus, and the number of series.
    """
    life, server = Trained(run=GRPO, server=GRPO_SERVER, start=BASE, end=BASE + 2 * HOUR, ranks=ranks), SERVERS[0]
    looks = found_out([life], [server], begin=BASE, end=BASE + HOUR)
    read = scrapes([life], seconds=HOUR + SCRAPE, begin=BASE, extra=[*looks, *rollouts(life, server, [life])])
    data = folder / "data"
    return data, backfill(
        (Scrape(at=BASE + offset, families=families, target=EXPORTER) for offset, families in read), data
    )


def _updates(server: str) -> list[tuple[float, float | None, str | None]]:
    """Of each update request to a server: when it came, when it was answered, and with what; None for never."""
    found: list[tuple[float, float | None, str | None]] = []
    for life in LIVES:
        began: float | None = None
        for when, event in life.events() if life.server == server else ():
            match event:
                case PhaseStarted(phase=Phase.REQUEST):
                    began = when
                case SyncRecord(coordinator=True) if began is not None:
                    seconds = event.phase_seconds()[Phase.REQUEST]
                    # It took the weights all the same, after the trainer had given up.
                    late = LATE_SECONDS if event.cause is FailureCause.TIMEOUT else 0.0
                    busy = event.cause is FailureCause.SERVER_BUSY
                    found.append((began, began + seconds + late, "400" if busy else "200"))
                case ProcessLost() if event.sync is not None and event.sync.coordinator and began is not None:
                    found.append((began, None, None))
    return found


def _sglang(server: Server, prefix: str) -> Iterator[Scrape]:
    """What SGLang's own ``/metrics`` says; types and labels are those of SGLang 0.5.23's source."""
    chance, updates = random.Random(server.address), _updates(server.address)
    generated, throughput, life_began = 0, 0.0, BEGIN
    for step in range(int(END - BEGIN) // SCRAPE):
        now = BEGIN + step * SCRAPE
        families: list[Family] = []
        if server.is_down(now):
            generated, life_began = 0, now
        else:
            mine = [one for one in updates if life_began <= one[0] <= now]
            updating = bool(mine) and (mine[-1][1] is None or mine[-1][1] > now)
            # A held request is seen by no gauge, and the throughput keeps its last value while nothing is reported.
            running = 0.0 if updating else float(round(server.load * chance.uniform(0.7, 1.1)))
            throughput = throughput if updating else round(running * chance.uniform(48, 55), 1)
            generated += 0 if updating else round(running * 1.5)
            families = _read(
                prefix, server.model, now, mine, (running, float(chance.randrange(4)), throughput), generated
            )
        yield Scrape(at=now, families=families, target={"instance": server.address, "job": "sglang"})


def _read(
    prefix: str,
    model: str,
    now: float,
    updates: list[tuple[float, float | None, str | None]],
    gauges: tuple[float, float, float],
    generated: int,
) -> list[Family]:
    scheduler = {"engine_type": "unified", "model_name": model, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
    families: list[Family] = []
    for name, value in zip(("num_running_reqs", "num_queue_reqs", "gen_throughput"), gauges, strict=True):
        gauge = GaugeMetricFamily(f"{prefix}{name}", "SGLang's.", labels=list(scheduler))
        gauge.add_metric(list(scheduler.values()), value)
        families.append(gauge)
    answered = [(began, ended, status) for began, ended, status in updates if ended is not None and ended <= now]
    loaded = [ended - began for began, ended, status in answered if ended is not None and status == "200"]
    if loaded:  # a gauge of the last call, absent before the first
        last = GaugeMetricFamily(f"{prefix}weight_load_duration_seconds", "SGLang's.", labels=[*scheduler, "source"])
        last.add_metric([*scheduler.values(), "disk"], loaded[-1])
        families.append(last)
    requests = CounterMetricFamily(f"{prefix}http_requests", "SGLang's.", labels=["endpoint", "method"])
    responses = CounterMetricFamily(
        f"{prefix}http_responses", "SGLang's.", labels=["endpoint", "status_code", "method"]
    )
    requests.add_metric(["/generate", "POST"], generated)
    responses.add_metric(["/generate", "200", "POST"], generated)
    if updates:
        requests.add_metric(["/update_weights_from_disk", "POST"], len(updates))
    for status in sorted({status for _, _, status in answered if status is not None}):
        count = sum(one[2] == status for one in answered)
        responses.add_metric(["/update_weights_from_disk", status, "POST"], count)
    return [*families, requests, responses]
