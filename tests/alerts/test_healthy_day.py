"""A day on which nothing is wrong: trainers are started, end and are started again, a scrape is missed, a sync is slow.

Nobody is woken, and nothing is written to the chat. That the same day can fail is shown by putting one failure into it.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sglang_telemetry.causes import FailureCause
from tests.harness.assets import RULES, rules, samples
from tests.harness.processes import output_of
from tests.harness.simulation import SCRAPE, Life, series

HOUR = 3600.0
DAY = 24 * HOUR
GRPO, PPO = "10.0.0.7:30000", "10.0.0.8:30000"

DAY_OF_GRPO = [
    # A checkpoint of 15 GiB each five minutes; an evaluation of 15 minutes in each third hour; single syncs are slow.
    Life(
        run="grpo",
        server=GRPO,
        start=120,
        end=7 * HOUR,
        odd={1: 3.0, 20: 3.0, 50: 4.0},
        pauses={30: 900.0, 60: 900.0},
    ),
    # Stopped to change a learning rate, and started again ten minutes later; later by its launcher within the minute.
    Life(run="grpo", server=GRPO, start=7 * HOUR + 600, end=15 * HOUR, odd={40: 5.0}, pauses={33: 900.0}),
    Life(run="grpo", server=GRPO, start=15 * HOUR + 40, end=DAY + HOUR, odd={1: 3.0, 25: 3.0, 26: 1.5, 70: 3.0}),
]
DAY_OF_PPO = [
    # Small and quick, in the foreground of somebody's terminal: short runs one after the other.
    Life(
        run="ppo",
        server=PPO,
        start=HOUR,
        end=2 * HOUR,
        ranks=1,
        payload=1 << 20,
        interval=30,
        save=0.2,
        request=0.8,
        timeout=30,
    ),
    Life(
        run="ppo",
        server=PPO,
        start=2.1 * HOUR,
        end=2.2 * HOUR,
        ranks=1,
        payload=1 << 20,
        interval=30,
        save=0.2,
        request=0.8,
        timeout=30,
    ),
    # Rare syncs, one of them slow.
    Life(run="ppo", server=PPO, start=9 * HOUR, end=20 * HOUR, ranks=2, interval=1500, odd={9: 4.0}, timeout=600),
]
# Single scrapes are missed, the network is away for four minutes, the exporter is restarted twice.
GAPS = [(hour * HOUR + 7 * hour, hour * HOUR + 7 * hour + SCRAPE) for hour in range(1, 24)] + [
    (5 * HOUR, 5 * HOUR + 100),
    (12 * HOUR, 12 * HOUR + 100),
    (18 * HOUR, 18 * HOUR + 60),
]


def used() -> frozenset[str]:
    """Names of samples that a rule asks for."""
    text = " ".join(rule["expr"] for rule in rules())
    return frozenset(name for name in samples() if name in text)


def fired(folder: Path, lives: list[Life], expected: dict[str, float]) -> None:
    """Each alert that was ever on, with the number of alerts of that name; the heartbeat always is."""
    names = expected | {"WeightSyncHeartbeat": 1.0}
    test = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": f"{2 * SCRAPE}s",
        "group_eval_order": ["weight_sync.recording"],
        "tests": [
            {
                "interval": f"{SCRAPE}s",
                "input_series": series(lives, seconds=DAY, gaps=GAPS, used=used()),
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1d]))',
                        "eval_time": f"{int(DAY) - 2 * SCRAPE}s",
                        "exp_samples": [
                            {"labels": f'{{alertname="{name}"}}', "value": count} for name, count in names.items()
                        ],
                    },
                    # The day is not empty: the rules had something to look at.
                    {
                        "expr": "count(count_over_time(run:weight_sync_process_up:coordinator[1d]))",
                        "eval_time": f"{int(DAY) - 2 * SCRAPE}s",
                        "exp_samples": [{"labels": "{}", "value": 2}],
                    },
                ],
            }
        ],
    }
    path = folder / "day_test.yml"
    path.write_text(yaml.safe_dump(test))
    output_of("promtool", "test", "rules", str(path))


@pytest.mark.timeout(600)
def test_nobody_is_woken_on_a_healthy_day(tmp_path: Path) -> None:
    """No alert of any severity but the heartbeat."""
    fired(tmp_path, [*DAY_OF_GRPO, *DAY_OF_PPO], {})


@pytest.mark.timeout(600)
def test_one_failure_in_that_day_is_one_page(tmp_path: Path) -> None:
    """The tenth sync fails and the run goes on."""
    failing = replace(DAY_OF_GRPO[0], fails={10: FailureCause.SERVER_BUSY})
    fired(tmp_path, [failing, *DAY_OF_GRPO[1:], *DAY_OF_PPO], {"WeightSyncFailed": 1.0})
