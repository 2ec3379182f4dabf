"""From a failure to a phone, on the real Prometheus and the real Alertmanager."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_telemetry.events import Event, SyncStarted
from sglang_telemetry.journal.reader import SegmentReader
from sglang_telemetry.journal.retention import segments
from tests.e2e.test_survives_the_crash import die
from tests.harness.answers import Answers
from tests.harness.processes import wait_until
from tests.harness.stack import Stack, running_stack

FIRING = 'ALERTS{alertname="WeightSyncFailed",alertstate="firing"}'
TEXT = b'{"success":false,"message":"Weights were updated, but the cache was not flushed because ..."}'


def events(journals: Path) -> Iterator[Event]:
    """Everything that is in the journals of a folder."""
    for path in segments(journals):
        reader = SegmentReader(path)
        yield from reader.events()
        reader.close()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with running_stack(tmp_path) as one:
        yield one


def test_twenty_failures_twenty_pages(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of twenty processes fails once and is gone; each is paged once, with cause and trace, also who vanished.

    How long a page took is printed, not asserted: the machine may be busy. The bound of the wait is generous.
    """
    took = []
    for number in range(20):
        how = ("raise", "_exit", "kill", "kill_in_request")[number % 4]
        with Answers((400, TEXT)) as server:
            failed_at = time.time()
            die(stack.journals, how, 1, server.url, run=f"run-{number}")  # a run is an incident of its own
            cause = "trainer_lost" if how == "kill_in_request" else "server_busy"
            wait_until(
                lambda s=server, c=cause: stack.page.of("firing", server=s.server, cause=c),  # type: ignore[misc]
                f"the page of failure {number + 1}",
                timeout=60,
            )
            [page] = stack.page.of("firing", server=server.server)
            took.append(page.at - failed_at)
    assert len(stack.page.pages) == 20
    assert page.annotations["runbook_url"] == "runbooks/WeightSyncFailed.md#trainer_lost"
    begun = [event for event in events(stack.journals) if isinstance(event, SyncStarted)]
    traces = {one.annotations["trace"] for one in stack.page.pages}
    assert traces == {event.trace_id for event in begun}
    assert len(traces) == 20
    assert page.annotations["first"].startswith("look for the out-of-memory killer")
    with capsys.disabled():
        slow = sorted(took)
        print(f" [start of the process to page: median {slow[10]:.2f} s, worst {slow[-1]:.2f} s]", end="")


def test_exporter_that_goes_away_does_not_resolve(stack: Stack) -> None:
    """The run and its exporter end, all series go stale at once: the alert goes on firing, nothing is resolved."""
    with Answers((400, TEXT)) as server:
        die(stack.journals, "raise", 1, server.url)
        wait_until(lambda: stack.page.of("firing"), "the page", timeout=60)
    stack.exporter.close()
    stack.prometheus.wait_for("up == 0")
    gone_at = time.time()
    wait_until(
        lambda: (
            (stack.prometheus.value("timestamp(ALERTS{alertname='WeightSyncFailed',alertstate='firing'})") or 0)
            > gone_at + 3
        ),
        "three more evaluations with the alert firing",
    )
    assert stack.prometheus.query("weight_sync_last_failure_timestamp_seconds") == []
    assert stack.page.of("resolved") == []
    assert len(stack.page.of("firing")) == 1


def test_later_success_resolves(stack: Stack) -> None:
    """The next process of the run succeeds: the page is taken back."""
    busy = (400, TEXT)
    with Answers(busy, (200, b'{"success":true,"message":"ok"}')) as server:
        die(stack.journals, "raise", 1, server.url)
        wait_until(lambda: stack.page.of("firing"), "the page", timeout=60)
        die(stack.journals, "raise", 1, server.url)
        stack.page.wait_for("resolved", alertname="WeightSyncFailed")
        wait_until(lambda: stack.prometheus.alerts() == [], "no alert is left", timeout=60)


def test_exemplars_arrive(stack: Stack) -> None:
    """Prometheus keeps the trace id beside the duration."""
    with Answers((400, TEXT)) as server:
        die(stack.journals, "raise", 1, server.url)
    wait_until(
        lambda: stack.prometheus.exemplars("weight_sync_duration_seconds_bucket"), "an exemplar is there", timeout=30
    )
    [found] = stack.prometheus.exemplars("weight_sync_duration_seconds_bucket")
    assert [len(one["labels"]["trace_id"]) for one in found["exemplars"]] == [32]
