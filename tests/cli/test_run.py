"""``sglang-telemetry run``: the command's life is the command's own; the exporter beside it is ours."""

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from sglang_telemetry.cli.run import script_of
from sglang_telemetry.exporter.claim import serving
from sglang_telemetry.testing import FakeSGLang, Fault
from tests.harness.answers import BUSY, Answers
from tests.harness.exporter import ExporterProcess
from tests.harness.processes import wait_until
from tests.testing.checkpoints import write_models

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def run_command(folder: Path, *command: str, options: tuple[str, ...] = ("--linger", "0s")) -> list[str]:
    listen = ("--listen", "127.0.0.1:0")
    return [sys.executable, "-m", "sglang_telemetry", "run", "--dir", str(folder), *listen, *options, "--", *command]


def run(folder: Path, *command: str, options: tuple[str, ...] = ("--linger", "0s")) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        run_command(folder, *command, options=options),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
    )


@contextlib.contextmanager
def running(
    folder: Path, *command: str, options: tuple[str, ...] = ("--linger", "0s")
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        run_command(folder, *command, options=options), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        if process.stderr is not None:
            process.stderr.close()


def get(url: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
        return str(answer.read().decode())


def served_at(folder: Path) -> str:
    """Where the exporter of that folder serves, when it does; until then its URL is empty."""
    wait_until(lambda: serving(folder), "the exporter serves")
    url = serving(folder)
    assert url is not None
    return url


def read_until(process: "subprocess.Popen[str]", words: str) -> None:
    """Read what it says, up to the line with these words."""
    assert process.stderr is not None
    while words not in process.stderr.readline():
        assert process.poll() is None


@pytest.mark.parametrize("code", [0, 1, 77])
def test_exit_code_is_the_commands(tmp_path: Path, code: int) -> None:
    """And its output is its own: ours goes to stderr."""
    done = run(tmp_path, sys.executable, "-c", f"print('out'); raise SystemExit({code})")
    assert (done.returncode, done.stdout) == (code, "out\n")
    assert "sglang-telemetry run: metrics at http://127.0.0.1:" in done.stderr
    wait_until(lambda: serving(tmp_path) is None, "the exporter has ended")


def test_death_by_signal_is_128_and_its_number(tmp_path: Path) -> None:
    """As shells say it."""
    done = run(tmp_path, sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert done.returncode == 137


def test_environment_of_the_command(tmp_path: Path) -> None:
    """Folder, run name and launch id reach the command; the name is the script's unless given."""
    show = (
        "import os; e = os.environ; "
        "print([e['SGLANG_TELEMETRY_' + n] for n in ('DIR', 'RUN')], 'SGLANG_TELEMETRY_RUN_ID' in e)"
    )
    assert run(tmp_path, sys.executable, "-c", show, options=("--run", "grpo-math")).stdout == (
        f"['{tmp_path}', 'grpo-math'] False\n"
    )


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["torchrun", "--nproc_per_node", "2", "trainer/train_grpo.py", "--lr", "1"], "train_grpo"),
        (["python", "-m", "slime.train"], "train"),
        (["./train"], "train"),
        (["accelerate", "launch", "a.py", "b.py"], "a"),
    ],
)
def test_run_is_named_after_the_script(command: list[str], name: str) -> None:
    """The first script in the command."""
    assert script_of(command) == name


@pytest.mark.parametrize(
    ("options", "command", "code", "says"),
    [
        (("--linger", "soon"), ["true"], 2, "no duration"),
        ((), [], 2, "no command"),
        ((), ["no-such-command-here"], 127, "no such command"),
    ],
)
def test_bad_command_lines(tmp_path: Path, options: tuple[str, ...], command: list[str], code: int, says: str) -> None:
    """One line that says what to do, before anything is started."""
    done = run(tmp_path, *command, options=options)
    assert done.returncode == code
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_script_whose_interpreter_is_missing(tmp_path: Path) -> None:
    """126, as shells say it, and one line."""
    script = tmp_path / "train"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = run(tmp_path / "j", str(script))
    assert done.returncode == 126
    assert "cannot be started" in done.stderr


def test_exit_code_where_the_end_of_children_is_ignored(tmp_path: Path) -> None:
    """Some supervisors start their children with SIGCHLD ignored, which would take the exit code away."""
    command = run_command(tmp_path, sys.executable, "-c", "raise SystemExit(7)")
    ignoring = f"import os,signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv({command[0]!r}, {command!r})"
    assert subprocess.run([sys.executable, "-c", ignoring], env=ENVIRONMENT, check=False).returncode == 7


def test_malformed_listen(tmp_path: Path) -> None:
    """Told at once."""
    done = subprocess.run(
        [sys.executable, "-m", "sglang_telemetry", "run", "--listen", "tcp://10.0.0.1:80", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "write HOST:PORT" in done.stderr


def test_taken_port_does_not_stop_the_training(tmp_path: Path) -> None:
    """The command runs, the line says what to do, the journals are kept."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run(tmp_path, "true", options=("--listen", listen))
    assert done.returncode == 0
    assert "NO METRICS" in done.stderr
    assert "choose another --listen" in done.stderr


def test_folder_that_cannot_be_made_does_not_stop_the_training(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file" / "j", "true")
    assert done.returncode == 0
    assert "give --dir a folder that you may write" in done.stderr


def test_exporter_that_is_there_is_used(tmp_path: Path) -> None:
    """A folder has one exporter: ``run`` finds it and leaves it alone."""
    with ExporterProcess(tmp_path) as exporter:
        done = run(tmp_path, "true")
        assert f"metrics at {exporter.url}/metrics (an exporter serves" in done.stderr
        assert exporter.get("/healthz")
        second = subprocess.run(
            [sys.executable, "-m", "sglang_telemetry", "exporter", "--dir", str(tmp_path), "--listen", "127.0.0.1:0"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert second.returncode == 2
    assert "is served already" in second.stderr


def test_exporter_outlives_its_run_as_long_as_it_is_needed(tmp_path: Path) -> None:
    """Two runs on one folder: the first one's end does not take the metrics from the second."""
    with running(tmp_path, "sleep", "60") as first:
        served_at(tmp_path)
        with running(tmp_path, "sleep", "60") as second:
            wait_until(lambda: len(list(tmp_path.glob("launch-*.jsonl"))) == 2, "the second run has begun")
            url = serving(tmp_path)
            first.send_signal(signal.SIGTERM)
            first.wait(20)
            assert serving(tmp_path) == url
            second.send_signal(signal.SIGTERM)
            second.wait(20)
    wait_until(lambda: serving(tmp_path) is None, "the exporter has ended by itself", timeout=90)


# Short sleeps: Python sleeps on when a signal comes right before it begins to, and runs its handler after that.
WAITS = (
    "import signal,sys,time\nsignal.signal(signal.{0}, lambda *a: sys.exit(5))\n"
    "open(sys.argv[1],'w').close()\nwhile True: time.sleep(0.05)"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_passed_on(tmp_path: Path, number: signal.Signals) -> None:
    """What another process sends to ``run`` reaches the command, whose exit code is returned."""
    with running(tmp_path, sys.executable, "-c", WAITS.format(number.name), str(tmp_path / "up")) as process:
        wait_until((tmp_path / "up").exists, "the command is up")
        process.send_signal(number)
        assert process.wait(20) == 5


def test_stop_that_was_asked_for_is_no_loss(tmp_path: Path) -> None:
    """A trainer inside a sync that dies of a passed-on SIGTERM was stopped, not lost: nobody is woken."""
    with Answers(lambda handler: handler.rfile.read()) as server, ExporterProcess(tmp_path) as exporter:
        trainer = (sys.executable, "-m", "tests.harness.dying_trainer", str(tmp_path), "raise", "1", server.url)
        with running(tmp_path, *trainer) as process:
            wait_until(lambda: exporter.value("weight_sync_active", run="dying", rank="0") == 1.0, "it is in a sync")
            [journal] = tmp_path.glob("dying-*.jsonl")
            process.send_signal(signal.SIGTERM)
            process.wait(20)
            os.kill(int(journal.name.split("-")[2]), signal.SIGTERM)  # the fork of that harness has no parent left
            wait_until(lambda: exporter.total("weight_sync_process_exits_total") == 1.0, "it is gone")
        assert exporter.total("weight_sync_attempts_total", result="cancelled") == 1.0
        assert exporter.total("weight_sync_failures_total") == 0.0
        assert exporter.total("weight_sync_process_exits_total", how="clean") == 1.0


def test_interrupted_twice_ends_at_once(tmp_path: Path) -> None:
    """A command that ignores Ctrl-C, and its child, are gone after the second one."""
    ignores = (
        "import signal,subprocess,sys,time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "p=subprocess.Popen(['sleep','60'])\nopen(sys.argv[1],'w').write(str(p.pid))\ntime.sleep(60)"
    )
    with running(tmp_path, sys.executable, "-c", ignores, str(tmp_path / "up")) as process:
        wait_until(lambda: (tmp_path / "up").exists() and (tmp_path / "up").read_text(), "the command is up")
        child = int((tmp_path / "up").read_text())
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        # Two of the same signal may arrive as one: the third is the second then.
        with contextlib.suppress(ProcessLookupError):
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 137
        wait_until(lambda: not _alive(child), "the command's child is gone")


def test_ctrl_c_at_a_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    """The terminal interrupts the whole group: ``run`` must not pass on a second one."""
    counts = (
        "import signal,sys,time\nn=[0]\nsignal.signal(signal.SIGINT, lambda *a: n.__setitem__(0, n[0]+1))\n"
        "open(sys.argv[1],'w').close()\nend=time.monotonic()+60\n"
        "while not n[0] and time.monotonic()<end: time.sleep(0.02)\n"
        "t=time.monotonic()+0.5\nwhile time.monotonic()<t: time.sleep(0.02)\nsys.exit(10+n[0])"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            sys.executable, run_command(tmp_path, sys.executable, "-c", counts, str(tmp_path / "up")), ENVIRONMENT
        )
    wait_until((tmp_path / "up").exists, "the command is up")
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 11


def test_lingers_until_the_last_scrape(tmp_path: Path) -> None:
    """After a failure the exporter stays until everybody who scraped has come once more; then it goes."""
    with Answers(BUSY) as server:
        go = tmp_path / "go"
        trainer = (
            f"import os,subprocess,sys,time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
            f"subprocess.run([sys.executable,'-m','tests.harness.dying_trainer',{str(tmp_path)!r},'raise','1',"
            f"{server.url!r}])\nsys.exit(3)"
        )
        with running(tmp_path, sys.executable, "-c", trainer, options=("--linger", "60s")) as process:
            url = served_at(tmp_path)
            get(f"{url}/metrics")
            go.touch()
            read_until(process, "waiting up to 60 s for the last scrape")
            assert 'cause="server_busy"' in get(f"{url}/metrics")
            assert process.wait(20) == 3
        wait_until(lambda: serving(tmp_path) is None, "the exporter has ended")


def test_who_saw_the_run_live_sees_its_good_end(tmp_path: Path) -> None:
    """Or a monitoring would have to take it for a host that is gone; the scrape says that the process ended clean."""
    go = tmp_path / "go"
    trainer = (
        f"import os,time,sglang_telemetry\nclass E:\n base_url='http://127.0.0.1:1'\n def update_policy(self): pass\n"
        f"e=E()\nsglang_telemetry.instrument(e,run='r',sinks=[sglang_telemetry.JournalSink({str(tmp_path)!r})])\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
    )
    with running(tmp_path, sys.executable, "-c", trainer, options=("--linger", "60s")) as process:
        url = served_at(tmp_path)
        wait_until(lambda: 'weight_sync_process_up{rank="0",run="r"} 1' in get(f"{url}/metrics"), "it lives")
        go.touch()
        read_until(process, "the command ended: waiting up to 60 s for the last scrape")
        assert 'weight_sync_process_exits_total{how="clean",run="r"} 1' in get(f"{url}/metrics")
        assert process.wait(20) == 0


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


FAILING = """
import sys, requests, sglang_telemetry

class Engine:
    base_url, http = sys.argv[1], requests

    def update_policy(self, model):
        if self.http.post(self.base_url + "/update_weights_from_disk", json={}, timeout=5).status_code != 200:
            raise RuntimeError("SGLang update_policy failed")

engine = Engine()
sglang_telemetry.instrument(engine)
try:
    engine.update_policy(None)
except RuntimeError:
    raise SystemExit(int(sys.argv[2]))
"""


def test_a_failed_sync_is_shown_as_a_tree(tmp_path: Path) -> None:
    """With the trace id of the log line, below it, and before the last line; never when the command was well."""
    with Answers(BUSY) as server:
        done = run(tmp_path / "j", sys.executable, "-c", FAILING, server.url, "3", options=("--run", "grpo"))
        well = run(tmp_path / "well", sys.executable, "-c", FAILING, server.url, "0")
    assert done.returncode == 3
    [line] = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    shown = done.stderr[done.stderr.index("weight_sync 1 of grpo  server_busy") :].splitlines()
    assert shown[1] == f"trace {line['trace_id']}"
    assert shown[2].split()[:2] == ["rank", "0"]
    assert any("POST 400 ◀" in one for one in shown)
    assert "weight_sync 1 of" not in well.stderr


BELIEVING = """
import os, pathlib, shutil, sys, time, requests, sglang_telemetry
from tests.cli.test_run import confirmed

class Engine:
    base_url, shared_ckpt_path, http = sys.argv[1], sys.argv[2], requests

    def update_policy(self, checkpoint):
        shutil.rmtree(self.shared_ckpt_path, ignore_errors=True)
        shutil.copytree(checkpoint, self.shared_ckpt_path)
        body = {"model_path": self.shared_ckpt_path}
        self.http.post(self.base_url + "/update_weights_from_disk", json=body, timeout=5).raise_for_status()

engine, folder = Engine(), pathlib.Path(os.environ["SGLANG_TELEMETRY_DIR"])
sglang_telemetry.instrument(engine)
for number, checkpoint in enumerate(sys.argv[3:], 1):
    if number == 2:
        while confirmed(folder) != {"grpo": True}:
            time.sleep(0.05)
    engine.update_policy(checkpoint)
while confirmed(folder) != {"grpo": False}:
    time.sleep(0.05)
"""


def confirmed(folder: Path) -> dict[str, bool]:
    """By run, whether its one server runs its weights, as the exporter of that folder says."""
    servers = json.loads(get(f"{served_at(folder)}/healthz"))["servers"]
    return {run: current for seen in servers.values() for run, current in seen["current"].items()}


def test_what_the_exporter_found_out_is_said_at_the_end(tmp_path: Path) -> None:
    """The trainer believed in a success, and ended well; nothing was said while it ran, in the middle of its output."""
    models = write_models(tmp_path / "models")
    with FakeSGLang(models / "base") as server:
        server.inject(Fault.SLOW, seconds=0.0)
        server.inject(Fault.NOT_APPLIED)
        arguments = [server.url, str(tmp_path / "c"), str(models / "v2"), str(models / "v3")]
        done = run(tmp_path / "j", sys.executable, "-c", BELIEVING, *arguments, options=("--run", "grpo"))
    assert done.returncode == 0
    _, _, found = done.stderr.partition("sglang-telemetry run: the exporter found out:\n")
    told = json.loads(found)
    assert (told["event"], told["sequence"], told["evidence"]) == ("weight_sync.not_applied", 2, "checksum")
    assert (told["claimed"], told["weights_applied"], told["cause"]) == ("yes", "no", "not_applied")


def test_nothing_found_out_is_nothing_said(tmp_path: Path) -> None:
    """Not even that nothing was."""
    assert "found out" not in run(tmp_path, sys.executable, "-c", "pass").stderr


PAUSING = """
import os, signal, sys, requests, sglang_telemetry
from sglang_telemetry.events import Remedied
from sglang_telemetry.names import Action, Component

class Engine:
    base_url, http = sys.argv[1], requests

    def update_policy(self, model):
        body = {"model_path": "/nowhere"}
        if self.http.post(self.base_url + "/update_weights_from_disk", json=body, timeout=5).status_code != 200:
            raise RuntimeError("SGLang update_policy failed")

class Killer:
    component = Component.SINK

    def emit(self, event):
        if isinstance(event, Remedied) and event.remedy.action is Action(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self):
        pass

engine = Engine()
sinks = [sglang_telemetry.JournalSink(), Killer()]
sglang_telemetry.instrument(engine, sinks=sinks, remedies=sglang_telemetry.Remedies(pause="abort"))
engine.update_policy(None)
"""


@pytest.mark.parametrize("linger", ["0s", "3s"])
def test_a_server_that_was_left_paused_is_said_once_with_what_releases_it(tmp_path: Path, linger: str) -> None:
    """Whether the exporter had the time to look or not."""
    with FakeSGLang() as server:
        options = ("--run", "grpo", "--linger", linger)
        done = run(tmp_path / "j", sys.executable, "-c", PAUSING, server.url, "pause", options=options)
        assert done.returncode == 128 + signal.SIGKILL
        assert server.state().paused is not None
        assert done.stderr.count("--release") == 1
        assert f"sglang-telemetry check --server {server.url} --release" in done.stderr
        assert server.host_port in next(
            line for line in done.stderr.splitlines() if "left" in line and "paused" in line
        )


def test_a_server_that_was_continued_or_that_somebody_else_paused_is_not_said(tmp_path: Path) -> None:
    """Not when the trainer ended right after its own release, and not when it never paused it."""
    with FakeSGLang() as server:
        released = run(tmp_path / "j", sys.executable, "-c", PAUSING, server.url, "release")
        assert (released.returncode, server.state().paused) == (128 + signal.SIGKILL, None)
        assert requests.post(f"{server.url}/pause_generation", json={}, timeout=10).status_code == 200
        failed = run(tmp_path / "j", sys.executable, "-c", FAILING, server.url, "3")
        assert failed.returncode == 3
    assert "--release" not in released.stderr + failed.stderr


def test_journals_that_cannot_be_read_cost_nothing_but_the_tree(tmp_path: Path) -> None:
    """The exit code is the command's."""
    script = (
        "import pathlib, sys; pathlib.Path(sys.argv[1], 'x-1-1.000001.jsonl').write_bytes(b'\\xff{' * 99); sys.exit(4)"
    )
    done = run(tmp_path, sys.executable, "-c", script, str(tmp_path))
    assert done.returncode == 4
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("protocol", "says"),
    [("http/protobuf", "traces by http/protobuf to http://127.0.0.1:9"), ("avian", "NO TRACES: ")],
)
def test_says_where_traces_go(tmp_path: Path, protocol: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or why they do not; the command and the metrics are none the worse."""
    monkeypatch.setitem(ENVIRONMENT, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(ENVIRONMENT, "OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    done = run(tmp_path, "true")
    assert done.returncode == 0
    lines = [line.removeprefix("sglang-telemetry run: ") for line in done.stderr.splitlines()]
    assert lines[0].startswith("metrics at http://127.0.0.1:")
    assert lines[1].startswith(says)
    assert len(lines) == 2
