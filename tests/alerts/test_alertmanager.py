"""The Alertmanager example, judged by Debian's own tool: valid, routed as meant, and a page that reads well."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.processes import tool

FOLDER = Path(__file__).parents[2] / "alerts" / "alertmanager"
CONFIGURATION = FOLDER / "alertmanager.yml"
TEMPLATE = FOLDER / "templates" / "weight_sync.tmpl"
DIED = {
    "description": "grpo-math: the sync to 10.0.0.7:30000 failed with server_died",
    "first": "check the checkpoint before a restart",
    "runbook_url": "runbooks/WeightSyncFailed.md#server_died",
    "trace": "7be1b94e4b0f6a1b7c0d9c2ef0a1d3c5",
}


def amtool(*arguments: str) -> str:
    """What amtool prints; it has to be content."""
    done = subprocess.run([tool("amtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(name: str, folder: Path, status: str, **annotations: str) -> str:
    """One of our templates over one alert."""
    labels = {"severity": "critical", "run": "grpo-math", "cause": "server_died"}
    data = {
        "status": status,
        "commonLabels": labels,
        "commonAnnotations": {"summary": "Weight sync failed"},
        "alerts": [{"status": status, "labels": labels, "annotations": annotations}],
    }
    (folder / "data.json").write_text(json.dumps(data))
    text = f'{{{{ template "{name}" . }}}}'
    options = (f"--template.glob={TEMPLATE}", f"--template.text={text}", f"--template.data={folder}/data.json")
    return amtool("template", "render", *options)


def test_configuration_is_valid() -> None:
    """amtool's check, templates included."""
    amtool("check-config", str(CONFIGURATION))


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (("alertname=WeightSyncFailed", "severity=critical", "run=r", "cause=timeout"), "page"),
        (("alertname=WeightSyncFailed", "severity=critical", "run=r", "server=s:1", "cause=peer"), "page"),
        (("alertname=WeightSyncFailed", "severity=warning"), "nobody"),
        (("alertname=Anything", "severity=info"), "nobody"),
        (("alertname=Anything",), "nobody"),
    ],
)
def test_routes(labels: tuple[str, ...], receiver: str) -> None:
    """Who gets what."""
    route = ("config", "routes", "test", f"--config.file={CONFIGURATION}", f"--verify.receivers={receiver}")
    amtool(*route, *labels)


def test_a_page_waits_for_nothing_and_stands_alone() -> None:
    """A group holds one failure of one cause, so that another cause is another notification, and it is sent at once."""
    configuration: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text())
    route = configuration["route"]
    assert route["group_wait"] == "0s"
    assert {"alertname", "run", "server", "cause"} <= set(route["group_by"])
    [page] = [receiver for receiver in configuration["receivers"] if receiver["name"] == "page"]
    assert [webhook["send_resolved"] for webhook in page["webhook_configs"]] == [True]


def test_template_names() -> None:
    """The template that receivers for text use is defined under the names that its comment gives."""
    assert re.findall(r'{{ define "(.+?)"', TEMPLATE.read_text()) == ["weight_sync.title", "weight_sync.text"]


def test_title(tmp_path: Path) -> None:
    """It says what, where and why in one line, and whether it is over."""
    firing = rendered("weight_sync.title", tmp_path, "firing", **DIED)
    resolved = rendered("weight_sync.title", tmp_path, "resolved", **DIED)
    assert firing.strip() == "CRITICAL grpo-math: Weight sync failed (server_died)"
    assert resolved.strip() == "RESOLVED grpo-math: Weight sync failed (server_died)"


def test_text(tmp_path: Path) -> None:
    """What happened, the first move, the runbook and the trace; what an alert has not, has no empty line."""
    assert rendered("weight_sync.text", tmp_path, "firing", **DIED).strip().splitlines() == [
        "grpo-math: the sync to 10.0.0.7:30000 failed with server_died",
        "First: check the checkpoint before a restart",
        "Runbook: runbooks/WeightSyncFailed.md#server_died",
        "Trace: 7be1b94e4b0f6a1b7c0d9c2ef0a1d3c5",
    ]
    short = {"description": "d", "runbook_url": "r"}
    assert rendered("weight_sync.text", tmp_path, "firing", **short).strip().splitlines() == ["d", "Runbook: r"]
