"""Each failure cause on the real exporter, Prometheus and Alertmanager: who is told of what, and what is held back.

The one decision: all happen at once, each in a run of its own, and the table in ``by_cause.py`` is what must have come,
no more and no less. The rules are those of ``alerts/rules`` but for their ``for``, which is some seconds here so that
nobody waits a quarter of an hour for a server that never comes up; Alertmanager's example is used as it is.
"""

import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from sglang_telemetry.causes import FailureCause
from tests.e2e.by_cause import ROWS, Alert, Row
from tests.harness.assets import impatient
from tests.harness.incidents import provoke
from tests.harness.processes import wait_until
from tests.harness.scene import Scene
from tests.harness.stack import running_stack
from tests.harness.webhook import Page, Webhook

pytestmark = pytest.mark.timeout(300)

FOR_SECONDS = 10


@dataclass
class Outcome:
    """What came of all rows.

    Args:
        alerts: Of each run, by Alertmanager's state.
        told: Of each run, what was sent to which receiver, once each.
        failed_at: Of each run, the Unix time of its failure.
        skipped: Rows that cannot be made here, with the reason.
    """

    alerts: dict[str, dict[str, list[Alert]]] = field(default_factory=dict)
    told: dict[str, dict[str, list[Page]]] = field(default_factory=dict)
    failed_at: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def by_state(alerts: list[dict[str, Any]], run: str) -> dict[str, list[Alert]]:
    """The alerts of a run that are active, and those that are suppressed."""
    found: dict[str, list[Alert]] = {"active": [], "suppressed": []}
    for alert in alerts:
        if alert["labels"].get("run") == run:
            found.setdefault(alert["status"]["state"], []).append(Alert.of(alert["labels"]))
    return {state: sorted(of_state, key=str) for state, of_state in found.items()}


def expected(row: Row) -> dict[str, list[Alert]]:
    """Both kinds by the table."""
    active = [alert for alert in row.sent if alert not in row.silenced]
    return {"active": sorted(active, key=str), "suppressed": sorted(row.silenced, key=str)}


def told(receivers: dict[str, Webhook], run: str) -> dict[str, list[Page]]:
    """What was sent of a run."""
    return {name: [page for page in one.pages if page.labels["run"] == run] for name, one in receivers.items()}


def happen(scene: Scene, outcome: Outcome) -> None:
    """Make all failures; a row that needs what is not allowed here is skipped."""
    with ThreadPoolExecutor(len(ROWS)) as pool:
        begun = {row.run: pool.submit(provoke, scene, row.run) for row in ROWS}
    for run, one in begun.items():
        try:
            one.result()
        except pytest.skip.Exception as reason:
            outcome.skipped[run] = str(reason)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """All rows have happened, and nothing more is to come. What did not come is for the tests to say."""
    folder, found = tmp_path_factory.mktemp("by_cause"), Outcome()
    with (
        running_stack(folder, "--probe-interval", "1s", rule_files=impatient(folder / "rules", FOR_SECONDS)) as stack,
        Scene(folder / "scene", stack.journals, stack.prometheus) as scene,
    ):
        receivers, alertmanager, prometheus = (
            {"page": stack.page, "chat": stack.chat},
            stack.alertmanager,
            stack.prometheus,
        )
        happen(scene, found)
        rows = [row for row in ROWS if row.run not in found.skipped]

        def all_there() -> bool:
            known = alertmanager.alerts()
            return all(
                by_state(known, row.run) == expected(row)
                and sum(map(len, told(receivers, row.run).values())) >= len(row.sent)
                for row in rows
            )

        def nothing_pending() -> bool:
            return all(alert["state"] == "firing" for alert in prometheus.alerts())

        try:
            wait_until(all_there, "all alerts of the table", 120)
            prometheus.wait_for_evaluations(FOR_SECONDS + 3)
            wait_until(nothing_pending, "no alert is pending", 30)
        except AssertionError as late:
            print(late)
        known = alertmanager.alerts()
        for row in rows:
            found.alerts[row.run] = by_state(known, row.run)
            found.told[row.run] = told(receivers, row.run)
        for one in prometheus.query("weight_sync_last_failure_timestamp_seconds"):
            found.failed_at[one["metric"]["run"]] = float(one["value"][1])
        yield found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.run)
def test_alerts_are_those_of_the_table(outcome: Outcome, row: Row) -> None:
    """Active and silenced as the row says; each alert that is sent is sent once, and none is taken back."""
    if row.run in outcome.skipped:
        pytest.skip(outcome.skipped[row.run])
    assert outcome.alerts[row.run] == expected(row)
    sent = outcome.told[row.run]
    assert {page.status for pages in sent.values() for page in pages} == {"firing"}
    for receiver, pages in sent.items():
        was_sent = sorted([Alert.of(page.labels) for page in pages], key=str)
        assert was_sent == sorted([a for a in row.sent if a.receiver == receiver], key=str)


@pytest.mark.parametrize("row", [row for row in ROWS if row.cause is not FailureCause.NOT_APPLIED], ids=lambda r: r.run)
def test_page_says_what_to_do_first(outcome: Outcome, row: Row) -> None:
    """The page of a failed sync has the hint of its cause and leads to its section of the runbook."""
    if row.run in outcome.skipped:
        pytest.skip(outcome.skipped[row.run])
    [page] = [page for page in outcome.told[row.run]["page"] if page.labels["alertname"] == "WeightSyncFailed"]
    assert page.labels["cause"] == row.cause
    assert page.annotations["first"] == row.cause.hint
    assert page.annotations["runbook_url"] == row.cause.runbook


def test_each_cause_has_a_row() -> None:
    """The closed set is covered, each by one row at least, and runs have names of their own."""
    assert {row.cause for row in ROWS} == set(FailureCause)
    assert len({row.run for row in ROWS}) == len(ROWS)


def test_seconds_from_failure_to_page(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not asserted: how long the first page took while all failed at once."""
    pages = {run: sent["page"][0] for run, sent in outcome.told.items() if sent["page"]}
    took = {run: pages[run].at - at for run, at in outcome.failed_at.items() if run in pages}
    slowest = max(took, key=lambda run: took[run])
    with capsys.disabled():
        print(
            f" [{len(took)} failures at once: failure to page median {statistics.median(took.values()):.2f} s, ", end=""
        )
        print(f"worst {took[slowest]:.2f} s ({slowest})]", end="")
