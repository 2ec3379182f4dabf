"""The scripted day is what it says: without this, a dashboard's test over it would prove little."""

from pathlib import Path

import pytest

from tests.dashboards.day import (
    GRPO,
    GRPO_SERVER,
    NOTHING,
    PPO,
    PPO_SERVER,
    SCALE_NOW,
    State,
    at,
    scale,
)
from tests.dashboards.truth import LATE_SECONDS
from tests.harness.backfill import LOOKBACK
from tests.harness.prometheus import Prometheus


def by(prometheus: Prometheus, expression: str, at: float, *labels: str) -> dict[tuple[str, ...], float]:
    """The values of a query by some labels, which have to tell them apart."""
    result = prometheus.query_at(expression, at)
    found = {tuple(one["metric"].get(label, "") for label in labels): float(one["value"][1]) for one in result}
    assert len(found) == len(result), result
    return found


def firing(prometheus: Prometheus, at: float) -> set[tuple[str, ...]]:
    """What fires, without the heartbeat: alert, run, server, cause and severity."""
    query = 'ALERTS{alertstate="firing",alertname!="WeightSyncHeartbeat"}'
    return set(by(prometheus, query, at, "alertname", "run", "server", "cause", "severity"))


def test_before_the_first_start_there_is_nothing(day: Prometheus) -> None:
    """No series at all."""
    assert day.query_at('{__name__=~".+"}', NOTHING) == []


@pytest.mark.parametrize("state", State)
def test_a_window_is_two_to_three_hours_in_which_both_runs_live(day: Prometheus, state: State) -> None:
    """All ranks are up at its end, and every target is scraped."""
    assert 2 * 3600 <= state.now - state.start <= 3 * 3600
    ranks = by(day, "sum by (run) (weight_sync_process_up)", state.now, "run")
    assert ranks == {(GRPO,): 8, (PPO,): 2}
    up = by(day, "up", state.now, "job", "instance")
    assert up == {("rl", "node:9464"): 1, ("sglang", GRPO_SERVER): 1, ("sglang", PPO_SERVER): 1}


@pytest.mark.parametrize("state", State)
def test_the_quick_run_is_always_well(day: Prometheus, state: State) -> None:
    """Its last good sync is a minute or so old, and it has not failed."""
    age = f'time() - weight_sync_last_success_timestamp_seconds{{run="{PPO}"}}'
    assert 0 < by(day, age, state.now, "run")[PPO,] < 90
    assert day.query_at(f'weight_sync_failures_total{{run="{PPO}"}} > 0', state.now) == []


def test_healthy(day: Prometheus) -> None:
    """No failure, no alert in the whole window, and syncs at the pace of each run."""
    now = State.HEALTHY.now
    assert day.query_at("weight_sync_last_failure_timestamp_seconds", now) == []
    assert by(day, "weight_sync_server_current", now, "run", "server") == {(GRPO, GRPO_SERVER): 1, (PPO, PPO_SERVER): 1}
    assert by(day, 'count_over_time(ALERTS{alertname!="WeightSyncHeartbeat"}[3h])', now, "alertname") == {}
    done = by(day, 'increase(weight_sync_attempts_total{result="success"}[3h])', now, "run")
    assert 30 < done[GRPO,] < 40
    assert 165 < done[PPO,] < 195


def test_on_a_good_day_the_servers_run_what_was_sent(day: Prometheus) -> None:
    """Each sync was confirmed within a second, each sent something new, and each answer came from the last one."""
    now = State.HEALTHY.now
    published = by(day, "weight_sync_published_version", now, "run", "server")
    assert published.keys() == {(GRPO, GRPO_SERVER), (PPO, PPO_SERVER)}
    assert min(published.values()) > 40
    assert by(day, "weight_sync_confirmed_version", now, "run", "server") == published
    delays = by(day, "weight_sync_confirmation_delay_seconds_count", now, "run", "server", "claimed", "applied")
    assert delays == {(*target, "yes", "yes"): count for target, count in published.items()}
    [means] = day.query_at(
        "sum(weight_sync_confirmation_delay_seconds_sum) / sum(weight_sync_confirmation_delay_seconds_count)", now
    )
    assert 0.2 < float(means["value"][1]) < 0.7
    assert by(day, "weight_sync_unchanged_syncs", now, "run") == {(GRPO,): 0, (PPO,): 0}
    answers = by(day, "increase(weight_sync_rollouts_total[3h]) > 0", now, "run", "policy")
    assert answers.keys() == {(GRPO, "current"), (PPO, "current")}
    assert answers[GRPO, "current"] == pytest.approx(3 * 3600 * 24 * 0.9 * 1.5 / 15, rel=0.1)
    cut = by(day, "increase(weight_sync_rollouts_aborted_total[3h]) > 0", now, "run")
    assert cut == {(PPO,): pytest.approx(6 * 179, rel=0.1)}
    assert by(day, "weight_sync_server_went_back_total", now, "server") == {(GRPO_SERVER,): 0, (PPO_SERVER,): 0}


def test_a_sync_has_all_phases_and_one_rank_comes_late(day: Prometheus) -> None:
    """The phases of rank 0, and who waits least of the others."""
    now = State.HEALTHY.now
    phases = {phase for (phase,) in by(day, f'weight_sync_last_phase_duration_seconds{{run="{GRPO}"}}', now, "phase")}
    assert phases == {"setup", "state_dict", "save", "request", "other", "broadcast", "barrier"}
    waits = by(day, f'run_rank:weight_sync_rank_wait_seconds:mean1h{{run="{GRPO}"}}', now, "rank")
    assert waits.pop(("0",)) < 0.1
    assert min(waits, key=lambda rank: waits[rank]) == ("5",)


def test_failing(day: Prometheus) -> None:
    """Two refusals and a time-out in the last hour, the time-out two minutes old."""
    now = State.FAILING.now
    failed = by(day, "round(increase(weight_sync_failures_total[1h])) > 0", now, "run", "cause")
    assert failed == {(GRPO, "server_busy"): 2, (GRPO, "timeout"): 1}
    ages = by(day, "time() - weight_sync_last_failure_timestamp_seconds", now, "run", "cause")
    assert ages[GRPO, "timeout"] == pytest.approx(120, abs=15)
    assert ages[GRPO, "server_busy"] == pytest.approx(24 * 60, abs=15)
    assert firing(day, now) == {
        ("WeightSyncFailed", GRPO, GRPO_SERVER, "timeout", "critical"),
        ("WeightSyncFailureRateHigh", GRPO, GRPO_SERVER, "", "warning"),
        ("WeightSyncSameBytes", GRPO, "", "", "warning"),
        ("WeightSyncContinuedStale", GRPO, "", "", "warning"),
    }
    assert by(day, "weight_sync_unchanged_syncs", now, "run") == {(GRPO,): 4, (PPO,): 0}


def test_the_weights_of_the_time_out_came_late(day: Prometheus) -> None:
    """The server runs them at the end, which the exporter found out; what was being answered then is of both."""
    now = State.FAILING.now
    assert by(day, "weight_sync_server_current", now, "run") == {(GRPO,): 1, (PPO,): 1}
    before, after = (
        by(day, f'weight_sync_{name}_version{{run="{GRPO}"}}', when, "run")[GRPO,]
        for name, when in (("confirmed", now - 180), ("published", now))
    )
    assert after == before + 1 == by(day, "weight_sync_confirmed_version", now, "run")[GRPO,]
    for name, expected in (("count", 1), ("sum", pytest.approx(LATE_SECONDS + 3, abs=3))):
        query = f'weight_sync_confirmation_delay_seconds_{name}{{claimed="unknown"}}'
        assert by(day, query, now, "run", "applied") == {(GRPO, "yes"): expected}
    mixed = by(day, 'increase(weight_sync_rollouts_total{policy="mixed"}[10m]) > 0', now, "run")
    assert mixed == {(GRPO,): pytest.approx(24, abs=6)}


def test_remedies(day: Prometheus) -> None:
    """Each sync of the quick run was looked at and published; the other went on over three that failed."""
    now = State.FAILING.now
    did = by(day, "round(increase(weight_sync_remedies_total[1h])) > 0", now, "run", "action", "outcome")
    quick = {did.pop((PPO, action, "done")) for action in ("validate", "publish", "timeout")}
    syncs = by(day, f'round(increase(weight_sync_attempts_total{{run="{PPO}"}}[1h])) > 0', now, "run")[PPO,]
    assert quick == {syncs}
    checked = did.pop((GRPO, "validate", "done"))
    assert checked == pytest.approx(11, abs=3)
    assert did == {
        (GRPO, "continue_stale", "done"): 3,
        (GRPO, "flush", "failed"): 2,
    }
    took = by(day, f'increase(weight_sync_remedy_seconds_total{{run="{GRPO}"}}[1h]) > 0', now, "action")
    assert took == {("validate",): pytest.approx(0.04 * checked, rel=0.1), ("flush",): pytest.approx(10, rel=0.1)}
    assert by(day, "weight_sync_stale_syncs", now, "run") == {(GRPO,): 1}
    assert by(day, "weight_sync_stale_syncs", at("07:50"), "run") == {(GRPO,): 0}
    assert day.query_at("weight_sync_stale_syncs", State.HEALTHY.now) == []


def test_an_old_replica_takes_nothing(day: Prometheus) -> None:
    """It showed an older sync, two syncs were not applied although it said so, and its answers were stale."""
    inside, over = at("06:35:45"), at("06:45")
    behind = "weight_sync_published_version - on (run, server) weight_sync_confirmed_version"
    assert by(day, behind, inside, "run") == {(GRPO,): 2, (PPO,): 0}
    assert by(day, "weight_sync_server_current", inside, "run") == {(GRPO,): 0, (PPO,): 1}
    assert by(day, "increase(weight_sync_server_went_back_total[30m]) > 0.5", inside, "server").keys() == {
        (GRPO_SERVER,)
    }
    refuted = 'weight_sync_confirmation_delay_seconds_count{claimed="yes",applied="no"}'
    assert by(day, refuted, inside, "run") == {(GRPO,): 2}
    failed = by(day, "round(increase(weight_sync_failures_total[30m])) > 0", inside, "run", "cause")
    assert failed == {(GRPO, "not_applied"): 2}
    answers = f'increase(weight_sync_rollouts_total{{run="{GRPO}"}}[10m]) > 0'
    assert by(day, answers, inside, "policy").keys() == {("stale",)}
    assert firing(day, inside) == {("WeightSyncNotApplied", GRPO, GRPO_SERVER, "", "critical")}
    assert by(day, behind, over, "run")[GRPO,] == 0
    assert firing(day, over + 300) == set()


def test_stuck(day: Prometheus) -> None:
    """Rank 0 is in its request for nine minutes, the others wait, and the time-out is long over."""
    now = State.STUCK.now
    ages = f'time() - weight_sync_active_phase_start_timestamp_seconds{{run="{GRPO}"}}'
    seconds = by(day, ages, now, "rank", "phase")
    assert set(seconds) == {("0", "request"), *((str(rank), "broadcast") for rank in range(1, 8))}
    assert seconds["0", "request"] == pytest.approx(540, abs=15)
    assert by(day, f'weight_sync_timeout_seconds{{run="{GRPO}"}}', now, "run") == {(GRPO,): 120}
    assert firing(day, now) == {("WeightSyncStuck", GRPO, "", "", "critical")}


def test_server_restarted(day: Prometheus) -> None:
    """It answers, does not have the weights, and has not been synced to since."""
    now = State.SERVER_RESTARTED.now
    for name, value in [("up", 1), ("ready", 1), ("current", 0), ("restarts_total", 1)]:
        query = f'weight_sync_server_{name}{{server="{GRPO_SERVER}"}}'
        assert by(day, query, now, "server") == {(GRPO_SERVER,): value}, name
    age = by(day, "time() - weight_sync_server_last_restart_timestamp_seconds", now, "server")
    assert age == {(GRPO_SERVER,): pytest.approx(180, abs=15)}
    synced = f'time() - weight_sync_last_success_timestamp_seconds{{run="{GRPO}"}}'
    assert by(day, synced, now, "run")[GRPO,] > 480
    assert by(day, f'min_over_time(weight_sync_server_up{{server="{GRPO_SERVER}"}}[10m])', now, "server") == {
        (GRPO_SERVER,): 0
    }
    assert firing(day, now) == {("SGLangServerLostWeights", GRPO, GRPO_SERVER, "", "critical")}
    answers = f'increase(weight_sync_rollouts_total{{run="{GRPO}"}}[2m]) > 0'
    assert by(day, answers, now, "policy").keys() == {("unknown",)}


@pytest.mark.parametrize(
    ("state", "later"), [(State.FAILING, 1500), (State.STUCK, 1800), (State.SERVER_RESTARTED, 900)]
)
def test_after_each_state_the_day_recovers(day: Prometheus, state: State, later: float) -> None:
    """Some minutes later nothing fires, and the run syncs again."""
    assert firing(day, state.now + later) == set()
    age = f'time() - weight_sync_last_success_timestamp_seconds{{run="{GRPO}"}}'
    assert by(day, age, state.now + later, "run")[GRPO,] < 400


def test_how_trainers_ended(day: Prometheus) -> None:
    """The run ends clean, failed, lost."""
    exits = by(day, f'weight_sync_process_exits_total{{run="{GRPO}"}}', State.SERVER_RESTARTED.now, "how")
    assert exits == {("clean",): 8, ("failed",): 8, ("lost",): 8}


@pytest.mark.parametrize(("server", "prefix"), [(GRPO_SERVER, "sglang:"), (PPO_SERVER, "sglang_")])
@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("num_running_reqs", {"model_name", "engine_type"}),
        ("num_queue_reqs", {"model_name", "engine_type"}),
        ("gen_throughput", {"model_name", "engine_type"}),
        ("weight_load_duration_seconds", {"model_name", "source"}),
        ("http_requests_total", {"endpoint", "method"}),
        ("http_responses_total", {"endpoint", "method", "status_code"}),
    ],
)
def test_both_spellings_of_the_servers_own_metrics(
    day: Prometheus, server: str, prefix: str, name: str, labels: set[str]
) -> None:
    """One server was scraped as text, the other as OpenMetrics."""
    result = day.query_at(f'{{__name__=~"sglang[:_]{name}",job="sglang",instance="{server}"}}', State.HEALTHY.now)
    assert {one["metric"]["__name__"] for one in result} == {prefix + name}
    assert all(labels <= one["metric"].keys() for one in result)


def test_refused_updates_stand_in_the_servers_own_count(day: Prometheus) -> None:
    """The two refusals are answers with 400."""
    query = 'sglang:http_responses_total{endpoint="/update_weights_from_disk",status_code!="200"}'
    assert by(day, query, State.FAILING.now, "instance", "status_code") == {(GRPO_SERVER, "400"): 2}


def test_an_hour_of_one_big_run(tmp_path: Path) -> None:
    """As many ranks as asked for, at the end of the hour."""
    data, series = scale(tmp_path, 16)
    assert series > 16 * 20
    with Prometheus(tmp_path / "prometheus", {}, data=data, lookback=LOOKBACK) as prometheus:
        assert by(prometheus, "sum by (run) (weight_sync_process_up)", SCALE_NOW, "run") == {(GRPO,): 16}
        assert by(prometheus, "weight_sync_server_current", SCALE_NOW, "run") == {(GRPO,): 1}
        assert by(prometheus, "weight_sync_rollouts_total > 0", SCALE_NOW, "policy").keys() == {
            ("current",),
            ("unknown",),
        }


def test_a_query_that_is_wrong_says_so(day: Prometheus) -> None:
    """With Prometheus' own words."""
    with pytest.raises(AssertionError, match="parse error"):
        day.query_at("sum(", State.HEALTHY.now)
