"""Remedies and the promises to the trainer: off they change nothing, what cannot work is refused, pauses are undone."""

import json
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

import sglang_telemetry
from sglang_telemetry import Applied, FailureCause, Phase, Remedied, Remedies, Result
from sglang_telemetry.exporter.per_server import of_each_server
from sglang_telemetry.remedies.host_lock import HostLock
from sglang_telemetry.testing import FakeSGLang, Fault, RecordingSink
from tests.harness.answers import Answers
from tests.harness.minimind import ManyServersEngine, SavableModel, SharedFolderEngine
from tests.harness.policy import Policy, policy_engine
from tests.harness.processes import wait_until
from tests.harness.remedy_matrix import said
from tests.server_truth.sites import body, site

ALL = Remedies(
    validate=True,
    publish_atomically=True,
    retry=True,
    timeout="auto",
    pause="retract",
    serialize=True,
    on_failure="continue_stale",
    stale_syncs=1,
)


@pytest.fixture
def server(models: Path) -> Iterator[FakeSGLang]:
    """A server with its start weights."""
    with FakeSGLang(models / "base") as server:
        yield server


def files(folder: Path) -> dict[str, bytes]:
    """All that lies in a folder."""
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


@pytest.mark.parametrize("content", ["v2", "missing", "noweights"])
def test_off_they_change_nothing(content: str, models: Path, tmp_path: Path) -> None:
    """Requests, files and results are byte for byte those of the bare engine."""
    seen = []
    for name in ("bare", "observed"):
        # One folder for both, since its path is in the request.
        folder = tmp_path / "checkpoint"
        with FakeSGLang(models / "base") as server:
            engine = policy_engine(server.url, tmp_path)
            policy = Policy(models)
            policy.content = content
            if name == "observed":
                sglang_telemetry.instrument(engine, sinks=[], remedies=Remedies(), propagate=False)
            try:
                result: Any = engine.update_policy(policy)
            except RuntimeError as error:
                result = (type(error), error.args)
            sent = [(one.method, one.path, {**one.headers, "host": ""}, one.body) for one in server.requests]
            seen.append((result, sent, files(folder), vars(engine).keys() - {"update_policy", "flush_cache"}))
    assert seen[0] == seen[1]


def test_all_of_them_at_once(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """A good sync with everything on: the server loads from the engine's folder, and is asked in the right order."""
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=ALL):
        assert engine.update_policy(Policy(models)) is True
        assert engine.shared_ckpt_path == str(tmp_path / "checkpoint")
    assert said(sink.events) == [
        "validate done",
        "publish done",
        "serialize done",
        "timeout skipped",
        "pause done",
        "release done",
    ]
    asked = [one.path for one in server.requests if one.method == "POST"]
    assert asked == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
    assert server.updates[0].json() == {"model_path": str(tmp_path / "checkpoint")}
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]
    assert files(tmp_path / "checkpoint") == files(models / "v2")
    record = sink.records[0]
    assert [one.action for one in record.remedies] == [one.split()[0] for one in said(sink.events)]
    assert record.result is Result.SUCCESS
    assert record.phase_seconds().keys() == {Phase.SETUP, Phase.STATE_DICT, Phase.SAVE, Phase.OTHER, Phase.REQUEST}


def test_a_refused_checkpoint_is_told_as_what_it_is(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """No request was made; the record says what is wrong, and the engine printed what it prints of a refusal."""
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    policy = Policy(models)
    policy.content = "truncated"
    with (
        sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(validate=True)),
        pytest.raises(RuntimeError, match="SGLang update_policy failed"),
    ):
        engine.update_policy(policy)
    record = sink.records[0]
    assert (server.updates, record.exchanges, record.decisive) == ((), (), None)
    assert (record.cause, record.weights_applied) == (FailureCause.CHECKPOINT_INVALID, Applied.NO)
    assert record.failed_phase is Phase.SAVE
    assert record.error_text is not None
    assert record.error_text.startswith("not sent: model.safetensors")


def test_an_engine_that_raises_for_a_status_does_so(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """The answer that no server gave is one of the client's own kind."""

    class Raising(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            model.save_pretrained(self.shared_ckpt_path)
            answer = self.http.post(
                f"{self.base_url}/update_weights_from_disk", json={"model_path": self.shared_ckpt_path}, timeout=5
            )
            assert isinstance(answer, requests.Response)
            assert answer.json()["success"] is False
            answer.raise_for_status()
            return True

    engine = Raising(server.url, str(tmp_path / "checkpoint"))
    policy = Policy(models)
    policy.content = "missing"
    with (
        sglang_telemetry.instrument(engine, sinks=[], remedies=Remedies(validate=True)),
        pytest.raises(requests.HTTPError, match="400 Client Error"),
    ):
        engine.update_policy(policy)


def _raise_for(answer: requests.Response, *args: Any, **named: Any) -> None:
    answer.raise_for_status()


@pytest.mark.parametrize("whose", ["session", "call"])
def test_a_client_that_raises_in_a_hook_does_so(whose: str, server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """Its engine looks at no status, and would take the refused update for one that was taken."""

    class Trusting(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            model.save_pretrained(self.shared_ckpt_path)
            url, body = f"{self.base_url}/update_weights_from_disk", {"model_path": self.shared_ckpt_path}
            hooks = {"hooks": {"response": _raise_for}} if whose == "call" else {}
            self.http.post(url, json=body, timeout=5, **hooks)
            return True

    engine, policy = Trusting(server.url, str(tmp_path / "checkpoint")), Policy(models)
    engine.http = requests.Session()
    if whose == "session":
        engine.http.hooks["response"].append(_raise_for)
    policy.content = "missing"
    with (
        sglang_telemetry.instrument(engine, sinks=[], remedies=Remedies(validate=True)),
        pytest.raises(requests.HTTPError, match="400 Client Error"),
    ):
        engine.update_policy(policy)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), RuntimeError("ours"), requests.ReadTimeout()])
def test_a_pause_is_undone_whatever_happens(
    error: BaseException, server: FakeSGLang, models: Path, tmp_path: Path
) -> None:
    """Ctrl-C, a time-out, an error of ours: generation goes on."""
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    during = []

    class Failing(requests.Session):
        def post(self, url: Any, *args: Any, **named: Any) -> requests.Response:  # type: ignore[override]
            if "update_weights" in str(url):
                during.append(server.state().paused)
                raise error
            return super().post(url, *args, **named)

    engine.http = Failing()
    wanted = type(error) if not isinstance(error, Exception) else RuntimeError
    with (
        sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(pause="abort")),
        pytest.raises(wanted),
    ):
        engine.update_policy(Policy(models))
    assert (during, server.state().paused) == (["abort"], None)
    assert said(sink.events)[-1] == "release done"


def test_a_pause_is_not_undone_by_a_forked_child(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """One that is forked between pause and continue, and unwinds: its parent still sends."""
    engine, parent = policy_engine(server.url, tmp_path), os.getpid()
    left: list[Any] = []

    class Forking(requests.Session):
        def post(self, url: Any, *args: Any, **named: Any) -> requests.Response:  # type: ignore[override]
            if "update_weights" not in str(url):
                return super().post(url, *args, **named)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads of the stand-in live in the parent alone
                child = os.fork()
            if not child:
                sys.exit()
            os.waitpid(child, 0)
            left.append(server.state().paused)
            return super().post(url, *args, **named)

    engine.http = Forking()
    try:
        with sglang_telemetry.instrument(engine, sinks=[], remedies=Remedies(pause="abort")):
            assert engine.update_policy(Policy(models)) is True
    finally:
        if os.getpid() != parent:
            os._exit(0)
    assert left == ["abort"]
    assert server.state().paused is None


def test_relative_urls_are_of_the_clients_server(
    server: FakeSGLang, models: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Each server has its own turn, and what a query says is nobody's business."""
    locks: list[str] = []
    monkeypatch.setattr(HostLock, "__init__", _noting(HostLock.__init__, locks))

    class Relative(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            model.save_pretrained(self.shared_ckpt_path)
            url = "/update_weights_from_disk?token=hunter2"
            return bool(self.http.post(url, json={"model_path": self.shared_ckpt_path}).status_code == 200)

    engine, sink = Relative("", str(tmp_path / "checkpoint")), RecordingSink()
    remedies = Remedies(serialize=True, pause="abort")
    with httpx.Client(base_url=server.url) as http:
        engine.http = http  # type: ignore[assignment]
        with sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies):
            assert engine.update_policy(Policy(models)) is True
    assert said(sink.events) == ["serialize done", "pause done", "release done"]
    assert {one.target.server for one in sink.events if isinstance(one, Remedied)} == {server.host_port}
    assert locks == [server.host_port]
    assert "hunter2" not in repr(sink.events)


def _noting(original: Any, seen: list[str]) -> Any:
    def noting(self: HostLock, folder: Path, server: str) -> None:
        seen.append(server)
        original(self, folder, server)

    return noting


def test_a_running_request_survives_a_retract(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """It is generated by both policies, as with the real server."""
    engine = policy_engine(server.url, tmp_path)
    answers: list[Any] = []
    asked = {"text": "a", "sampling_params": {"max_new_tokens": 8}, "seconds": 1.0}
    thread = threading.Thread(
        target=lambda: answers.append(requests.post(f"{server.url}/generate", json=asked, timeout=20).json())
    )
    thread.start()
    wait_until(lambda: server.state().running == 1, "it is being generated")
    with sglang_telemetry.instrument(engine, sinks=[], remedies=Remedies(pause="retract", tag_weights=True)):
        engine.update_policy(Policy(models))
    thread.join()
    assert answers[0]["meta_info"]["finish_reason"]["type"] != "abort"
    assert answers[0]["meta_info"]["num_retractions"] == 1


def test_a_server_that_cannot_be_paused_is_updated_without(models: Path, tmp_path: Path) -> None:
    """The pause is told as failed, and nothing has to be released."""
    with FakeSGLang(models / "base", admin_api_key="secret-key") as server:
        engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
        with (
            sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(pause="abort")),
            pytest.raises(RuntimeError),
        ):
            engine.update_policy(Policy(models))
    assert said(sink.events) == ["pause failed"]
    assert sink.records[0].cause is FailureCause.UNAUTHORIZED


def test_what_the_update_carries_its_pause_carries_too(models: Path, tmp_path: Path) -> None:
    """An engine that shows a key shows it for the pause; the key is in no event."""
    with FakeSGLang(models / "base", admin_api_key="secret-key") as server:
        engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
        engine.http.headers["Authorization"] = "Bearer secret-key"
        with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(pause="abort")):
            assert engine.update_policy(Policy(models)) is True
    assert said(sink.events) == ["pause done", "release done"]
    assert "secret-key" not in repr(sink.events)


@pytest.mark.parametrize("client", [requests.Session, httpx.Client])
def test_a_key_that_cannot_be_sent_is_in_no_event(
    client: Any, server: FakeSGLang, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was read from a file with its line's end; the exceptions of clients show it."""
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    with client() as engine.http:
        engine.http.headers["X-Key"] = "s3cr3t-value\n"
        remedies = Remedies(pause="abort", retry=True, timeout="auto")
        with (
            sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies),
            pytest.raises(RuntimeError),
        ):
            engine.update_policy(Policy(models))
    assert "s3cr3t" in capsys.readouterr().out  # the engine's own print, which is left alone
    assert "s3cr3t" not in repr(sink.events)
    assert sink.records[0].cause is FailureCause.PROTOCOL


def test_no_two_updates_at_once(server: FakeSGLang, models: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Who does not get his turn in time does not send, and says why."""
    monkeypatch.setenv("SGLANG_TELEMETRY_DIR", str(tmp_path / "journals"))
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    other = HostLock(tmp_path / "journals" / "locks", server.host_port)
    assert other.acquire(0.0)
    remedies = Remedies(serialize=True, deadline_seconds=0.2)
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies):
        with pytest.raises(RuntimeError):
            engine.update_policy(Policy(models))
        other.release()
        assert engine.update_policy(Policy(models)) is True
    assert said(sink.events) == ["serialize refused", "serialize done"]
    assert (sink.records[0].cause, sink.records[0].weights_applied) == (FailureCause.SERVER_BUSY, Applied.NO)
    assert len(server.updates) == 1


def test_one_of_several_servers_is_refused(
    server: FakeSGLang, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is of the one that was not sent the update; the others have taken it, and theirs says so."""
    monkeypatch.setenv("SGLANG_TELEMETRY_DIR", str(tmp_path / "journals"))
    sink, remedies = RecordingSink(), Remedies(serialize=True, deadline_seconds=0.2)
    with FakeSGLang(models / "base") as second:
        other = HostLock(tmp_path / "journals" / "locks", second.host_port)
        assert other.acquire(0.0)
        engine = ManyServersEngine([second.url, server.url], str(tmp_path / "checkpoint"))
        with sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies), pytest.raises(RuntimeError):
            engine.update_policy(Policy(models))
        record = sink.records[0]
        assert (record.result, record.cause) == (Result.FAILURE, FailureCause.SERVER_BUSY)
        assert (record.target.server, record.weights_applied) == (second.host_port, Applied.NO)
        assert (record.decisive, record.error_type) == (None, "server_busy")
        assert [one.weights_applied for one in record.exchanges] == [Applied.YES]
        of_each = [(one.target.server, one.weights_applied, one.result) for _, one in of_each_server(record)]
        assert of_each == [
            (second.host_port, Applied.NO, Result.FAILURE),
            (server.host_port, Applied.YES, Result.SUCCESS),
        ]


def test_the_first_of_several_troubles_is_the_records(
    server: FakeSGLang, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that had failed before another one was refused is what went wrong."""
    monkeypatch.setenv("SGLANG_TELEMETRY_DIR", str(tmp_path / "journals"))
    sink, remedies = RecordingSink(), Remedies(serialize=True, deadline_seconds=0.2)
    with FakeSGLang(models / "base") as second:
        assert HostLock(tmp_path / "journals" / "locks", second.host_port).acquire(0.0)
        server.inject(Fault.OUT_OF_MEMORY)
        engine = ManyServersEngine([server.url, second.url], str(tmp_path / "checkpoint"))
        with sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies), pytest.raises(RuntimeError):
            engine.update_policy(Policy(models))
    record = sink.records[0]
    assert (record.target.server, record.cause) == (server.host_port, FailureCause.OUT_OF_MEMORY)
    assert record.decisive == 0


def test_an_engine_that_sends_again_after_a_refusal(
    server: FakeSGLang, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server took in the end is what the sync came to."""
    monkeypatch.setenv("SGLANG_TELEMETRY_DIR", str(tmp_path / "journals"))
    other = HostLock(tmp_path / "journals" / "locks", server.host_port)
    assert other.acquire(0.0)

    class Persistent(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            model.save_pretrained(self.shared_ckpt_path)
            url, body = f"{self.base_url}/update_weights_from_disk", {"model_path": self.shared_ckpt_path}
            while self.http.post(url, json=body, timeout=5).status_code != 200:
                other.release()
            return True

    engine, sink = Persistent(server.url, str(tmp_path / "checkpoint")), RecordingSink()
    remedies = Remedies(serialize=True, deadline_seconds=0.2)
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies):
        assert engine.update_policy(Policy(models)) is True
    assert said(sink.events) == ["serialize refused", "serialize done"]
    record = sink.records[0]
    assert (record.result, record.weights_applied, record.cause) == (Result.SUCCESS, Applied.YES, None)
    assert (record.target.server, record.decisive) == (server.host_port, 0)


def test_the_chosen_time_out_is_the_requests(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """And the record's, from which the metric is."""
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    given: list[Any] = []

    class Asked(requests.Session):
        def post(self, url: Any, *args: Any, **named: Any) -> requests.Response:  # type: ignore[override]
            given.append(named["timeout"])
            return super().post(url, *args, **named)

    engine.http = Asked()
    remedies = Remedies(timeout="auto", timeout_floor_seconds=33)
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies):
        engine.update_policy(Policy(models))
        engine.update_policy(Policy(models))
    assert given == [20, 33]
    assert [one.target.timeout_seconds for one in sink.records] == [20, 33]
    assert [one.remedy.detail for one in sink.events if isinstance(one, Remedied)][1].startswith("33 s for 0.0 MB")


def test_a_retry_is_another_attempt(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """Both requests are in the record; what the last one brought is the result."""
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    server.inject(Fault.RATE_LIMITED, times=2)
    with (
        sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(retry=True)),
        pytest.raises(RuntimeError),
    ):
        engine.update_policy(Policy(models))
    record = sink.records[0]
    assert said(sink.events) == ["flush done", "retry failed"]
    assert record.attempts == 2
    assert [one.status_code for one in record.exchanges] == [429, 200, 429]
    assert (record.cause, record.result) == (FailureCause.SERVER_BUSY, Result.FAILURE)


@pytest.mark.parametrize("text", ["A weight-update session is already open.", "Weight update already in progress"])
def test_no_retry_beside_another_update(text: str, models: Path, tmp_path: Path) -> None:
    """A gateway says 429 of it, as of everything that has to wait."""
    sink = RecordingSink()
    with Answers((429, json.dumps({"success": False, "message": text}).encode())) as server:
        engine = policy_engine(server.url, tmp_path)
        with (
            sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(retry=True)),
            pytest.raises(RuntimeError),
        ):
            engine.update_policy(Policy(models))
    assert (len(server.requests), said(sink.events)) == (1, [])
    assert (sink.records[0].cause, sink.records[0].weights_applied) == (FailureCause.SERVER_BUSY, Applied.NO)


class Async:
    """Sends from an event loop."""

    http = requests

    async def update_policy(self, model: Any) -> None:
        """Nothing."""


class WithoutClient:
    """Sends in its own way."""

    def update_policy(self, model: Any) -> None:
        """Nothing."""


class StrangeClient(WithoutClient):
    """Sends with something that is not known."""

    class http:
        """It has the methods."""

        @staticmethod
        def post(url: str) -> None:
            """Nothing."""

        get = post


class Impatient(WithoutClient):
    """Sends with a client that has one time-out for all."""

    class http:
        """It knows no other."""

        @staticmethod
        def post(url: str, json: Any = None) -> None:
            """Nothing."""

        get = post


class WithoutFolder(WithoutClient):
    """Does not say where it saves to."""

    http = requests


@pytest.mark.parametrize(
    ("engine", "remedies", "says"),
    [
        (Async(), Remedies(validate=True), "validate: Async.update_policy is a coroutine function"),
        (WithoutClient(), Remedies(retry=True, pause="abort"), "retry, pause: WithoutClient has no attribute http"),
        (StrangeClient(), Remedies(validate=True, retry=True), "validate: StrangeClient.http is a type"),
        (Impatient(), Remedies(timeout="auto"), "timeout: Impatient.http.post takes no timeout; give it that argument"),
        (Impatient(), Remedies(pause="abort", serialize=False, retry=True), "retry, pause: Impatient.http.post takes"),
        (WithoutFolder(), Remedies(publish_atomically=True), "WithoutFolder has no attribute shared_ckpt_path"),
    ],
)
def test_what_cannot_work_is_refused(engine: Any, remedies: Remedies, says: str) -> None:
    """At once, with the reason; the engine is left as it was."""
    sink = RecordingSink()
    with pytest.raises(ValueError, match=r"use|give|leave") as raised:
        sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies)
    assert says in str(raised.value)
    assert "update_policy" not in vars(engine)
    assert sink.closed


class Home:
    """A client of somebody's own, around requests."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def post(self, url: str, json: Any = None, *, timeout: float = 20, headers: Any = None) -> requests.Response:
        """Send."""
        self.given.append(timeout)
        return requests.post(url, json=json, timeout=timeout, headers=headers)

    def get(self, url: str, **named: Any) -> requests.Response:
        """Send."""
        return requests.get(url, **named)


class HomeWithAny(Home):
    """It hands on what it gets."""

    def post(self, url: str, **named: Any) -> requests.Response:  # type: ignore[override]
        """Send."""
        return super().post(url, **named)


@pytest.mark.parametrize("kind", [Home, HomeWithAny])
def test_a_home_made_client_that_takes_a_time_out(
    kind: type[Home], server: FakeSGLang, models: Path, tmp_path: Path
) -> None:
    """By its name, or with all the others."""
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    engine.http = home = kind()
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(pause="abort", timeout="auto")):
        assert engine.update_policy(Policy(models)) is True
    assert said(sink.events) == ["timeout skipped", "pause done", "release done"]
    assert home.given == [60.0, 20, 60.0]


def test_a_client_that_does_not_say_what_it_takes_is_not_refused(tmp_path: Path) -> None:
    """Such as one in C."""

    class Post:
        __signature__ = "unreadable"

        def __call__(self, url: str, **named: Any) -> None:
            """Nothing."""

    class Unreadable(WithoutClient):
        class http:
            """It has the methods."""

            post = get = Post()

    sglang_telemetry.instrument(Unreadable(), sinks=[], remedies=Remedies(timeout="auto")).uninstrument()


def test_a_client_that_was_put_there_later_needs_no_get(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """The checkpoint is looked at all the same, and a server that refuses is not asked again and again."""

    class Posts:
        """It can do nothing else."""

        post = staticmethod(requests.post)

    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(publish_atomically=True, pause="abort")):
        engine.http = Posts()  # type: ignore[assignment]
        assert engine.update_policy(Policy(models)) is True
    assert said(sink.events) == ["publish done", "pause done", "release done"]


def test_a_server_that_nobody_can_ask_for_is_not_called_gone(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """It may be paused still."""

    class Fails:
        """It can pause, and nothing more."""

        @staticmethod
        def post(url: str, **named: Any) -> requests.Response:
            """Send, or not."""
            if "continue" in url:
                raise requests.ConnectionError("broken")
            return requests.post(url, **named)

    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(pause="abort")):
        engine.http = Fails()
        assert engine.update_policy(Policy(models)) is True
    assert said(sink.events) == ["pause done", "release failed"]


def test_a_server_without_the_route_is_refused(server: FakeSGLang, tmp_path: Path, monkeypatch: Any) -> None:
    """Where it is up and says which routes it has."""
    from sglang_telemetry.testing import fake_routes

    routes = {path: route for path, route in fake_routes._ROUTES.items() if path != "/pause_generation"}
    monkeypatch.setattr(fake_routes, "_ROUTES", routes)
    with pytest.raises(ValueError, match=r"pause: the server at .* has no route /pause_generation; use an SGLang"):
        sglang_telemetry.instrument(policy_engine(server.url, tmp_path), sinks=[], remedies=Remedies(pause="abort"))


@pytest.mark.parametrize("path", ["/{path}", "/{path:path}", "/{proxy+}", "/*", "/{tenant}/{path}"])
def test_a_gateway_that_takes_every_route_refuses_nothing(path: str, tmp_path: Path) -> None:
    """What lies behind it its own document does not say."""
    with site({"/openapi.json": body(paths={key: {} for key in ["/health", path]})}) as server:
        remedies = Remedies(pause="abort", retry=True)
        sglang_telemetry.instrument(policy_engine(server.url, tmp_path), sinks=[], remedies=remedies).uninstrument()


def test_a_route_with_a_part_that_varies_is_no_other_route(tmp_path: Path) -> None:
    """A server of that kind does say what it has."""
    with (
        site({"/openapi.json": body(paths={key: {} for key in ["/health", "/v1/models/{name}"]})}) as server,
        pytest.raises(ValueError, match="no route /flush_cache"),
    ):
        sglang_telemetry.instrument(policy_engine(server.url, tmp_path), sinks=[], remedies=Remedies(retry=True))


def test_a_server_that_is_not_up_yet_refuses_nothing(tmp_path: Path) -> None:
    """It may be started after the trainer."""
    with FakeSGLang() as server:
        pass
    engine = policy_engine(server.url, tmp_path)
    sglang_telemetry.instrument(engine, sinks=[], remedies=Remedies(pause="abort", retry=True)).uninstrument()


class Safe(SavableModel):
    """Saves as it is told to; safetensors only where it can."""

    can = True

    def save_pretrained(self, path: str, state_dict: Any = None, safe_serialization: bool = True) -> None:
        """One file."""
        Path(path).mkdir(parents=True, exist_ok=True)
        name = "model.safetensors" if safe_serialization else "pytorch_model.bin"
        (Path(path) / name).write_text(json.dumps([safe_serialization]))
        if safe_serialization and not self.can:
            raise RuntimeError("Some tensors share memory")


def test_safetensors_in_the_place_of_pickle(server: FakeSGLang, tmp_path: Path) -> None:
    """The engine asks for pickle, and safetensors are saved."""
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    server.inject(Fault.NOT_APPLIED)
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(safetensors=True)):
        assert engine.update_policy(Safe()) is True
    assert said(sink.events) == ["safetensors done"]
    assert files(tmp_path / "checkpoint").keys() == {"model.safetensors"}


def test_a_model_that_cannot_be_saved_as_safetensors(server: FakeSGLang, tmp_path: Path) -> None:
    """It is saved as the engine asks for, nothing of the attempt is left, and it is not tried again."""
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    server.inject(Fault.NOT_APPLIED, times=2)
    model = Safe()
    model.can = False
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(safetensors=True)):
        assert engine.update_policy(model) is True
        assert engine.update_policy(model) is True
    assert said(sink.events) == ["safetensors failed"]
    assert files(tmp_path / "checkpoint").keys() == {"pytorch_model.bin"}


def test_an_attempt_removes_nothing_that_it_has_not_written(server: FakeSGLang, tmp_path: Path) -> None:
    """Safetensors of somebody else in the same folder stay."""
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    server.inject(Fault.NOT_APPLIED)
    live = tmp_path / "checkpoint"
    live.mkdir()
    for name in ("adapter_model.safetensors", "value_head.safetensors.index.json"):
        (live / name).write_text("of another")
    model = Safe()
    model.can = False
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(safetensors=True)):
        assert engine.update_policy(model) is True
    kept = {"adapter_model.safetensors", "value_head.safetensors.index.json"}
    assert files(live).keys() == kept | {"pytorch_model.bin"}


def test_weights_are_tagged_where_that_is_asked_for(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """As ``instrument(tag_weights=True)`` does."""
    engine = policy_engine(server.url, tmp_path)
    with sglang_telemetry.instrument(engine, run="grpo", sinks=[], remedies=Remedies(tag_weights=True)):
        engine.update_policy(Policy(models))
    assert server.state().weight_version.startswith("grpo:")


def test_what_the_environment_asks_for(server: FakeSGLang, models: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Without a line of code; what the code asks for counts alone."""
    monkeypatch.setenv("SGLANG_TELEMETRY_REMEDIES", "validate, pause=retract")
    engine, sink = policy_engine(server.url, tmp_path), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink]):
        engine.update_policy(Policy(models))
    assert said(sink.events) == ["validate done", "pause done", "release done"]
    sink = RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies()):
        engine.update_policy(Policy(models))
    assert said(sink.events) == []


@pytest.mark.parametrize("named", ["its own", "another"])
def test_what_was_not_saved_in_the_folder_is_not_published(
    named: str, server: FakeSGLang, models: Path, tmp_path: Path
) -> None:
    """An engine that sends what somebody else has saved, into its folder or into another: that is what is sent."""
    live = tmp_path / "checkpoint"
    shutil.copytree(models / "v2", live)
    other = models / "v3"

    class Sends(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            folder = self.shared_ckpt_path if named == "its own" else str(other)
            url = f"{self.base_url}/update_weights_from_disk"
            return bool(self.http.post(url, json={"model_path": folder}, timeout=5).status_code == 200)

    engine, sink = Sends(server.url, str(live)), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=Remedies(publish_atomically=True)):
        assert engine.update_policy(None) is True
    assert said(sink.events) == ["publish skipped"]
    assert server.updates[0].json() == {"model_path": str(live if named == "its own" else other)}
    assert files(live) == files(models / "v2")
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]


def test_bodies_that_are_text_are_led_to_the_folder_too(server: FakeSGLang, models: Path, tmp_path: Path) -> None:
    """An engine may write its JSON itself."""

    class Writes(SharedFolderEngine):
        def update_policy(self, model: Any) -> bool:
            model.save_pretrained(self.shared_ckpt_path)
            body = json.dumps({"model_path": self.shared_ckpt_path})
            headers = {"Content-Type": "application/json"}
            answer = self.http.post(f"{self.base_url}/update_weights_from_disk", data=body, headers=headers, timeout=5)
            return bool(answer.status_code == 200)

    engine, sink = Writes(server.url, str(tmp_path / "checkpoint")), RecordingSink()
    remedies = Remedies(publish_atomically=True, pause="abort")
    with sglang_telemetry.instrument(engine, sinks=[sink], remedies=remedies):
        assert engine.update_policy(Policy(models)) is True
    assert said(sink.events) == ["publish done", "pause done", "release done"]
    assert server.updates[0].json() == {"model_path": str(tmp_path / "checkpoint")}
    assert server.state().paused is None
