"""``sglang-telemetry exporter``: what it serves, and what it refuses with one clear line."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.harness.answers import BUSY, Answers
from tests.harness.exporter import OPENMETRICS, ExporterProcess


def exporter(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sglang_telemetry", "exporter", *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All pages after one failed sync whose server answered with markup."""
    folder = tmp_path_factory.mktemp("journals")
    answer = (400, b'{"success":false,"message":"<script>alert(1)</script> token=abcdef123"}')
    with Answers(answer) as server, ExporterProcess(folder) as process:
        subprocess.run(
            [sys.executable, "-m", "tests.harness.dying_trainer", str(folder), "raise", "1", server.url], check=True
        )
        pages = {path: process.get(path) for path in ("/metrics", "/healthz", "/")}
        pages["openmetrics"] = process.get("/metrics", OPENMETRICS)
        pages["code"] = str(process.close())
    return pages


def test_both_formats_parse_and_agree(served: dict[str, str]) -> None:
    """The same samples in both; exemplars with the trace id only in OpenMetrics."""
    text = {s.name: s.value for f in parse_text(served["/metrics"]) for s in f.samples}
    families = list(parse_openmetrics(served["openmetrics"]))
    assert text == {s.name: s.value for f in families for s in f.samples}
    exemplars = [s.exemplar for f in families for s in f.samples if s.exemplar]
    assert [len(e.labels["trace_id"]) for e in exemplars] == [32]
    assert "# {trace_id=" not in served["/metrics"]


def test_health(served: dict[str, str]) -> None:
    """Machine-readable, with who scraped."""
    health = json.loads(served["/healthz"])
    assert health["status"] == "ok"
    assert [who.startswith("127.0.0.1 Python-urllib") for who in health["scrapers"]] == [True]


def test_status_page_shows_the_failure_and_escapes_it(served: dict[str, str]) -> None:
    """The server's text is data: its markup is shown, its secret is not."""
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in served["/"]
    assert "<script>" not in served["/"]
    assert "abcdef123" not in served["/"]
    assert "server_error" in served["/"]


def test_sigterm_ends_it_cleanly(served: dict[str, str]) -> None:
    """Exit code 0."""
    assert served["code"] == "0"


def test_unknown_page_is_404(tmp_path: Path) -> None:
    """And says which there are."""
    with ExporterProcess(tmp_path) as process:
        with pytest.raises(OSError, match="404"):
            process.get("/metric")


@pytest.mark.parametrize("listen", ["9464", "tcp://10.0.0.1:80", "127.0.0.1:99999", "127.0.0.1:", ""])
def test_malformed_listen(tmp_path: Path, listen: str) -> None:
    """One line that shows the right form."""
    done = exporter("--dir", str(tmp_path), "--listen", listen)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"sglang-telemetry exporter: --listen {listen!r}: write HOST:PORT, such as 127.0.0.1:9464"
    ]


def test_taken_port(tmp_path: Path) -> None:
    """One line that says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = exporter("--dir", str(tmp_path), "--listen", listen)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"sglang-telemetry exporter: cannot listen at {listen}: Address already in use; "
        "choose another --listen, or stop what listens there"
    ]


@pytest.mark.parametrize("options", [("--retention", "long"), ("--max-size", "big"), ("--exit-when-idle", "x")])
def test_other_malformed_options(tmp_path: Path, options: tuple[str, str]) -> None:
    """One line each."""
    done = exporter("--dir", str(tmp_path), *options)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """One line that names it."""
    (tmp_path / "file").write_text("")
    done = exporter("--dir", str(tmp_path / "file" / "j"), "--listen", "127.0.0.1:0")
    assert done.returncode == 2
    assert done.stderr.startswith("sglang-telemetry exporter: the journal folder cannot be used: ")


def test_starts_without_torch_or_requests() -> None:
    """Neither is imported by anything that the exporter imports."""
    check = (
        "import sys; import sglang_telemetry.exporter.app, sglang_telemetry.cli.main; "
        "print(sorted({'torch', 'requests', 'opentelemetry'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_corrupt_state_is_told_and_the_counts_are_made_anew(tmp_path: Path) -> None:
    """The journals are still there: nothing is lost, the error is counted."""
    with Answers(BUSY) as server:
        subprocess.run(
            [sys.executable, "-m", "tests.harness.dying_trainer", str(tmp_path), "raise", "2", server.url], check=True
        )
    (tmp_path / "exporter-state.json").write_text('{"version": 1, "counters": 7}')
    with ExporterProcess(tmp_path) as process:
        assert process.total("weight_sync_failures_total") == 2.0
        assert process.value("weight_sync_telemetry_errors_total", component="exporter") == 1.0
