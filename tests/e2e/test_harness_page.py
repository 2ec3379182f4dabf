"""The rule on the real Prometheus and Alertmanager, with nothing of this project's running: a page made by hand.

What fails here is the rule, the Alertmanager example or the harness; ``test_page.py`` has the whole chain.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sglang_telemetry.names import LAST_FAILURE
from tests.harness.alertmanager import Alertmanager
from tests.harness.assets import RULES
from tests.harness.processes import wait_until
from tests.harness.prometheus import Prometheus
from tests.harness.webhook import Webhook


class HandMade:
    """A target of Prometheus that serves the failures it is told of."""

    def __init__(self) -> None:
        self._failures: dict[str, float] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = outer._text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def fail(self, cause: str) -> float:
        """A sync failed now; the Unix time of that."""
        at = time.time()
        self._failures = {**self._failures, cause: at}
        return at

    def close(self) -> None:
        """Go away: scrapes are refused from now on."""
        self._server.shutdown()
        self._server.server_close()

    def _text(self) -> str:
        head = f"# TYPE {LAST_FAILURE.served_as} gauge\n"
        return head + "".join(
            f'{LAST_FAILURE.served_as}{{run="r",server="s:1",cause="{cause}"}} {at!r}\n'
            for cause, at in self._failures.items()
        )


@dataclass
class Stack:
    """The target and all that stands between it and a phone."""

    target: HandMade
    prometheus: Prometheus
    webhook: Webhook

    def wait_for_evaluations(self, count: int) -> None:
        """Wait until the firing alert has been evaluated that many times more."""
        seen = 'sum(count_over_time(ALERTS{alertname="WeightSyncFailed",alertstate="firing"}[1h]))'
        before = self.prometheus.value(seen) or 0
        wait_until(lambda: (self.prometheus.value(seen) or 0) >= before + count, f"{count} evaluations that fire")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    target = HandMade()
    with Webhook() as webhook, Alertmanager(tmp_path / "am", page=webhook.url) as alertmanager:
        with Prometheus(
            tmp_path / "p", {"hand": target.address}, rule_files=RULES, alertmanager=alertmanager.address
        ) as prometheus:
            prometheus.wait_for_target_up("hand")
            yield Stack(target, prometheus, webhook)
            target.close()


def test_one_failure_is_one_page_that_outlives_its_target(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    """It carries cause and runbook; when the target is gone it is not taken back, and not sent again."""
    failed_at = stack.target.fail("server_died")
    page = stack.webhook.wait_for("firing")
    assert page.labels == {
        "alertname": "WeightSyncFailed",
        "severity": "critical",
        "run": "r",
        "server": "s:1",
        "cause": "server_died",
    }
    assert page.annotations["runbook_url"] == "runbooks/WeightSyncFailed.md#server_died"
    assert page.annotations["first"].startswith("check the checkpoint before a restart")
    assert page.annotations["description"].startswith("r: the sync to s:1 failed with server_died at 20")

    stack.target.close()
    stack.prometheus.wait_for('up{job="hand"} == 0')
    assert stack.prometheus.query(LAST_FAILURE.served_as) == []
    stack.wait_for_evaluations(2)
    [alert] = stack.prometheus.alerts()
    assert (alert["state"], alert["labels"]["cause"]) == ("firing", "server_died")
    assert stack.webhook.pages == [page]
    with capsys.disabled():
        print(f" [failure to page: {page.at - failed_at:.2f} s]", end="")


def test_another_cause_pages_again_and_the_same_cause_does_not(stack: Stack) -> None:
    """A run that is restarted into the same fault wakes nobody twice; a new fault does."""
    stack.target.fail("server_busy")
    first = stack.webhook.wait_for("firing", cause="server_busy")
    again = stack.target.fail("server_busy")
    wait_until(
        lambda: (stack.prometheus.value(LAST_FAILURE.served_as) or 0) >= again, "Prometheus saw the second failure"
    )
    stack.wait_for_evaluations(2)
    stack.target.fail("timeout")
    second = stack.webhook.wait_for("firing", cause="timeout")
    stack.wait_for_evaluations(2)
    assert stack.webhook.pages == [first, second]
