"""Which metrics the real SGLang has after a few requests: their names, types and labels, in both formats.

usage: python -m tests.real_sglang.record_metrics VENV MODELS

Writes ``metrics.json`` anew, in about half a minute. Prometheus asks for OpenMetrics first, and so stores the names of
the second format, ``sglang_x``. SGLang writes those below ``# TYPE sglang:x``, which names another metric: a type is
taken here from the line above, while a strict reader of OpenMetrics finds none.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.harness.processes import wait_until
from tests.harness.prometheus import SESSION
from tests.real_sglang.scenarios import Player, Scenario, post, update
from tests.real_sglang.server import RealSGLang

RECORDED = Path(__file__).with_name("metrics.json")
FLAGS = ("--enable-metrics",)
ACCEPT = {
    "text": "text/plain; version=0.0.4",
    "openmetrics": (  # as Prometheus 2.42 sends it
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    ),
}
USED = frozenset(
    {
        "weight_load_duration_seconds",
        "num_running_reqs",
        "num_queue_reqs",
        "gen_throughput",
        "http_requests_total",
        "http_responses_total",
        "http_requests_active",
    }
)
"""What is compared, without ``sglang:`` or ``sglang_``: what our dashboards show, and what stands beside it."""

REQUESTS = Scenario(
    name="metrics",
    steps=(
        update("good", "v2"),
        update("missing folder", "nope"),
        post("generate", "/generate", text="x", sampling_params={"max_new_tokens": 4, "ignore_eos": True}),
    ),
)
STATUSES = [200, 400, 200]
"""Of the answers to ``REQUESTS``."""

_SAMPLE = re.compile(r"([\w:]+)(?:\{(.*?)\})? (\S+)( # .*)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """One line of a scrape."""

    name: str
    type: str
    labels: dict[str, str]
    value: float


def samples(text: str) -> list[Sample]:
    """SGLang's own samples of a scrape, each with the type that was declared last above it."""
    found: list[Sample] = []
    kind = "untyped"
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            kind = line.split()[-1]
        elif not line.startswith("#"):
            match = _SAMPLE.fullmatch(line)
            if match is None:
                raise ValueError(f"not a sample: {line!r}")
            if match[1].startswith("sglang"):
                found.append(Sample(match[1], kind, dict(_LABEL.findall(match[2] or "")), float(match[3])))
    return found


def scrape(server: RealSGLang, kind: str = "text") -> list[Sample]:
    """What it says of itself now, asked for one of the formats of ``ACCEPT``."""
    answer = SESSION.get(f"{server.url}/metrics", headers={"Accept": ACCEPT[kind]}, timeout=10)
    answer.raise_for_status()
    return samples(answer.text)


def shapes(found: Iterable[Sample]) -> dict[str, str]:
    """Sample name to its type and its sorted label names, such as ``gauge: engine_type, model_name``."""
    shape: dict[str, str] = {}
    for sample in sorted(found, key=lambda one: one.name):
        one = f"{sample.type}: {', '.join(sorted(sample.labels))}".rstrip(": ")
        if shape.setdefault(sample.name, one) != one:
            raise ValueError(f"{sample.name} is both {shape[sample.name]!r} and {one!r}")
    return shape


def used(shape: dict[str, str]) -> dict[str, str]:
    """Those that are compared."""
    return {name: one for name, one in shape.items() if name[len("sglang:") :] in USED}


def play(server: RealSGLang, models: Path) -> dict[str, dict[str, str]]:
    """One good update, a failed one and a generation; then the shapes in each format of ``ACCEPT``."""
    player = Player(server, models)
    try:
        statuses = [answer.get("status") for answer in player.play(REQUESTS).values()]
    finally:
        player.close()
    if statuses != STATUSES:
        raise RuntimeError(f"the server answered {statuses}, not {STATUSES}")
    wait_until(lambda: len(used(shapes(scrape(server)))) == len(USED), "SGLang has published its metrics")
    return {kind: shapes(scrape(server, kind)) for kind in ACCEPT}


def main(venv: Path, models: Path) -> None:
    """Write ``metrics.json``."""
    with RealSGLang(venv, models / "base", flags=FLAGS) as server:
        recorded = {"sglang": "0.5.23", **play(server, models)}
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
