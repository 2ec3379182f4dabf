"""The scripted day in a real Prometheus, loaded once for all tests of the dashboards."""

from collections.abc import Iterator

import pytest

from tests.dashboards.day import load
from tests.harness.backfill import LOOKBACK
from tests.harness.prometheus import Prometheus


@pytest.fixture(scope="session")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus over the day."""
    folder = tmp_path_factory.mktemp("day")
    with Prometheus(folder / "prometheus", {}, data=load(folder), lookback=LOOKBACK) as prometheus:
        yield prometheus
