"""``sglang-telemetry check``: what it prints on a terminal, into a pipe and as JSON, its exit codes and refusals."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from rich.console import Console

from sglang_telemetry.cli.check import lines_of, print_report
from sglang_telemetry.preflight import Check, Report
from sglang_telemetry.preflight.findings import at, fail, ok, warn
from sglang_telemetry.testing import FakeSGLang
from tests.harness.answers import Answers, Held
from tests.harness.processes import free_port
from tests.testing.checkpoints import tensors, truncate, write_folder

_CLEAN = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
REPORT = Report(
    (
        *at(
            "/share/ckpt",
            [
                ok(Check.FOLDER, "written to, and cleaned up again"),
                warn(
                    Check.FILESYSTEM,
                    "nfs4: the other side keeps what it knows of files, so that it can see an old checkpoint for up "
                    "to 60 s",
                    "mount it on the server with actimeo=1, or noac",
                ),
            ],
        ),
        *at(
            "10.0.0.7:30000",
            [
                ok(Check.ADDRESS, "it answers"),
                fail(Check.READY, "it is paused: /ready answers 503, /ping 200", "POST /continue_generation {}"),
            ],
        ),
    )
)


def check(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "sglang_telemetry", "check", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=_CLEAN | environ,
    )


def printed(report: Report, width: int) -> list[str]:
    """What a terminal of that width shows."""
    out = io.StringIO()
    print_report(report, Console(file=out, width=width, highlight=False))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_terminal() -> None:
    """A heading for each place, failures that stand out, and one line with what to do first."""
    assert printed(REPORT, 80) == [
        "/share/ckpt",
        "    ok  folder      written to, and cleaned up again",
        "  warn  filesystem  nfs4: the other side keeps what it knows of files, so that",
        "                    it can see an old checkpoint for up to 60 s",
        "                    → mount it on the server with actimeo=1, or noac",
        "10.0.0.7:30000",
        "    ok  address     it answers",
        "  FAIL  ready       it is paused: /ready answers 503, /ping 200",
        "                    → POST /continue_generation {}",
        "",
        "1 failure, 1 warning, 2 ok. First, ready of 10.0.0.7:30000: POST",
        "/continue_generation {}",
    ]


@pytest.mark.parametrize("width", [40, 80, 120, 300])
def test_width(width: int) -> None:
    """No line is longer than the terminal, and none is cut."""
    lines = printed(REPORT, width)
    assert max(map(len, lines)) <= min(width, 110)
    assert "".join("".join(lines).split()).count("actimeo=1") == 1


def test_pipe() -> None:
    """A line for each finding, in columns, for grep."""
    assert lines_of(REPORT) == [
        "ok    folder      /share/ckpt     written to, and cleaned up again",
        "warn  filesystem  /share/ckpt     nfs4: the other side keeps what it knows of files, so that it can see an "
        "old checkpoint for up to 60 s -> mount it on the server with actimeo=1, or noac",
        "ok    address     10.0.0.7:30000  it answers",
        "FAIL  ready       10.0.0.7:30000  it is paused: /ready answers 503, /ping 200 -> POST /continue_generation {}",
        "1 failure, 1 warning, 2 ok. First, ready of 10.0.0.7:30000: POST /continue_generation {}",
    ]
    assert lines_of(Report((ok(Check.ADDRESS, "it answers"),)))[-1] == "1 ok."


def test_good_and_bad(tmp_path: Path) -> None:
    """Exit codes, and nothing on stderr."""
    base = write_folder(tmp_path / "base", tensors(1))
    with FakeSGLang(base) as server:
        arguments = ("--server", server.url, "--shared-path", tmp_path / "ckpt", "--model", base, "--timeout", "120")
        good = check(*arguments, "--dry-run")
        server._life.engine.pause("retract")
        paused = check(*arguments)
    assert (good.returncode, good.stderr) == (0, ""), good.stdout
    assert good.stdout.splitlines()[-1] == "18 ok."
    assert (paused.returncode, paused.stderr) == (2, "")
    assert paused.stdout.splitlines()[-1] == (
        f"1 failure, 16 ok. First, ready of {server.host_port}: POST /continue_generation {{}}"
    )


def test_checkpoint_alone(tmp_path: Path) -> None:
    """What a page says to run after a crash."""
    base = write_folder(tmp_path / "base", tensors(1))
    whole = check("--checkpoint", base)
    truncate(base / "model.safetensors")
    torn = check("--checkpoint", base)
    assert (whole.returncode, whole.stderr, whole.stdout.splitlines()[-1]) == (0, "", "1 ok.")
    assert (torn.returncode, torn.stderr) == (2, "")
    assert torn.stdout.startswith(f"FAIL  checkpoint  {base}  model.safetensors: ")


def test_warnings_alone(tmp_path: Path) -> None:
    """Exit code 1."""
    with FakeSGLang() as server:
        done = check("--server", server.url, "--shared-path", tmp_path, http_proxy="http://u:s3cr3t@proxy:3128")
    assert (done.returncode, done.stderr, "s3cr3t" in done.stdout) == (1, "", False)
    assert done.stdout.splitlines()[-1].endswith("proxy of " + server.host_port + ': export NO_PROXY="127.0.0.1"')


def test_json(tmp_path: Path) -> None:
    """One object and nothing else; keys in the environment are used and not shown."""
    base = write_folder(tmp_path / "base", tensors(1))
    with FakeSGLang(base, admin_api_key="k-90ab-admin") as server:
        done = check(
            "--server",
            server.url,
            "--shared-path",
            tmp_path,
            "--json",
            SGLANG_TELEMETRY_ADMIN_API_KEY="k-90ab-admin",
        )
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr, "k-90ab" in done.stdout) == (0, "", False)
    assert (found["format"], found["level"], found["exit_code"], found["first"]) == (1, "ok", 0, None)
    assert {frozenset(one) for one in found["findings"]} == {frozenset(("name", "level", "place", "reason", "fix"))}
    assert {
        "name": "keys",
        "level": "ok",
        "place": server.host_port,
        "reason": "the key that is set here is accepted",
    }.items() <= next(one for one in found["findings"] if one["name"] == "keys").items()


def test_on_a_terminal(tmp_path: Path) -> None:
    """As a person sees it, of a server that is not there."""
    import pty

    port = free_port()
    command = [sys.executable, "-m", "sglang_telemetry", "check", "--server", f"http://127.0.0.1:{port}"]
    master, terminal = pty.openpty()
    environ = _CLEAN | {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [*command, "--shared-path", str(tmp_path)], stdout=terminal, stderr=terminal, env=environ
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    assert process.wait(30) == 2
    text = re.sub(r"\x1b\[[0-9;]*m|\r", "", shown.decode())
    assert f"FAIL  address     nobody listens on 127.0.0.1:{port} (connection refused)" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--server is missing: write --server http://10.0.0.7:30000"),
        (("--server", "http://h:1"), "--shared-path is missing"),
        (("--server", "http://h:1", "--shared-path", "ckpt"), "the shared path 'ckpt' is relative"),
        (("--server", "http://h:1", "--shared-path", "/tmp", "--model", "/nowhere"), "model /nowhere: no config.json"),
        (("--server", "http://h:1", "--shared-path", "/tmp", "--timeout", "soon"), "--timeout 'soon' is no duration"),
        (("--server", "http://h:1", "--shared-path", "/tmp", "--timeout", "0"), "a time-out of 0.0 s makes no sense"),
    ],
)
def test_refused(arguments: tuple[str, ...], words: str) -> None:
    """One line, and exit code 2."""
    done = check(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"sglang-telemetry check: {words}")


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends it without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        url = f"http://127.0.0.1:{hole.getsockname()[1]}"
        command = [sys.executable, "-m", "sglang_telemetry", "check", "--server", url, "--shared-path", str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_CLEAN)
        with hole.accept()[0] as connection:
            connection.recv(1)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == 130


def test_letters_that_the_output_has_not(tmp_path: Path) -> None:
    """They are replaced."""
    done = check("--server", "h:1", "--shared-path", tmp_path / "modèle", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr, "mod?le" in done.stdout) == (2, "", True)


def test_keys_that_contradict(tmp_path: Path) -> None:
    """Told before anything is asked, without the key."""
    given = {"SGLANG_TELEMETRY_API_KEY": "k-1", "SGLANG_TELEMETRY_API_KEY_FILE": "/k"}
    done = check("--server", "http://h:1", "--shared-path", tmp_path, **given)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "sglang-telemetry check: SGLANG_TELEMETRY_API_KEY and SGLANG_TELEMETRY_API_KEY_FILE are both set: "
        "unset one of them\n"
    )


def test_a_server_that_was_left_paused_is_released() -> None:
    """Once; a second time there is nothing to do, and one that is away is a failure."""
    with FakeSGLang() as server:
        assert requests.post(f"{server.url}/pause_generation", json={}, timeout=10).status_code == 200
        done = check("--server", server.url, "--release")
        assert (done.returncode, done.stdout.splitlines()) == (
            0,
            [f"ok    ready  {server.host_port}  released: generation goes on", "1 ok."],
        )
        assert server.state().paused is None
        again = json.loads(check("--server", server.url, "--release", "--json").stdout)
        assert again["findings"][0]["reason"] == "it was not paused: /ready answers 200"
        assert sum(one.path == "/continue_generation" for one in server.requests) == 1
    away = check("--server", server.url, "--release")
    assert away.returncode == 2
    assert "nobody listens" in away.stdout


def test_a_release_wants_the_admin_key() -> None:
    """And shows it when it is given."""
    with FakeSGLang(admin_api_key="secret-key") as server:
        key = {"Authorization": "Bearer secret-key"}
        assert requests.post(f"{server.url}/pause_generation", json={}, headers=key, timeout=10).status_code == 200
        refused = check("--server", server.url, "--release")
        assert refused.returncode == 2
        assert "/continue_generation answers 401: it wants the admin key" in refused.stdout
        done = check("--server", server.url, "--release", SGLANG_TELEMETRY_ADMIN_API_KEY="secret-key")
        assert (done.returncode, server.state().paused) == (0, None)


def test_a_release_does_nothing_else(tmp_path: Path) -> None:
    """What else is asked for with it is refused."""
    done = check(
        "--server", "http://127.0.0.1:1", "--release", "--shared-path", tmp_path, "--dry-run", "--timeout", "9"
    )
    assert done.returncode == 2
    assert "--release goes with --server alone: leave out --shared-path, --timeout, --dry-run" in done.stderr
    alone = check("--checkpoint", tmp_path, "--release")
    assert (alone.returncode, "leave out --checkpoint" in alone.stderr) == (2, True)


def test_a_release_on_a_terminal_without_the_letters() -> None:
    """What a server says is printed all the same."""
    with Answers((500, "Nicht möglich →".encode())) as server:
        done = check("--server", server.url, "--release", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.returncode == 2
    assert "/continue_generation answers 500: Nicht m?glich ?" in done.stdout


def test_a_release_that_is_interrupted() -> None:
    """Ends as any other check does."""
    held = Held((200, b"{}"))
    with Answers(held) as server, held:
        command = [sys.executable, "-m", "sglang_telemetry", "check", "--server", server.url, "--release"]
        process = subprocess.Popen(command, env=_CLEAN, stderr=subprocess.PIPE, text=True)
        assert held.asked.wait(30)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "")
