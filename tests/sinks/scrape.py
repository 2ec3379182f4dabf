"""What a scrape of the metrics reads: for the tests of what they say."""

from prometheus_client import CollectorRegistry

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import Event
from sglang_telemetry.sinks.metrics import MetricsSink
from tests.sinks import SERVER

TARGET_LABELS = {"run": "grpo", "server": SERVER, "transport": "disk"}


class Scrape:
    """A sink with a registry of its own.

    Args:
        events: Fed at once.
    """

    def __init__(self, *events: Event) -> None:
        self.registry = CollectorRegistry()
        self.sink = MetricsSink(self.registry)
        self.feed(*events)

    def feed(self, *events: Event) -> None:
        """Feed more."""
        for event in events:
            self.sink.emit(event)

    def value(self, name: str, **labels: str) -> float | None:
        """One sample, None where there is no such series."""
        return self.registry.get_sample_value(f"weight_sync_{name}", labels)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """All samples of that name, by the values of their labels in the order of the labels' names."""
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"weight_sync_{name}"
        }

    def failures(self, cause: FailureCause) -> float | None:
        """Failures with that cause."""
        return self.value("failures_total", **TARGET_LABELS, cause=cause.value)
