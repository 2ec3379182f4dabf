"""The whole check: its findings in order, its arguments, and that it ends in time."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sglang_telemetry.checkpoint.headers import read_headers
from sglang_telemetry.preflight import Level, Report, one_server, run, story
from sglang_telemetry.preflight.folder import FolderState
from sglang_telemetry.testing import FakeSGLang, Fault
from tests.harness.processes import free_port
from tests.preflight import posted
from tests.preflight.test_folder import everything
from tests.server_truth.sites import body, site, talker
from tests.testing.checkpoints import tensors, truncate, write_folder

ENVIRON: dict[str, str] = {}
ORDER = [
    "folder",
    "room",
    "filesystem",
    "timeout",
    "checkpoint",
    "address",
    "proxy",
    "program",
    "version",
    "routes",
    "keys",
    "ready",
    "weights",
    "clock",
    "loader",
    "model",
    "visibility",
]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """What the server runs and the trainer trains."""
    return write_folder(tmp_path / "base", tensors(1))


def bad(report: Report) -> list[tuple[str, str]]:
    """Names and levels of what is not good; the file system of the tests may be any."""
    return [
        (one.name.value, one.level.value)
        for one in report.findings
        if one.level is not Level.OK and one.name != "filesystem"
    ]


def test_all_is_well(base: Path, tmp_path: Path) -> None:
    """Nothing is changed, neither here nor there."""
    shared = write_folder(tmp_path / "ckpt", tensors(2))
    before = everything(tmp_path)
    with FakeSGLang(base) as server:
        state = server.state()
        report = run([server.url], shared_path=shared, model_dir=base, timeout_seconds=120.0, environ=ENVIRON)
        assert server.state() == state
        assert posted(server) == []
        place = server.host_port
    assert bad(report) == []
    assert [one.name.value for one in report.findings] == ORDER
    assert [one.place for one in report.findings] == [str(shared)] * 5 + [place] * 12
    assert everything(tmp_path) == before


def test_dry_run(base: Path, tmp_path: Path) -> None:
    """Proved, and the server runs what it ran."""
    with FakeSGLang(base) as server:
        state = server.state()
        report = run([server.url], shared_path=tmp_path / "ckpt", model_dir=base, environ=ENVIRON, dry_run=True)
        assert server.state().checksum == state.checksum
        assert len(posted(server)) == 2
    assert bad(report) == []
    assert [one.name.value for one in report.findings] == [*ORDER, "dry run"]
    [seen] = [one for one in report.findings if one.name == "visibility"]
    assert seen.reason == f"proved: the server sees a new folder in {tmp_path}"
    assert everything(tmp_path) == ["base", "base/config.json", "base/model.safetensors"]


def test_dry_run_with_a_server_that_is_paused(base: Path, tmp_path: Path) -> None:
    """Nothing is sent."""
    with FakeSGLang(base) as server:
        server._life.engine.pause("in_place")
        report = run([server.url], shared_path=tmp_path, environ=ENVIRON, dry_run=True)
        assert posted(server) == []
    assert bad(report) == [("ready", "fail"), ("dry run", "warn")]


def test_dry_run_with_a_server_that_does_not_tell_how_it_was_started(tmp_path: Path) -> None:
    """An update kills SGLang with a weight cache: nothing is sent."""
    answers: Any = {"/ready": (200, b""), "/model_info": body(model_path="/w"), "/v1/loads": body(loads=[{}])}
    with site(answers | {"/update_weights_from_disk": (405, b"")}) as server:
        report = run([server.url], shared_path=tmp_path, environ=ENVIRON, dry_run=True)
        assert "POST" not in [how for how, path in zip(server.methods, server.paths, strict=True) if "update" in path]
    assert any("/server_info" in one.reason for one in report.findings if one.name == "dry run")


def test_dry_run_after_which_nobody_is_there(base: Path, tmp_path: Path) -> None:
    """One failure, and no second update."""
    with FakeSGLang(base, faults=[Fault.DIES_WITHOUT_ANSWER]) as server:
        report = run([server.url], shared_path=tmp_path, environ=ENVIRON, dry_run=True)
        assert len(posted(server)) == 1
    assert bad(report) == [("visibility", "fail")]


def test_everything_is_wrong(base: Path, tmp_path: Path) -> None:
    """Each server has its own findings, and what comes first is the folder."""
    torn = write_folder(tmp_path / "ckpt", tensors(2))
    truncate(torn / "model.safetensors")
    other = write_folder(tmp_path / "other", tensors(4, hidden=4))
    (other / "config.json").write_text('{"hidden_size": 4}')
    nobody = f"http://127.0.0.1:{free_port()}"
    with FakeSGLang(base, admin_api_key="k") as server, site({}, server="nginx/1.25.3") as nginx:
        report = run(
            [server.url, nobody, nginx.url, "10.0.0.7:30000", nobody],
            shared_path=torn,
            model_dir=other,
            environ={"http_proxy": "http://u:s3cr3t@proxy:3128"},
        )
    assert bad(report) == [
        ("checkpoint", "fail"),
        ("proxy", "warn"),
        ("keys", "fail"),
        ("model", "fail"),
        ("address", "fail"),
        ("proxy", "warn"),
        ("proxy", "warn"),
        ("program", "fail"),
        ("address", "fail"),
    ]
    assert report.exit_code == 2
    assert report.first is not None
    assert report.first.place == str(torn)
    assert "s3cr3t" not in report.to_json()


def test_checkpoint_alone(base: Path, tmp_path: Path) -> None:
    """After a crash there may be no server to ask."""
    torn = write_folder(tmp_path / "torn", tensors(2))
    truncate(torn / "model.safetensors")
    reports = [run([], shared_path=None, checkpoint_dir=one, environ=ENVIRON) for one in (base, torn)]
    assert [[(one.name.value, one.place, one.level.value) for one in report.findings] for report in reports] == [
        [("checkpoint", str(base), "ok")],
        [("checkpoint", str(torn), "fail")],
    ]


def test_checkpoint_beside_the_folder(base: Path, tmp_path: Path) -> None:
    """It has a heading of its own."""
    (tmp_path / "ckpt").mkdir()
    with FakeSGLang(base) as server:
        report = run([server.url], shared_path=tmp_path / "ckpt", checkpoint_dir=base, environ=ENVIRON)
    assert bad(report) == []
    assert [one.place for one in report.findings][:5] == [str(tmp_path / "ckpt")] * 4 + [str(base)]


def test_a_trainer_that_gives_its_tensors(base: Path, tmp_path: Path) -> None:
    """Without a folder for its model, and without one for its checkpoints."""
    with FakeSGLang(base) as server:
        report = run([server.url], shared_path=None, model=read_headers(base).tensors, environ=ENVIRON)
    assert bad(report) == []
    assert [one.name.value for one in report.findings] == ORDER[5:-1]
    assert next(one for one in report.findings if one.name == "model").reason.startswith("4 tensors have the names")


@pytest.mark.parametrize(
    ("forever", "every"),
    [(b"x" * 65536, 0.0), (b"x", 0.5)],
    ids=["answers without an end", "drips"],
)
def test_servers_that_never_end(forever: bytes, every: float, tmp_path: Path) -> None:
    """It ends whatever they do, which they never do."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n"
    with talker(head, forever=forever, every=every) as url:
        report = run([url], shared_path=tmp_path, environ=ENVIRON, seconds=2.0)
    assert report.level is Level.FAIL
    assert any("/ready" in one.reason for one in report.findings if one.name == "program")


def test_folder_that_hangs(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead mount holds one thread, and not the check."""
    free = threading.Event()

    def hang(path: str) -> FolderState:
        free.wait()
        raise OSError

    monkeypatch.setattr(story, "examine_folder", hang)
    with FakeSGLang(base) as server:
        report = run([server.url], shared_path=tmp_path, environ=ENVIRON, seconds=1.0)
    free.set()
    assert bad(report) == [("folder", "fail")]
    assert report.findings[0].reason == "it does not answer: whoever looks at it hangs"


def test_model_that_hangs(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user gave it, so that he is told why it is not compared: where it lies here, and where the server's does."""
    free = threading.Event()

    def hang(*_: object) -> Any:
        free.wait()
        raise OSError

    with FakeSGLang(base) as server:
        with monkeypatch.context() as patched:
            patched.setattr(story, "trainer_model", hang)
            mine = run([server.url], shared_path=tmp_path, model_dir=base, environ=ENVIRON, seconds=1.0)
        monkeypatch.setattr(one_server, "same_model", hang)
        theirs = run([server.url], shared_path=tmp_path, model_dir=base, environ=ENVIRON, seconds=1.0)
    free.set()
    hangs = "it does not answer: whoever looks at it hangs"
    said = [[one.reason for one in report.findings if one.name == "model"] for report in (mine, theirs)]
    assert said == [[f"not compared: {base}: {hangs}"], [f"not compared: {hangs}"]]
    assert bad(theirs) == [("model", "warn")]


def test_error_of_ours(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a finding, and the rest is told."""

    def broken(*_: object) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(story, "examine_folder", broken)
    monkeypatch.setattr(story, "ask", broken)
    report = run(["http://127.0.0.1:1/a"], shared_path=tmp_path, environ=ENVIRON, seconds=1.0)
    assert [(one.name.value, one.place, one.reason) for one in report.findings if one.level is Level.FAIL] == [
        ("folder", str(tmp_path), "it cannot be looked at: RuntimeError: a bug"),
        ("address", "127.0.0.1:1/a", "it cannot be checked: RuntimeError: a bug"),
    ]


def test_server_that_cannot_be_asked_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name service that hangs cannot be interrupted."""
    free = threading.Event()

    def hang(*_: object) -> Any:
        free.wait()
        raise OSError

    monkeypatch.setattr(story, "ask", hang)
    report = run(["http://gpu-7:30000"], shared_path=tmp_path, environ=ENVIRON, seconds=0.5)
    free.set()
    assert bad(report) == [("address", "fail")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"servers": []}, "name at least one server"),
        ({"servers": "http://h:1"}, "name at least one server"),
        ({"shared_path": "ckpt"}, "the shared path 'ckpt' is relative"),
        ({"shared_path": ""}, "the shared path is no path: ''"),
        ({"shared_path": "/a\nb"}, "the shared path is no path"),
        ({"model_dir": "/nowhere"}, "model /nowhere: no config.json in it: give the folder of a checkpoint"),
        ({"checkpoint_dir": "/nowhere"}, "checkpoint /nowhere: no such folder"),
        ({"timeout_seconds": 0.0}, "a time-out of 0.0 s makes no sense"),
        ({"timeout_seconds": float("nan")}, "a time-out of nan s makes no sense"),
    ],
)
def test_arguments(arguments: dict[str, Any], words: str) -> None:
    """One line that says what to write."""
    given: dict[str, Any] = {"servers": ["http://h:1"], "shared_path": "/tmp", **arguments}
    with pytest.raises(ValueError) as caught:
        run(given.pop("servers"), **given)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Work there for a while."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def test_relative_model(base: Path, tmp_path: Path) -> None:
    """Where the trainer's own model lies is nobody else's matter."""
    with in_folder(tmp_path), FakeSGLang(base) as server:
        assert bad(run([server.url], shared_path=tmp_path, model_dir="base", environ=ENVIRON)) == []
