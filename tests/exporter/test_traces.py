"""The exporter's traces: what the journals say goes to a collector, and a sick one keeps nobody from the metrics."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.test._otlp_test_server import OtlpProtoTestServer

from sglang_telemetry.exporter.settings import traces_wanted
from tests.harness.answers import BUSY, SUCCESS, Answers
from tests.harness.exporter import ExporterProcess
from tests.harness.processes import Child, free_port, wait_until


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests says nothing of collectors and proxies."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def trainers(folder: Path, how: str = "raise", count: int = 1) -> None:
    """So many trainers fail in one sync each, and die."""
    with Answers(BUSY) as server:
        subprocess.run(
            [sys.executable, "-m", "tests.harness.dying_trainer", str(folder), how, str(count), server.url],
            check=True,
            timeout=60,
        )


def health(process: ExporterProcess) -> dict[str, Any]:
    """What /healthz says of traces."""
    told: dict[str, Any] = json.loads(process.get("/healthz"))
    assert told["status"] == "ok"
    traces: dict[str, Any] = told["traces"]
    return traces


SPANS_OF_ONE = 6
"""Root, rank, setup, request, other, and the update."""


@pytest.mark.parametrize("late", [False, True])
def test_spans_of_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """They arrive once, whether the exporter was there or came later; /healthz counts them, the first line names it."""
    with OtlpProtoTestServer() as server:
        url = f"http://127.0.0.1:{server.port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        if late:
            trainers(tmp_path)
        with ExporterProcess(tmp_path) as process:
            if not late:
                trainers(tmp_path)
            wait_until(lambda: health(process)["sent"] == SPANS_OF_ONE, "all spans are sent")
            assert health(process) == {
                "to": f"http/protobuf to {url}",
                "sent": SPANS_OF_ONE,
                "waiting": 0,
                "dropped": 0,
            }
            assert process.close() == 0
        got = [one.span for one in server.drain_spans()]
    assert [one.name for one in got] == [
        "weight_sync",
        "weight_sync.rank",
        "weight_sync.setup",
        "weight_sync.request",
        "weight_sync.other",
        "POST /update_weights_from_disk",
    ]
    assert len({one.trace_id for one in got}) == 1
    assert [one.status.message for one in got] == ["server_busy", "server_busy", "", "server_busy", "", "server_busy"]


def test_killed_trainer_has_its_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL in the sync: the exporter says what is known, with the phase that was open as the error."""
    with OtlpProtoTestServer() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", server.traces_endpoint)
        with ExporterProcess(tmp_path) as process:
            trainers(tmp_path, "kill_in_request")
            wait_until(lambda: health(process)["sent"] == 3, "all spans are sent")
        got = [one.span for one in server.drain_spans()]
    assert [(one.name, one.status.message) for one in got] == [
        ("weight_sync", "trainer_lost"),
        ("weight_sync.rank", "trainer_lost"),
        ("weight_sync.setup", "trainer_lost"),
    ]


def test_spans_of_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that ends right before SIGTERM is in the trace: the exporter reads and sends once more."""
    with OtlpProtoTestServer() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.port}")
        with ExporterProcess(tmp_path) as process:
            trainers(tmp_path, count=5)
            assert process.close() == 0
        assert len(server.drain_spans()) == 5 * SPANS_OF_ONE


def test_restarted_exporter_sends_no_span_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent before it stopped is in its state."""
    with OtlpProtoTestServer() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.port}")
        for number in (1, 2):
            with ExporterProcess(tmp_path) as process:
                trainers(tmp_path)
                wait_until(lambda process=process: health(process)["sent"] == SPANS_OF_ONE, "its own are sent")
                assert process.close() == 0
            assert len(server.drain_spans()) == SPANS_OF_ONE, number


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("how", ["refuses", "does not answer"])
def test_dead_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, protocol: str) -> None:
    """Metrics are served, /healthz names what waits; SIGTERM ends it in 2 s with 0 and a word of what was dropped."""
    with ExitStack() as stack:
        port = free_port()
        if how == "does not answer":
            hole = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = hole.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        process = stack.enter_context(ExporterProcess(tmp_path))
        trainers(tmp_path)
        wait_until(lambda: process.total("weight_sync_failures_total") == 1.0, "the failure is served")
        assert health(process) == {
            "to": f"{protocol} to http://127.0.0.1:{port}",
            "sent": 0,
            "waiting": SPANS_OF_ONE,
            "dropped": 0,
        }
        asked = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(10) == 0
        assert time.monotonic() - asked < 2.0
        assert process.process.stderr is not None
        said = process.process.stderr.read().splitlines()
        # gRPC's own words about the connection may stand before ours.
        assert said[-1] == f"sglang-telemetry exporter: {SPANS_OF_ONE} spans were dropped"


def test_spans_dropped_at_the_end_are_in_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next exporter of the folder serves them as errors of this monitoring."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with ExporterProcess(tmp_path) as process:
        trainers(tmp_path)
        wait_until(lambda: health(process)["waiting"] == SPANS_OF_ONE, "the spans wait")
        assert process.close() == 0
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    with ExporterProcess(tmp_path) as process:
        value = process.value("weight_sync_telemetry_errors_total", component="traces")
    assert value == SPANS_OF_ONE


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}, "carrier-pigeon: http/protobuf and grpc are spoken here"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4318"}, "write http://HOST:4318"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_COMPRESSION": "zip"}, "zip"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "soon"),
    ],
)
def test_variables_that_make_no_sense(tmp_path: Path, variables: dict[str, str], complaint: str) -> None:
    """One line that says so, metrics all the same, and the error is counted."""
    command = (sys.executable, "-m", "sglang_telemetry", "exporter", "--dir", str(tmp_path / "j"))
    child = Child(
        (*command, "--listen", "127.0.0.1:0"),
        tmp_path / "log",
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"} | variables,
    )
    try:
        child.wait_until(lambda: "/metrics serves" in child.log.read_text(), "it serves")
        first, second = child.log.read_text().splitlines()
        assert first.startswith("sglang-telemetry exporter: NO TRACES: "), first
        assert complaint in first
        assert second.endswith(f"/metrics serves {tmp_path / 'j'}")
        page = object.__new__(ExporterProcess)
        page.url = second.split(": ", 1)[1].partition("/metrics")[0]
        assert page.value("weight_sync_telemetry_errors_total", component="traces") == 1.0
        assert json.loads(page.get("/healthz"))["traces"] is None
    finally:
        child.close()
    assert child.process.returncode == 0


LOADED = """
import sys
from pathlib import Path
from sglang_telemetry.exporter.app import Exporter
from sglang_telemetry.exporter.settings import ExporterSettings
exporter = Exporter(ExporterSettings(folder=Path(sys.argv[1]), port=0))
exporter.start()
print(exporter.traces_to, "opentelemetry.sdk" in sys.modules, flush=True)
exporter.close()
"""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "None False"),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_RESOURCE_ATTRIBUTES": "a=b"}, "None False"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, "None False"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}, "None False"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"}, "None False"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "false"},
            "http/protobuf to http://127.0.0.1:9 True",
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "http/protobuf to http://localhost:4318 True"),
        (
            {"OTEL_TRACES_EXPORTER": "console, otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "grpc to http://localhost:4317 True",
        ),
    ],
)
def test_packages_are_imported_only_where_traces_are_asked_for(
    tmp_path: Path, variables: dict[str, str], expected: str
) -> None:
    """OpenTelemetry's SDK costs memory: an exporter that sends no traces has none of it."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == f"{expected}\n", done.stderr


TRAINS = """
import sys
import threading
import requests
import sglang_telemetry

class Engine:
    base_url, http = sys.argv[1], requests

    def update_policy(self, model):
        return self.http.post(self.base_url + "/update_weights_from_disk", timeout=5).status_code == 200

engine = Engine()
with sglang_telemetry.instrument(engine):
    assert engine.update_policy(None)
    print([name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "grpc")])
    print([thread.name for thread in threading.enumerate() if "otlp" in thread.name])
"""


def test_the_trainer_has_nothing_of_it(tmp_path: Path) -> None:
    """With a collector named and the default sinks, a trainer syncs without OpenTelemetry and sends it nothing."""
    with OtlpProtoTestServer() as collector, Answers(SUCCESS) as server:
        done = subprocess.run(
            [sys.executable, "-c", TRAINS, server.url],
            env=os.environ
            | {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
                "SGLANG_TELEMETRY_DIR": str(tmp_path),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.splitlines() == ["[]", "[]"], done.stderr
        assert collector.drain_spans() == []


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: dict[str, str]) -> None:
    """Nothing goes to the collector that is named, and nothing is said of traces."""
    with OtlpProtoTestServer() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.port}")
        for name, value in off.items():
            monkeypatch.setenv(name, value)
        with ExporterProcess(tmp_path) as process:
            trainers(tmp_path)
            wait_until(lambda: process.total("weight_sync_failures_total") == 1.0, "the failure is served")
            assert json.loads(process.get("/healthz"))["traces"] is None
            assert process.value("weight_sync_telemetry_errors_total", component="traces") == 0.0
            assert process.close() == 0
        assert server.drain_spans() == []


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": " TRUE "}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "1"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "None"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "console"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": ""}, True),
        ({"OTEL_TRACES_EXPORTER": "OTLP"}, True),
        ({"OTEL_TRACES_EXPORTER": "console , otlp"}, True),
    ],
)
def test_traces_wanted(environ: dict[str, str], wanted: bool) -> None:
    """By OpenTelemetry's own variables, and by nothing else."""
    assert traces_wanted(environ) is wanted
