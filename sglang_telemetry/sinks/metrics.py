"""The tally as Prometheus metrics: families are made at each scrape, so that nothing outlives what it describes."""

import threading
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from sglang_telemetry import names
from sglang_telemetry.events import Checkpoint, Event, ServerSeen
from sglang_telemetry.names import Component, Exit, Metric
from sglang_telemetry.sinks.process_state import ProcessState
from sglang_telemetry.sinks.series import IN_NANOSECONDS, Buckets, Labels
from sglang_telemetry.sinks.tally import Tally

_LIVE: tuple[Metric, ...] = (
    names.ACTIVE,
    names.ACTIVE_PHASE,
    names.ACTIVE_PHASE_START,
    names.LAST_PHASE,
    names.PAYLOAD,
    names.TIMEOUT,
    names.EXPECTED_INTERVAL,
    names.PUBLISHED,
    names.CONFIRMED,
    names.UNCHANGED,
    names.STALE_SYNCS,
    names.STEP_SHARE,
    names.SERVER_UP,
    names.SERVER_READY,
    names.SERVER_CURRENT,
    names.SERVER_LEFT_PAUSED,
    names.SHARED_PATH_FREE,
    names.SHARED_PATH_FREE_INODES,
    names.SHARED_PATH_WRITABLE,
    names.WATCHED_AGE,
    names.WATCHED_WRITABLE,
)


class MetricsSink(Collector):
    """Counts events and serves them to a registry.

    Args:
        registry: Registers itself there; with None, whoever scrapes calls :meth:`collect`.
        tally: Counts to go on from.
    """

    component = Component.METRICS

    def __init__(self, registry: CollectorRegistry | None = None, *, tally: Tally | None = None) -> None:
        self.tally = tally or Tally()
        self._lock = threading.Lock()
        if registry is not None:
            registry.register(self)

    def emit(self, event: Event) -> None:
        """Count the event."""
        with self._lock:
            self.tally.add(event)

    def close(self) -> None:
        """Nothing is held; the counts stay readable."""

    def describe(self) -> Iterable[Family]:
        """No names are claimed: a registry would have to collect for it."""
        return ()

    def collect(self) -> Iterator[Family]:
        """All families as of now."""
        with self._lock:
            servers = self.tally.live_servers()
            gauges = _gauges(self.tally, servers)
            families = [self._family(metric, gauges, servers) for metric in names.METRICS]
        yield from families

    def _family(self, metric: Metric, gauges: dict[str, dict[Labels, float]], servers: dict[str, ServerSeen]) -> Family:
        if metric.kind == "counter":
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            unit = 1e9 if metric.name in IN_NANOSECONDS else 1
            for labels, count in self.tally.counters.get(metric.name, {}).items():
                counter.add_metric(labels, count / unit)
            return counter
        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, buckets in self.tally.histograms.get(metric.name, {}).items():
                histogram.add_metric(labels, _cumulated(buckets), buckets.sum)
            return histogram
        if metric.kind == "info":
            return _info(metric, _INFO[metric.name](self.tally, servers))
        gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        series: dict[Labels, float] = gauges.get(metric.name) or self.tally.stamps.get(metric.name, {})
        for labels, value in series.items():
            gauge.add_metric(labels, value)
        return gauge


def _cumulated(buckets: Buckets) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    rows: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    total = 0
    for index, count in enumerate(buckets.counts):
        total += count
        bound = str(names.BUCKETS[index]) if index < len(names.BUCKETS) else "+Inf"
        seen = buckets.exemplars.get(index)
        if seen is None:
            rows.append((bound, total))
        else:
            rows.append((bound, total, Exemplar({"trace_id": seen.trace_id}, seen.value, seen.at)))
    return rows


def _gauges(tally: Tally, servers: dict[str, ServerSeen]) -> dict[str, dict[Labels, float]]:
    """What is going on, read off the processes; of two that speak for the same series, the later one wins."""
    gauges: dict[str, dict[Labels, float]] = {metric.name: {} for metric in (*_LIVE, names.PROCESS_UP)}
    ranks: dict[Labels, ProcessState] = {}
    for state in sorted(tally.processes.values(), key=lambda state: (state.alive is not False, state.started_at)):
        place = (state.identity.run, str(state.identity.rank))
        gauges[names.PROCESS_UP.name].pop(place, None)
        if state.alive is not None and (state.alive or state.how is not Exit.CLEAN):
            gauges[names.PROCESS_UP.name][place] = float(state.alive)
        if state.alive is False:
            continue
        ranks[place] = state
        if state.coordinator:
            _coordinator(gauges, state)
    for rank, state in ranks.items():
        gauges[names.ACTIVE.name][rank] = float(state.active)
        if state.active and state.phase is not None:
            gauges[names.ACTIVE_PHASE.name][(*rank, state.phase.value)] = 1.0
            if state.phase_at is not None:
                gauges[names.ACTIVE_PHASE_START.name][(*rank, state.phase.value)] = state.phase_at
    for server, seen in servers.items():
        gauges[names.SERVER_UP.name][(server,)] = float(seen.up)
        if seen.ready is not None:
            gauges[names.SERVER_READY.name][(server,)] = float(seen.ready)
        for run, current in sorted(seen.current.items()):
            gauges[names.SERVER_CURRENT.name][(run, server)] = float(current)
        for run, sequence in sorted(seen.confirmed.items()):
            gauges[names.CONFIRMED.name][(run, server)] = float(sequence)
    for server, seen in sorted(tally.servers.items()):  # the trainer that left it so is not among those that live
        for run in (*seen.left_paused, *seen.released):
            gauges[names.SERVER_LEFT_PAUSED.name][(run, server)] = float(run in seen.left_paused)
    if tally.watched is not None:
        gauges[names.WATCHED_WRITABLE.name][()] = float(tally.watched.writable)
        for host, age in sorted(tally.watched.ages.items()):
            gauges[names.WATCHED_AGE.name][(host,)] = age
    return gauges


def _coordinator(gauges: dict[str, dict[Labels, float]], state: ProcessState) -> None:
    run, server, path = state.identity.run, state.target.server or "", state.shared_path
    known: tuple[tuple[Metric, Labels, float | None], ...] = (
        (names.PAYLOAD, (run,), state.payload_bytes),
        (names.TIMEOUT, (run, server), state.target.timeout_seconds),
        (names.EXPECTED_INTERVAL, (run,), state.expected_interval),
        (names.PUBLISHED, (run, server), state.published),
        (names.STEP_SHARE, (run,), state.step_share),
        (names.UNCHANGED, (run,), state.unchanged),
        (names.STALE_SYNCS, (run,), state.stale),
        (names.SHARED_PATH_FREE, (run,), path.free_bytes if path is not None else None),
        (names.SHARED_PATH_FREE_INODES, (run,), path.free_inodes if path is not None else None),
        (names.SHARED_PATH_WRITABLE, (run,), _writable(path)),
    )
    for metric, labels, value in known:
        if value is not None:
            gauges[metric.name][labels] = float(value)
    for phase, seconds in state.last_phases.items():
        gauges[names.LAST_PHASE.name][(run, phase)] = seconds


def _info(metric: Metric, rows: set[Labels]) -> InfoMetricFamily:
    family = InfoMetricFamily(metric.name, metric.help, labels=metric.labels)
    for row in sorted(rows):
        family.add_metric(row, {})
    return family


def _writable(path: Checkpoint | None) -> bool | None:
    """A folder that was written to is; one that was not may be full, so only a read-only mount is not."""
    return None if path is None or path.read_only is None else not path.read_only


def _servers(_: Tally, servers: dict[str, ServerSeen]) -> set[Labels]:
    return {(server, seen.version) for server, seen in servers.items() if seen.version is not None}


def _shared_paths(tally: Tally, _: dict[str, ServerSeen]) -> set[Labels]:
    return {
        (state.identity.run, state.shared_path.fs_type)
        for state in tally.processes.values()
        if state.alive is not False and state.shared_path is not None and state.shared_path.fs_type is not None
    }


def _runs(tally: Tally, _: dict[str, ServerSeen]) -> set[Labels]:
    return {
        (
            state.identity.run,
            state.identity.run_id,
            state.engine or "",
            str(state.identity.world_size),
            state.identity.host,
            ",".join(f"{name}={version}" for name, version in sorted(state.versions.items())),
        )
        for state in tally.processes.values()
        if state.alive is not False
    }


_INFO: dict[str, Callable[[Tally, dict[str, ServerSeen]], set[Labels]]] = {
    names.SERVER_INFO.name: _servers,
    names.RUN_INFO.name: _runs,
    names.SHARED_PATH_INFO.name: _shared_paths,
}
