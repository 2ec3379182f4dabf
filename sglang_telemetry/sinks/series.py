"""Counters, time stamps and histograms as plain data, by metric and labels, which outlive what they were counted of.

Counts are whole numbers, so that saving and loading them, and the order in which they came, make no difference. A time
is counted in nanoseconds.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TypeVar

from sglang_telemetry import names
from sglang_telemetry.names import Metric

T = TypeVar("T")
Labels = tuple[str, ...]

IN_NANOSECONDS = frozenset({names.REMEDY_SECONDS.name})
"""Counters of seconds, which are kept in nanoseconds."""
_OF_US = {names.TELEMETRY_ERRORS.name, names.TELEMETRY_LAST_ERROR.name}
_OF_SERVERS = {names.SERVER_RESTARTS.name, names.SERVER_LAST_RESTART.name, names.SERVER_WENT_BACK.name}


@dataclass(slots=True)
class Exemplar:
    """The last sync that fell into a bucket: its trace id, seconds, and Unix seconds of its end."""

    trace_id: str
    value: float
    at: float


@dataclass(slots=True)
class Buckets:
    """One histogram: counts by bucket (not cumulated, the last is +Inf), the sum, and an exemplar a bucket."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(names.BUCKETS) + 1))
    sum: float = 0.0
    exemplars: dict[int, Exemplar] = field(default_factory=dict)

    def observe(self, value: float, exemplar: Exemplar | None = None) -> None:
        """Count one value in seconds."""
        index = bisect_left(names.BUCKETS, value)
        self.counts[index] += 1
        self.sum += value
        if exemplar is not None:
            self.exemplars[index] = exemplar


class Series:
    """All series of all runs in sight."""

    def __init__(self) -> None:
        self.counters: dict[str, dict[Labels, int]] = {}
        self.stamps: dict[str, dict[Labels, float]] = {}
        self.histograms: dict[str, dict[Labels, Buckets]] = {}

    def count(self, metric: Metric, labels: Labels, by: int) -> None:
        """Add to a counter; 0 makes it exist."""
        series = self.counters.setdefault(metric.name, {})
        series[labels] = series.get(labels, 0) + by

    def stamp(self, metric: Metric, labels: Labels, at: float) -> None:
        """Keep the latest Unix time."""
        series = self.stamps.setdefault(metric.name, {})
        series[labels] = max(series.get(labels, 0.0), at)

    def observe(self, metric: Metric, labels: Labels, value: float, exemplar: Exemplar | None = None) -> None:
        """Count one value, in seconds, in a histogram."""
        self.histograms.setdefault(metric.name, {}).setdefault(labels, Buckets()).observe(value, exemplar)

    def keep(self, runs: set[str], servers: set[str]) -> None:
        """Drop the series of all other runs and servers; those of this package itself stay."""
        self.counters = {name: _left(name, series, runs, servers) for name, series in self.counters.items()}
        self.stamps = {name: _left(name, series, runs, servers) for name, series in self.stamps.items()}
        self.histograms = {name: _left(name, series, runs, servers) for name, series in self.histograms.items()}


def _left(name: str, series: dict[Labels, T], runs: set[str], servers: set[str]) -> dict[Labels, T]:
    """The series of one metric whose run, or whose server, is still used."""
    if name in _OF_US:
        return series
    used = servers if name in _OF_SERVERS else runs
    return {labels: value for labels, value in series.items() if labels[0] in used}
