"""Debian's Prometheus with a configuration of its own, on a free port of the loopback."""

from pathlib import Path
from typing import Any

import requests
import yaml

from tests.harness.processes import Child, free_port, tool, wait_until

SESSION = requests.Session()
SESSION.trust_env = False  # the loopback is not asked through a proxy


class Prometheus:
    """A running Prometheus.

    Args:
        folder: For its configuration, data and log.
        targets: Job name to ``host:port``.
        rule_files: Alert rules.
        alertmanager: ``host:port`` to send alerts to.
        interval: Of scrapes and evaluations.
        data: Folder of blocks to start over, however old they are, in place of a new one.
        lookback: For how long a sample counts as present, such as ``40s``; None for Prometheus' own five minutes.
            Series that were filled in afterwards have no stale marks where they end. With scrapes each 15 s, 40 s come
            near to those: a series outlives one scrape that is late, and little more.
    """

    def __init__(
        self,
        folder: Path,
        targets: dict[str, str],
        *,
        rule_files: tuple[Path, ...] = (),
        alertmanager: str | None = None,
        interval: str = "1s",
        data: Path | None = None,
        lookback: str | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        configuration: dict[str, Any] = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [str(path) for path in rule_files],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()
            ],
        }
        if alertmanager is not None:
            configuration["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        self._child = Child(
            [
                tool("prometheus"),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={data or folder / 'data'}",
                *(["--storage.tsdb.retention.time=100y"] if data is not None else []),
                *([f"--query.lookback-delta={lookback}"] if lookback is not None else []),
                f"--web.listen-address={address}",
                "--enable-feature=exemplar-storage",
            ],
            folder / "prometheus.log",
        )
        self._child.wait_until(self._ready, "Prometheus is ready")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        return self._result("query", query=expression)

    def query_at(self, expression: str, at: float) -> list[dict[str, Any]]:
        """The result of an instant query at that Unix time."""
        return self._result("query", query=expression, time=at)

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The result of a range query between two Unix times."""
        return self._result("query_range", query=expression, start=start, end=end, step=step)

    def value(self, expression: str) -> float | None:
        """The one value of an instant query, None when there is none."""
        result = self.query(expression)
        return float(result[0]["value"][1]) if result else None

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts that are pending or firing, without the heartbeat, which always is."""
        alerts = SESSION.get(f"{self.url}/api/v1/alerts", timeout=10).json()["data"]["alerts"]
        return [alert for alert in alerts if alert["labels"]["alertname"] != "WeightSyncHeartbeat"]

    def exemplars(self, expression: str) -> list[dict[str, Any]]:
        """Exemplars of the last hour."""
        parameters = {"query": expression, "start": "0", "end": "4102444800"}
        return list(SESSION.get(f"{self.url}/api/v1/query_exemplars", params=parameters, timeout=10).json()["data"])

    def wait_for(self, expression: str, timeout: float = 30.0) -> None:
        """Wait until a query has a result."""
        wait_until(lambda: self.query(expression), f"Prometheus has {expression}", timeout)

    def wait_for_evaluations(self, count: int, timeout: float = 60.0) -> None:
        """Wait until the rules have been evaluated that many times more, told by the heartbeat."""
        done = 'count_over_time(ALERTS{alertname="WeightSyncHeartbeat"}[1h])'
        before = self.value(done) or 0
        wait_until(lambda: (self.value(done) or 0) >= before + count, f"{count} evaluations", timeout)

    def wait_for_target_up(self, job: str, timeout: float = 30.0) -> None:
        """Wait until a target of that job was scraped; static targets take some seconds after the start."""
        self.wait_for(f'up{{job="{job}"}} == 1', timeout)

    def close(self) -> None:
        """Stop it."""
        self._child.close()

    def __enter__(self) -> "Prometheus":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _result(self, route: str, **parameters: str | float) -> list[dict[str, Any]]:
        answer = SESSION.post(f"{self.url}/api/v1/{route}", data=parameters, timeout=120).json()
        assert answer["status"] == "success", f"{answer['error']}: {parameters}"
        return list(answer["data"]["result"])

    def _ready(self) -> bool:
        try:
            return SESSION.get(f"{self.url}/-/ready", timeout=1).status_code == 200
        except requests.RequestException:
            return False
