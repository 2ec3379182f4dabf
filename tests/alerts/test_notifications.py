"""What a person gets: the example, the templates and the inhibitions, in the real Alertmanager with real receivers."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from tests.harness.alertmanager import Alertmanager
from tests.harness.processes import free_port, wait_until
from tests.harness.webhook import Webhook

DIED = {
    "summary": "Weight sync failed",
    "description": "grpo-math: the sync to 10.0.0.7:30000 failed with server_died at 2026-12-01 03:12:00 +0000 UTC.",
    "first": "check the checkpoint before a restart",
    "over_at": "2026-12-01 03:27:00 +0000 UTC",
    "runbook_url": "https://wiki.example/WeightSyncFailed.md#server_died",
    "dashboard_url": "https://grafana.example/d/weight-sync?var-run=grpo-math&from=1&to=now",
    "trace": "7be1b94e4b0f6a1b7c0d9c2ef0a1d3c5",
}


def stamp(seconds_from_now: float) -> str:
    """A time as Alertmanager takes it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds_from_now)).isoformat()


def alert(name: str, *, ends: float = 3600.0, annotations: dict[str, str] | None = None, **labels: str) -> Any:
    """One alert as Prometheus would tell of it; one that ended is resolved."""
    labels = {"alertname": name, "severity": "critical", "run": "grpo-math"} | labels
    return {
        "labels": labels,
        "annotations": annotations or {"summary": name, "description": name, "runbook_url": f"{name}.md"},
        "startsAt": stamp(-1000),
        "endsAt": stamp(ends),
    }


class Sinks:
    """Slack's and PagerDuty's addresses, and a mail server."""

    def __init__(self, folder: Path) -> None:
        self.posts: dict[str, list[dict[str, Any]]] = {"/slack": [], "/pagerduty": [], "/page": [], "/heartbeat": []}
        self.mails: list[Message] = []
        self._folder = folder
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.posts[self.path].append(json.loads(body))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        class Mailbox:
            async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
                outer.mails.append(message_from_bytes(envelope.content))
                return "250 OK"

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._smtp = Controller(Mailbox(), hostname="127.0.0.1", port=free_port())
        self._smtp.start()

    def put_into(self, configuration: dict[str, Any]) -> None:
        """Turn the addresses of the example to these; nothing else of it is changed."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        for name, text in (("slack", f"{url}/slack"), ("pagerduty", "key-of-the-service")):
            (self._folder / name).write_text(text)
        configuration["global"] |= {"smtp_smarthost": f"127.0.0.1:{self._smtp.port}", "smtp_require_tls": False}
        for name in ("smtp_auth_username", "smtp_auth_password_file"):
            del configuration["global"][name]
        receivers = {receiver["name"]: receiver for receiver in configuration["receivers"]}
        receivers["page"]["webhook_configs"][0]["url"] = f"{url}/page"
        receivers["heartbeat"]["webhook_configs"][0]["url"] = f"{url}/heartbeat"
        receivers["page"]["pagerduty_configs"][0] |= {
            "routing_key_file": str(self._folder / "pagerduty"),
            "url": f"{url}/pagerduty",
        }
        receivers["chat"]["slack_configs"][0]["api_url_file"] = str(self._folder / "slack")
        configuration["route"]["group_interval"] = "1s"

    def close(self) -> None:
        """Stop."""
        self._smtp.stop()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def sinks(tmp_path: Path) -> Iterator[Sinks]:
    made = Sinks(tmp_path)
    yield made
    made.close()


def text_of(mail: Message, kind: str) -> str:
    """One part of a mail."""
    [part] = [part for part in mail.walk() if part.get_content_type() == kind]
    return bytes(part.get_payload(decode=True)).decode().replace("\r\n", "\n")  # type: ignore[arg-type]


TEXT = [
    "First: check the checkpoint before a restart",
    "Runbook: https://wiki.example/WeightSyncFailed.md#server_died",
    "Dashboard: https://grafana.example/d/weight-sync?var-run=grpo-math&from=1&to=now",
    "Trace: 7be1b94e4b0f6a1b7c0d9c2ef0a1d3c5",
]


def test_each_receiver_gets_what_a_person_needs(tmp_path: Path, sinks: Sinks) -> None:
    """Title with cause, what happened, the first move, runbook, dashboard and trace; by mail also as HTML."""
    with Alertmanager(tmp_path / "am", changes=sinks.put_into) as alertmanager:
        alertmanager.post(
            alert("WeightSyncFailed", annotations=DIED, cause="server_died", server="10.0.0.7:30000"),
            alert("WeightSyncTelemetryErrors", annotations=DIED | {"summary": "Errors"}, severity="warning"),
            alert("WeightSyncHeartbeat", severity="none"),
        )
        wait_until(lambda: all(sinks.posts.values()) and sinks.mails, "all of them got something")
    title = "CRITICAL grpo-math: Weight sync failed (server_died)"
    [pagerduty] = sinks.posts["/pagerduty"]
    assert (pagerduty["routing_key"], pagerduty["event_action"]) == ("key-of-the-service", "trigger")
    payload = pagerduty["payload"]
    assert (payload["summary"], payload["severity"], payload["group"]) == (title, "critical", "grpo-math")
    assert payload["custom_details"]["text"].split("\n")[:5] == [DIED["description"], *TEXT]
    assert pagerduty["client_url"] == DIED["dashboard_url"]
    [slack] = sinks.posts["/slack"]
    [said] = slack["attachments"]
    assert (said["title"], said["color"]) == ("WARNING grpo-math: Errors", "warning")
    assert (said["title_link"], said["text"].split("\n")[1:5]) == (DIED["dashboard_url"], TEXT)
    [mail] = sinks.mails
    assert mail["Subject"] == title
    assert text_of(mail, "text/plain").split("\n")[:5] == [DIED["description"], *TEXT]
    html = text_of(mail, "text/html")
    assert '<a href="https://wiki.example/WeightSyncFailed.md#server_died">Runbook</a>' in html
    assert "<b>First:</b> check the checkpoint before a restart<br>" in html
    [page] = sinks.posts["/page"]
    assert [one["labels"]["alertname"] for one in page["alerts"]] == ["WeightSyncFailed"]


@pytest.mark.parametrize(
    ("name", "over_in", "reason"),
    [
        ("WeightSyncFailed", 600.0, "a later sync has succeeded"),
        ("WeightSyncFailed", -600.0, "its window has passed; nothing says that it was mended"),
        ("WeightSyncTrainerLost", 600.0, "the run was started again"),
        ("WeightSyncTrainerLost", -600.0, "its window has passed; nothing says that it was mended"),
        ("WeightSyncStuck", None, "no longer so"),
    ],
)
def test_resolved_says_why(tmp_path: Path, sinks: Sinks, name: str, over_in: float | None, reason: str) -> None:
    """By the end of its window: an alert that is over before it was mended."""
    annotations = {key: value for key, value in DIED.items() if key != "over_at"}
    if over_in is not None:
        annotations["over_at"] = (datetime.now(UTC) + timedelta(seconds=over_in)).strftime("%Y-%m-%d %H:%M:%S.5 +0000")
    with Alertmanager(tmp_path / "am", changes=sinks.put_into) as alertmanager:
        alertmanager.post(alert(name, annotations=annotations))
        wait_until(lambda: sinks.mails, "the page")
        alertmanager.post(alert(name, annotations=annotations, ends=-1.0))
        wait_until(lambda: len(sinks.mails) == 2, "it was taken back", timeout=30)
    assert sinks.mails[1]["Subject"] == "RESOLVED grpo-math: Weight sync failed"
    assert text_of(sinks.mails[1], "text/plain").split("\n")[0] == f"Over ({reason}): {DIED['description']}"
    assert "First:" not in text_of(sinks.mails[1], "text/plain")
    assert [post["event_action"] for post in sinks.posts["/pagerduty"]] == ["trigger", "resolve"]


S = {"server": "s:1"}


@pytest.mark.parametrize(
    ("source", "silenced", "sent"),
    [
        (
            alert("SGLangServerDown", reason="gone", **S),
            [
                alert("WeightSyncFailed", cause="unreachable", **S),
                alert("SGLangServerNotReady", **S),
                alert("SGLangServerLeftPaused", **S),
                alert("WeightSyncNotApplied", **S),
                alert("WeightSyncStale"),
            ],
            [
                alert("SGLangServerLeftPaused", server="s:2"),
                alert("WeightSyncContinuedStale", severity="warning"),
                alert("WeightSyncFailed", cause="disk_full", **S),
                alert("WeightSyncFailed", cause="unreachable", server="s:2"),
                alert("SGLangServerLostWeights", **S),
                alert("WeightSyncStale", run="another"),
            ],
        ),
        (alert("SGLangServerDown", reason="restarting", **S), [], [alert("WeightSyncFailed", cause="timeout", **S)]),
        (
            alert("WeightSyncFailed", cause="server_busy", **S),
            [
                alert("WeightSyncFailureRateHigh", severity="warning", **S),
                alert("WeightSyncErrorBudgetBurn", severity="warning", **S),
                alert("WeightSyncStale"),
                alert("WeightSyncTrainerLost", severity="warning", how="failed"),
            ],
            [
                alert("WeightSyncTrainerLost", how="lost"),
                alert("WeightSyncStale", run="another"),
                alert("SGLangServerLostWeights", **S),
                alert("SGLangServerLeftPaused", **S),
                alert("WeightSyncContinuedStale", severity="warning"),
                alert("WeightSyncTelemetryDown"),
            ],
        ),
        (
            alert("WeightSyncFailed", cause="trainer_lost", **S),
            [alert("WeightSyncTrainerLost", how="lost")],
            [alert("WeightSyncTrainerLost", how="lost", run="another"), alert("SGLangServerLeftPaused", **S)],
        ),
        (
            alert("WeightSyncTrainerLost", how="lost"),
            [alert("WeightSyncStuck", rank="1", phase="barrier"), alert("WeightSyncStale")],
            [alert("WeightSyncFailed", cause="peer", **S), alert("WeightSyncStuck", run="another")],
        ),
        (
            alert("WeightSyncTelemetryDown"),
            [alert("WeightSyncStuck", rank="1", phase="barrier"), alert("WeightSyncStale")],
            [alert("WeightSyncFailed", cause="timeout", **S)],
        ),
        (alert("WeightSyncStuck", rank="0", phase="request"), [alert("WeightSyncStale")], []),
        (alert("SGLangServerNotReady", **S), [alert("WeightSyncStale")], [alert("WeightSyncStuck", rank="0")]),
        (
            alert("SGLangServerLeftPaused", **S),
            [alert("SGLangServerNotReady", **S), alert("SGLangServerNotReady", run="another", **S)],
            [
                alert("SGLangServerNotReady", server="s:2"),
                alert("SGLangServerLeftPaused", run="another", **S),
                alert("WeightSyncFailed", cause="trainer_lost", **S),
                alert("WeightSyncTrainerLost", how="lost", run="another"),
            ],
        ),
        (
            alert("SGLangServerLostWeights", **S),
            [alert("WeightSyncNotApplied", **S)],
            [alert("WeightSyncNotApplied", server="s:2")],
        ),
    ],
    ids=lambda one: "" if isinstance(one, list) else "-".join([*one["labels"].values()][:1]),
)
def test_inhibitions(tmp_path: Path, source: Any, silenced: list[Any], sent: list[Any]) -> None:
    """What follows from the first is silenced by it; what does not, and the first itself, are sent."""
    with Webhook() as page, Webhook() as chat:
        with Alertmanager(tmp_path / "am", page=page.url, chat=chat.url) as alertmanager:
            alertmanager.post(source)
            wait_until(lambda: page.pages, "the first is sent")
            alertmanager.post(*silenced, *sent)
            wait_until(lambda: len(alertmanager.alerts()) == 1 + len(silenced) + len(sent), "it knows all")
            wait_until(
                lambda: all(one["status"]["state"] != "unprocessed" for one in alertmanager.alerts()), "all are judged"
            )
            states = {json.dumps(one["labels"], sort_keys=True): one["status"] for one in alertmanager.alerts()}

    def state(one: Any) -> str:
        return str(states[json.dumps(one["labels"], sort_keys=True)]["state"])

    assert [state(one) for one in silenced] == ["suppressed"] * len(silenced)
    assert [state(one) for one in (source, *sent)] == ["active"] * (1 + len(sent))


def test_no_two_alerts_silence_each_other(tmp_path: Path) -> None:
    """With all of them on at once somebody is still woken."""
    everything = [
        alert("SGLangServerDown", reason="gone", **S),
        alert("SGLangServerNotReady", **S),
        alert("SGLangServerLeftPaused", **S),
        alert("SGLangServerLeftPaused", run="another", **S),
        alert("SGLangServerLostWeights", **S),
        alert("WeightSyncContinuedStale", severity="warning"),
        alert("WeightSyncFailed", cause="trainer_lost", **S),
        alert("WeightSyncFailed", cause="unreachable", **S),
        alert("WeightSyncNotApplied", **S),
        alert("WeightSyncStale"),
        alert("WeightSyncStuck", rank="0", phase="request"),
        alert("WeightSyncTelemetryDown"),
        alert("WeightSyncTrainerLost", how="lost"),
    ]
    with Webhook() as page, Alertmanager(tmp_path / "am", page=page.url) as alertmanager:
        alertmanager.post(*everything)
        wait_until(
            lambda: (
                {one["status"]["state"] for one in alertmanager.alerts()} == {"active", "suppressed"}
                and len(alertmanager.alerts()) == len(everything)
            ),
            "all are judged",
        )
        active = [one["labels"]["alertname"] for one in alertmanager.alerts() if one["status"]["state"] == "active"]
    assert sorted(active) == [
        "SGLangServerDown",
        "SGLangServerLeftPaused",
        "SGLangServerLostWeights",
        "WeightSyncContinuedStale",
        "WeightSyncFailed",
        "WeightSyncTelemetryDown",
    ]
