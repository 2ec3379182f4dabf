"""All that stands between a trainer and those who are told: exporter, Prometheus, Alertmanager, and two receivers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.alertmanager import Alertmanager
from tests.harness.assets import RULES
from tests.harness.exporter import ExporterProcess
from tests.harness.prometheus import Prometheus
from tests.harness.webhook import Webhook


@dataclass(frozen=True, slots=True)
class Stack:
    """The running parts; ``page`` wakes a person, ``chat`` is read in the morning."""

    journals: Path
    exporter: ExporterProcess
    prometheus: Prometheus
    alertmanager: Alertmanager
    page: Webhook
    chat: Webhook


@contextmanager
def running_stack(folder: Path, *options: str, rule_files: Sequence[Path] = RULES) -> Iterator[Stack]:
    """Start it all, and wait until Prometheus has scraped the exporter.

    Args:
        folder: For journals, configurations, data and logs.
        options: More options of the exporter.
        rule_files: What Prometheus evaluates.
    """
    journals = folder / "j"
    with (
        Webhook() as page,
        Webhook() as chat,
        Alertmanager(folder / "am", page=page.url, chat=chat.url) as alertmanager,
        ExporterProcess(journals, *options) as exporter,
        Prometheus(
            folder / "p",
            {"trainer": exporter.url.removeprefix("http://")},
            rule_files=tuple(rule_files),
            alertmanager=alertmanager.address,
        ) as prometheus,
    ):
        prometheus.wait_for_target_up("trainer")
        yield Stack(journals, exporter, prometheus, alertmanager, page, chat)
