"""``opentelemetry-instrument python train.py``: engines are wrapped without a line of code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.test._otlp_test_server import OtlpProtoTestServer
from opentelemetry.util._importlib_metadata import entry_points

from sglang_telemetry.otel import SGLangTelemetryInstrumentor
from tests.harness.answers import BUSY, SUCCESS, Answers
from tests.harness.exporter import ExporterProcess
from tests.harness.processes import wait_until

TRAIN = """
import sys
import requests

class SGLangRolloutEngine:
    def __init__(self, url):
        self.base_url, self.http = url, requests

    def update_policy(self, model):
        answer = self.http.post(self.base_url + "/update_weights_from_disk", json={"model_path": "/x"}, timeout=5)
        if answer.status_code != 200:
            raise RuntimeError("SGLang update_policy failed")
        return True

engine = SGLangRolloutEngine(sys.argv[1])
engine.update_policy(None)
engine.update_policy(None)
"""


def instrumented(folder: Path, url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a user types, in a folder with his own script."""
    (folder / "train.py").write_text(TRAIN)
    tool = Path(sys.executable).parent / "opentelemetry-instrument"
    return subprocess.run(
        [tool, "--metrics_exporter", "none", "--logs_exporter", "none", sys.executable, "train.py", url],
        cwd=folder,
        env=os.environ | {"SGLANG_TELEMETRY_DIR": str(folder / "journals")} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_entry_point_is_there() -> None:
    """Under the group that OpenTelemetry's loader reads."""
    [mine] = [one for one in entry_points(group="opentelemetry_instrumentor") if one.name == "sglang_telemetry"]
    assert mine.load() is SGLangTelemetryInstrumentor


def test_a_script_without_a_line_of_ours(tmp_path: Path) -> None:
    """Both syncs are logged, the failure leaves as it came, and the user's own span of the request is below ours."""
    with Answers(SUCCESS, BUSY) as server, OtlpProtoTestServer() as collector:
        done = instrumented(
            tmp_path,
            server.url,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.port}",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )
        spans: list[object] = []

        def arrived() -> bool:
            spans.extend(one.span for one in collector.drain_spans())
            return sum(span.name == "POST" for span in spans) == 2 and len(spans) == 14  # type: ignore[attr-defined]

        wait_until(arrived, f"the spans of both: {done.stderr}")
    assert done.returncode == 1
    assert "RuntimeError: SGLang update_policy failed" in done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [line["event"] for line in lines] == ["weight_sync.succeeded", "weight_sync.failed"]
    by_id = {(span.trace_id, span.span_id): span for span in spans}  # type: ignore[attr-defined]
    for span in [span for span in spans if span.name == "POST"]:  # type: ignore[attr-defined]
        assert by_id[span.trace_id, span.parent_span_id].name == "weight_sync.request"  # type: ignore[attr-defined]


def test_where_an_exporter_serves_the_spans_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No span is sent twice."""
    with Answers(SUCCESS) as server, OtlpProtoTestServer() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        with ExporterProcess(tmp_path / "journals"):
            assert instrumented(tmp_path, server.url).returncode == 0
        # It has sent what it had before it ended.
        names = [one.span.name for one in collector.drain_spans()]
    assert sorted(name for name in names if name.startswith("weight_sync")) == sorted(
        2 * ["weight_sync", "weight_sync.rank", "weight_sync.setup", "weight_sync.request", "weight_sync.other"]
    )


def test_by_hand() -> None:
    """The class in a program of one's own; what it wrapped is unwrapped."""
    instrumentor = SGLangTelemetryInstrumentor()
    instrumentor.instrument()
    try:

        class Engine:
            base_url = "http://127.0.0.1:1"

            def update_policy(self, model: int) -> int:
                return model

        engine = Engine()
        assert engine.update_policy(1) == 1
        assert "update_policy" in vars(engine)
    finally:
        instrumentor.uninstrument()
    assert "update_policy" not in vars(engine)
    assert engine.update_policy(2) == 2
