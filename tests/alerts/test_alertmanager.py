"""The Alertmanager example, judged by Debian's own tool: valid, and routed as meant."""

import re
from typing import Any

import pytest
import yaml

from tests.harness.assets import ALERTMANAGER, alerts
from tests.harness.processes import output_of

CONFIGURATION: dict[str, Any] = yaml.safe_load(ALERTMANAGER.read_text())


def test_configuration_is_valid() -> None:
    """amtool's check, templates included."""
    output_of("amtool", "check-config", str(ALERTMANAGER))


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (("alertname=WeightSyncFailed", "severity=critical", "run=r", "cause=timeout"), "page"),
        (("alertname=SGLangServerDown", "severity=critical", "run=r", "server=s:1"), "page"),
        (("alertname=WeightSyncTelemetryErrors", "severity=warning", "component=log"), "chat"),
        (("alertname=SGLangServerVersionChanged", "severity=info", "run=r"), "nobody"),
        (("alertname=WeightSyncHeartbeat", "severity=none"), "heartbeat"),
        (("alertname=Anything",), "chat"),
    ],
)
def test_routes(labels: tuple[str, ...], receiver: str) -> None:
    """Who gets what."""
    route = ("config", "routes", "test", f"--config.file={ALERTMANAGER}", f"--verify.receivers={receiver}")
    output_of("amtool", *route, *labels)


def alerts_of_the_rules() -> list[dict[str, str]]:
    """The labels that each alert has by its rule."""
    return [{"alertname": rule["alert"], **rule["labels"]} for rule in alerts()]


def test_each_alert_has_its_route() -> None:
    """By severity alone; the heartbeat has its own."""
    wanted = {"critical": "page", "warning": "chat", "info": "nobody", "none": "heartbeat"}
    route = ("config", "routes", "test", f"--config.file={ALERTMANAGER}")
    seen = {
        labels["alertname"] + labels.get("reason", "") + labels.get("how", "") + labels["severity"]: (
            labels["severity"],
            output_of("amtool", *route, *(f"{name}={value}" for name, value in labels.items())).strip(),
        )
        for labels in alerts_of_the_rules()
    }
    assert len(seen) == len(alerts_of_the_rules())
    assert {name: receiver for name, (_, receiver) in seen.items()} == {
        name: wanted[severity] for name, (severity, _) in seen.items()
    }


def test_one_incident_a_run_and_a_page_waits_for_nothing() -> None:
    """A run is a group, and its first alert is sent at once."""
    route = CONFIGURATION["route"]
    assert (route["group_by"], route["group_wait"]) == (["run"], "0s")
    assert all("group_wait" not in child for child in route["routes"])


def test_no_secret_stands_in_the_example() -> None:
    """Only files that hold one."""
    text = ALERTMANAGER.read_text()
    secrets = re.findall(r"^ *(?:- )?(\w*(?:password|key|secret|token|api_url)\w*):", text, re.M)
    assert secrets
    assert [name for name in secrets if not name.endswith("_file")] == []


def test_inhibitions_name_alerts_that_exist() -> None:
    """A typing error in a rule that silences is silent."""
    known = {labels["alertname"] for labels in alerts_of_the_rules()}
    named = {
        name
        for rule in CONFIGURATION["inhibit_rules"]
        for matcher in (*rule["source_matchers"], *rule["target_matchers"])
        if matcher.startswith("alertname")
        for name in re.findall(r"\b[A-Z]\w+", matcher)
    }
    assert named <= known
