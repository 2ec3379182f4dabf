"""Past time, loaded into a Prometheus: samples as OpenMetrics text to blocks, and what rules would have made of them.

The one decision: each metric family is written to a file of its own as the scrapes come by, and these are joined at the
end. So all samples of a family stand together, those of a series in the order of time, and nothing is held in memory:
one hour of 512 ranks has three million samples. promtool takes names with colons; exemplars and stale marks it cannot
take, and alerts it cannot make, so that rules are asked here as queries over the time that is loaded already.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from tests.harness.processes import output_of
from tests.harness.prometheus import Prometheus

LOOKBACK = "40s"
"""For a Prometheus over blocks with a sample each 15 s; see :class:`Prometheus`."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """What was read at one time.

    Args:
        at: Unix seconds.
        families: Nothing where the target could not be read.
        target: Its labels ``instance`` and ``job``; empty for what Prometheus makes itself.
    """

    at: float
    families: Sequence[Family]
    target: Mapping[str, str] = field(default_factory=dict)


def backfill(scrapes: Iterable[Scrape], data: Path) -> int:
    """Make blocks of all samples, and of ``up`` of each target; those of one target in the order of time.

    Args:
        scrapes: What was read.
        data: The folder of a Prometheus that does not run.

    Returns:
        The number of series.
    """
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data.parent) as folder:
        text = Path(folder) / "all.txt"
        count = _write(scrapes, Path(folder), text)
        if count:
            output_of("promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(data))
    return count


def evaluate(rules: Iterable[dict[str, Any]], data: Path, *, start: float, end: float, step: float = 30.0) -> None:
    """Add what rules would have made in that time: recorded series, and ``ALERTS`` that fire.

    An alert fires from when its expression has had a result for as long as its ``for`` says, and its
    ``keep_firing_for`` longer. ``pending`` is left out: no picture shows it.

    Args:
        rules: Of rule files, recording rules and alerts.
        data: The folder of a Prometheus that does not run, with what they ask for.
        start: Unix time of the first evaluation.
        end: Unix time of the last.
        step: Seconds between two.
    """
    left = list(rules)
    while left:
        # A rule is asked when all that it is made of is in the blocks; each round is another start of Prometheus.
        names = {rule["record"] for rule in left if "record" in rule}
        ready = [rule for rule in left if not any(name in rule["expr"] for name in names)]
        assert ready, f"these rules are made of each other: {sorted(names)}"
        with tempfile.TemporaryDirectory(dir=data.parent) as folder:
            with Prometheus(Path(folder), {}, data=data, lookback=LOOKBACK) as prometheus:
                made = [scrape for rule in ready for scrape in _made(prometheus, rule, start, end, step)]
        backfill(made, data)
        left = [rule for rule in left if rule not in ready]


def _write(scrapes: Iterable[Scrape], folder: Path, text: Path) -> int:
    parts: dict[str, IO[str]] = {}
    shown: dict[tuple[str, ...], str] = {}
    with ExitStack() as files:
        for scrape in scrapes:
            place, end = tuple(scrape.target.values()), f" {scrape.at!r}\n"
            for family in [*scrape.families, *_up(scrape)]:
                if not family.samples:
                    continue
                if family.name not in parts:
                    part = files.enter_context((folder / f"{len(parts)}").open("w+", encoding="utf-8"))
                    part.write(f"# TYPE {family.name} {family.type}\n")
                    parts[family.name] = part
                lines = []
                for name, labels, value, *_ in family.samples:
                    key = (*place, name, *labels, *labels.values())
                    if key not in shown:
                        shown[key] = _series(name, {**labels, **scrape.target})
                    lines.append(f"{shown[key]} {float(value)!r}{end}")
                parts[family.name].writelines(lines)
        with text.open("w", encoding="utf-8") as joined:
            for one in parts.values():
                one.seek(0)
                shutil.copyfileobj(one, joined)
            joined.write("# EOF\n")
    return len(shown)


def _up(scrape: Scrape) -> Iterator[Family]:
    if scrape.target:
        yield GaugeMetricFamily("up", "Of the target.", value=float(bool(scrape.families)))


def _series(name: str, labels: Mapping[str, str]) -> str:
    escaped = {
        key: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for key, value in labels.items()
    }
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in escaped.items()) + "}"


def _made(prometheus: Prometheus, rule: dict[str, Any], start: float, end: float, step: float) -> Iterator[Scrape]:
    made: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
    for series in prometheus.query_range(rule["expr"], start, end, step):
        found = series["metric"] | rule.get("labels", {})
        found.pop("__name__", None)
        # A label that a rule empties is one that it takes away; what differed by it only is one series then.
        key = tuple(sorted((label, value) for label, value in found.items() if value))
        made.setdefault(key, {}).update((float(at), float(value)) for at, value in series["values"])
    for known, values in made.items():
        labels, name = dict(known), rule.get("record", "ALERTS")
        if "alert" in rule:
            labels |= {"alertname": rule["alert"], "alertstate": "firing"}
            values = dict.fromkeys(_firing(sorted(values), rule, end, step), 1.0)
        for at, value in values.items():
            family = GaugeMetricFamily(name, "Made by a rule.", labels=list(labels))
            family.add_metric(list(labels.values()), value)
            yield Scrape(at=at, families=[family])


def _firing(on: list[float], rule: dict[str, Any], end: float, step: float) -> Iterator[float]:
    """The evaluations at which an alert fires, of those at which its expression has a result."""
    present, wait, keep = set(on), _seconds(rule.get("for", "0s")), _seconds(rule.get("keep_firing_for", "0s"))
    at, since, kept = on[0], None, None
    while at <= end:
        if at in present:
            since = at if since is None else since
            if at - since >= wait:
                kept = at
        elif kept is None or at - kept >= keep:
            since = kept = None
        if kept is not None:
            yield at
        at += step


def _seconds(duration: str) -> int:
    return sum(int(number) * _SECONDS[unit] for number, unit in re.findall(r"(\d+)([smhd])", duration))
