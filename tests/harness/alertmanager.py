"""Debian's Alertmanager with the example configuration of this project, its receivers turned to some of ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.harness.assets import ALERTMANAGER
from tests.harness.processes import Child, free_port, tool
from tests.harness.prometheus import SESSION


class Alertmanager:
    """A running Alertmanager.

    Args:
        folder: For its configuration, data and log.
        receivers: Receiver of the example to the URL of a webhook that takes its place; the others get nothing.
        changes: Made to the configuration before it is used.
    """

    def __init__(self, folder: Path, changes: Callable[[dict[str, Any]], None] | None = None, **receivers: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        configuration = yaml.safe_load(ALERTMANAGER.read_text())
        configuration["templates"] = [str(ALERTMANAGER.parent / pattern) for pattern in configuration["templates"]]
        if changes is not None:
            changes(configuration)
        else:
            configuration["receivers"] = [
                {"name": receiver["name"], "webhook_configs": [{"url": receivers[receiver["name"]]}]}
                if receiver["name"] in receivers
                else {"name": receiver["name"]}
                for receiver in configuration["receivers"]
            ]
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(configuration))
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        self._child = Child(
            [
                tool("prometheus-alertmanager"),
                f"--config.file={folder}/alertmanager.yml",
                f"--storage.path={folder}/data",
                f"--web.listen-address={self.address}",
                "--cluster.listen-address=",  # else it binds 0.0.0.0:9094
            ],
            folder / "alertmanager.log",
        )
        self._child.wait_until(self._ready, "Alertmanager is ready")

    def alerts(self) -> list[dict[str, Any]]:
        """All alerts that it knows, with their state: active, or suppressed by others."""
        return list(SESSION.get(f"{self.url}/api/v2/alerts", timeout=10).json())

    def post(self, *alerts: dict[str, Any]) -> None:
        """Tell it of alerts, as Prometheus would."""
        SESSION.post(f"{self.url}/api/v2/alerts", json=alerts, timeout=10).raise_for_status()

    def close(self) -> None:
        """Stop it."""
        self._child.close()

    def __enter__(self) -> "Alertmanager":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ready(self) -> bool:
        try:
            return SESSION.get(f"{self.url}/-/ready", timeout=1).status_code == 200
        except requests.RequestException:
            return False
