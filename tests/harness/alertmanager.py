"""Debian's Alertmanager with the example configuration of this project, its webhook turned to a receiver of ours."""

from pathlib import Path

import requests
import yaml

from tests.harness.processes import Child, free_port, tool
from tests.harness.prometheus import SESSION

EXAMPLE = Path(__file__).parents[2] / "alerts" / "alertmanager" / "alertmanager.yml"


class Alertmanager:
    """A running Alertmanager.

    Args:
        folder: For its configuration, data and log.
        webhook: URL that every webhook of the example is turned to.
    """

    def __init__(self, folder: Path, webhook: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        configuration = yaml.safe_load(EXAMPLE.read_text())
        configuration["templates"] = [str(EXAMPLE.parent / pattern) for pattern in configuration["templates"]]
        for receiver in configuration["receivers"]:
            for one in receiver.get("webhook_configs", []):
                one["url"] = webhook
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
