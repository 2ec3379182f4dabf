"""What is read of an engine: where a request of its goes to."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import requests

from sglang_telemetry.instrument.reading import server_at

HERE = SimpleNamespace(base_url="http://10.0.0.7:30000/v0")
UPDATE = "/update_weights_from_disk?token=hunter2"


@pytest.mark.parametrize(
    ("url", "client", "engine", "server"),
    [
        (f"http://10.0.0.9:30001{UPDATE}", httpx.Client(base_url="http://10.0.0.8:30000"), HERE, "10.0.0.9:30001"),
        (UPDATE, httpx.Client(base_url="http://10.0.0.8:30000/x/?token=hunter2"), HERE, "10.0.0.8:30000"),
        (UPDATE, httpx.Client(base_url="https://me:hunter2@gate"), HERE, "gate:443"),
        (UPDATE, httpx.Client(), HERE, "10.0.0.7:30000"),
        (UPDATE, requests.Session(), HERE, "10.0.0.7:30000"),
        (UPDATE, requests, SimpleNamespace(base_url="10.0.0.7:30000"), "10.0.0.7:30000"),
        (UPDATE, requests, SimpleNamespace(base_url="/v0?token=hunter2"), "unknown"),
        (UPDATE, SimpleNamespace(base_url="/v0?token=hunter2"), SimpleNamespace(base_url=7), "unknown"),
        (f"hunter2{UPDATE}", requests, SimpleNamespace(), "unknown"),
        (f"http://[hunter2{UPDATE}", requests, SimpleNamespace(), "unknown"),
    ],
)
def test_where_a_request_goes_to(url: str, client: Any, engine: Any, server: str) -> None:
    """Host and port, and never a path or a query, which may hold a secret."""
    assert server_at(url, client, engine) == server
