"""What is asked of a server, and how its answers are written down so that two servers can be compared.

The same steps are played to the real SGLang, by ``record.py``, and to ``FakeSGLang``, by the tests. What differs from
one machine or start to the next is replaced: folders, SGLang's own location, request ids, and checksums, which become
``<checksum 1>``, ``<checksum 2>`` in the order in which they are first seen.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import requests

JSON = {"Content-Type": "application/json"}
UPDATE = "/update_weights_from_disk"
KEY = "the-admin-key"
WITH_KEY = {"Authorization": f"Bearer {KEY}"}
RUN_SECONDS = 0.8
MANY_TOKENS = 1500  # the real one needs about 2 ms a token

Answered = dict[str, Any]
"""Status, content type and body of an answer, or how there was none."""


class Server(Protocol):
    """A real or a fake SGLang server."""

    @property
    def url(self) -> str: ...

    def wait_dead(self, timeout: float = ...) -> None: ...

    def restart(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One request. ``{models}`` in its body stands for the folder of the checkpoints."""

    name: str
    path: str
    method: str = "POST"
    body: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    view: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """A request that goes on for a second or two while the next steps are played."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Wait for the answer of the running ``Generate``."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Start the dead server again, as a supervisor does."""

    name: str


Step = Send | Generate | Join | Restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Steps that are played to a server which runs ``base`` under the version ``default``."""

    name: str
    steps: Sequence[Step]
    admin_api_key: str | None = None
    kills: bool = False
    cheap: bool = False


def post(name: str, path: str, **body: object) -> Send:
    """A POST with a JSON body."""
    return Send(name=name, path=path, body=json.dumps(body), headers=JSON)


def update(name: str, folder: str, **body: object) -> Send:
    """A POST that loads the checkpoint ``folder``."""
    return post(name, UPDATE, model_path=f"{{models}}/{folder}", **body)


def live_state(body: dict[str, Any]) -> dict[str, Any]:
    """Of ``/server_info``, what says which weights it thinks it has."""
    keys = ("model_path", "weight_version", "load_format", "served_model_name")
    return {
        "version": body["version"],
        "status of the keys": sorted({"internal_states", "version", "frontend", "admin_api_key"} & body.keys()),
        "top": {key: body[key] for key in keys},
        "internal_states": [{key: state[key] for key in keys} for state in body["internal_states"]],
    }


def model_info_view(body: dict[str, Any]) -> dict[str, Any]:
    """``/model_info`` without the settings of embedding models, which are about the machine."""
    return {key: value for key, value in body.items() if key != "embedding"}


def checksum_view(body: dict[str, Any]) -> dict[str, Any]:
    """``/weights_checker`` without the tensors' names, which SGLang fuses."""
    return body | {
        "ranks": [
            rank | {"checksums": sorted({type(v).__name__ for v in rank["checksums"].values()})}
            for rank in body["ranks"]
        ]
    }


def generate_view(body: dict[str, Any]) -> dict[str, Any]:
    """Of a generated answer, how it ended and which versions took part."""
    meta = body["meta_info"]
    return {
        "keys": sorted(body),
        "finish_reason": meta["finish_reason"]["type"],
        "weight_version": meta["weight_version"],
        "weight_versions": [span["version"] for span in meta["weight_versions"]],
        "num_retractions": meta["num_retractions"],
    }


def model_info(when: str = "") -> Send:
    """What the HTTP process says it serves."""
    return Send(name=f"model info {when}".strip(), path="/model_info", method="GET", view=model_info_view)


def checksum(when: str = "") -> Send:
    """Which bytes are loaded."""
    return Send(name=f"checksum {when}".strip(), path="/weights_checker", method="GET", view=checksum_view)


def server_info(when: str = "") -> Send:
    """Start values and live ones."""
    return Send(name=f"server info {when}".strip(), path="/server_info", method="GET", view=live_state)


def ready(when: str = "") -> Send:
    """Whether it takes requests."""
    return Send(name=f"ready {when}".strip(), path="/ready", method="GET")


def raw(name: str, body: str | None, path: str = UPDATE, headers: dict[str, str] = JSON) -> Send:
    """A POST with a body that need not be JSON."""
    return Send(name=name, path=path, body=body, headers=headers)


def deadly(name: str, step: Send) -> Scenario:
    """The server has tagged weights, dies of ``step``, and is started again."""
    steps = (checksum("at the start"), update("good", "v2", weight_version="41"), checksum("after a good one"), step)
    after = (Restart(name="restarted"), model_info(), checksum("after the restart"), ready())
    return Scenario(name=name, steps=(*steps, *after), kills=True)


def keyed(step: Send, name: str, headers: dict[str, str]) -> Send:
    """The same request with other credentials."""
    return Send(name=name, path=step.path, method=step.method, body=step.body, headers=step.headers | headers)


_BY_MANAGER = (
    update("update", "v2"),
    post("flush", "/flush_cache"),
    post("pause", "/pause_generation"),
    post("continue", "/continue_generation"),
    post("checker", "/weights_checker", action="snapshot"),
)

SCENARIOS = (
    Scenario(
        name="start",
        cheap=True,
        steps=(
            model_info(),
            Send(name="old name", path="/get_model_info", method="GET", view=model_info_view),
            server_info(),
            Send(name="old name of server info", path="/get_server_info", method="GET", view=live_state),
            ready(),
            Send(name="ping", path="/ping", method="GET"),
            Send(name="health", path="/health", method="GET"),
            Send(name="health generate", path="/health_generate", method="GET"),
            checksum(),
            Send(name="flush", path="/flush_cache"),
            Send(name="flush by GET", path="/flush_cache", method="GET"),
        ),
    ),
    Scenario(
        name="success",
        cheap=True,
        steps=(
            checksum("before"),
            update("plain", "v2"),
            checksum("after plain"),
            model_info("after plain"),
            update("tagged", "v3", weight_version="7"),
            checksum("after tagged"),
            model_info("after tagged"),
            server_info("after tagged"),
            update("untagged keeps the label", "v2"),
            model_info("after untagged"),
            checksum("after untagged"),
            update("twin in another format", "v2_bin"),
            checksum("after the twin"),
            update("shards", "sharded"),
            checksum("after shards"),
            update(
                "unknown fields and options",
                "v3",
                unknown=1,
                load_format="auto",
                recapture_cuda_graph=True,
                abort_all_requests=True,
            ),
            update("only the tensors", "weightsonly", load_format="safetensors", flush_cache=False),
            checksum("after only the tensors"),
            Send(
                name="models",
                path="/v1/models",
                method="GET",
                view=lambda body: [model["id"] for model in body["data"]],
            ),
        ),
    ),
    Scenario(
        name="mixed",
        cheap=True,
        steps=(
            checksum("before"),
            update("missing tensor", "missing", weight_version="8"),
            checksum("after the missing tensor"),
            model_info("after the missing tensor"),
            update("whole", "v2"),
            checksum("after the whole"),
            update("extra tensor", "extra"),
            checksum("after the extra tensor"),
        ),
    ),
    Scenario(
        name="no weights",
        cheap=True,
        steps=(
            checksum("before"),
            update("missing folder", "nope"),
            update("a file", "base/config.json"),
            post("name of a repository", UPDATE, model_path="owner/name"),
            update("empty folder", "emptydir"),
            update("folder without weights", "noweights"),
            update("an index names a file that is not there", "lostshard"),
            update("pt of safetensors", "v2", load_format="pt"),
            update("pt of a .bin", "v2_bin", load_format="pt"),
            update("npcache", "v2", load_format="npcache"),
            update("safetensors of a .bin", "v2_bin", load_format="safetensors"),
            update("dummy", "v2", load_format="dummy"),
            update("sharded_state", "v2", load_format="sharded_state"),
            checksum("after"),
            model_info("after"),
        ),
    ),
    Scenario(
        name="load format stays",
        cheap=True,
        steps=(
            update("safetensors", "v2", load_format="safetensors"),
            model_info("after safetensors"),
            server_info("after safetensors"),
            update("a .bin without a format", "v2_bin"),
            update("a .bin with auto", "v2_bin", load_format="auto"),
            model_info("after auto"),
            update("a .bin as safetensors", "v2_bin", load_format="safetensors"),
            model_info("after a refused one"),
            checksum("before layered"),
            update("layered", "v3", load_format="layered"),
            checksum("after layered"),
            model_info("after layered"),
            update("the same as auto", "v3", load_format="auto"),
            checksum("after the same as auto"),
        ),
    ),
    Scenario(
        name="refused bodies",
        cheap=True,
        steps=(
            raw("no body", None),
            raw("empty object", "{}"),
            raw("null path", '{"model_path":null}'),
            raw("number as path", '{"model_path":3}'),
            raw("list", "[1]"),
            raw("text", '"x"'),
            raw("int weight_version", '{"model_path":"x","weight_version":3}'),
            raw("int load_format", '{"model_path":"x","load_format":3}'),
            raw("flush_cache maybe", '{"model_path":"x","flush_cache":"maybe"}'),
            raw("two faults", '{"weight_version":3}'),
            raw("not JSON", "hello", headers=JSON),
            raw("plain text", "hello", headers={"Content-Type": "text/plain"}),
            raw("pause without a body", None, path="/pause_generation"),
            raw("pause bogus", '{"mode":"bogus"}', path="/pause_generation"),
            raw("continue without a body", None, path="/continue_generation"),
            raw("checker of a number", '{"action":3}', path="/weights_checker"),
            post("checker bogus", "/weights_checker", action="bogus"),
            post("checker snapshot", "/weights_checker", action="snapshot"),
            post("version without one", "/update_weight_version"),
            post("generate nothing", "/generate"),
            Send(name="flush for x seconds", path="/flush_cache?timeout=x"),
        ),
    ),
    Scenario(
        name="routes",
        cheap=True,
        steps=(
            Send(name="unknown", path="/nope", method="GET"),
            Send(name="unknown POST", path="/nope", body="{}", headers=JSON),
            Send(name="update by GET", path=UPDATE, method="GET"),
            Send(name="pause by GET", path="/pause_generation", method="GET"),
            Send(name="model info by POST", path="/model_info"),
            Send(name="ready by POST", path="/ready"),
            Send(name="flush by DELETE", path="/flush_cache", method="DELETE"),
            post("version", "/update_weight_version", new_version="9"),
            model_info(),
            server_info(),
            post("abort", "/abort_request", abort_all=True),
        ),
    ),
    Scenario(
        name="paused",
        cheap=True,
        steps=(
            post("pause", "/pause_generation"),
            ready("while paused"),
            Send(name="ping", path="/ping", method="GET"),
            post("pause again", "/pause_generation", mode="retract"),
            update("while paused", "v2", weight_version="11"),
            update("bad while paused", "nope"),
            ready("after a bad one"),
            post("continue", "/continue_generation"),
            ready("after continue"),
            post("continue again", "/continue_generation"),
        ),
    ),
    Scenario(
        name="busy in place",
        steps=(
            checksum("before"),
            Generate(name="generate"),
            Send(name="flush", path="/flush_cache"),
            Send(name="flush with patience", path="/flush_cache?timeout=0.1"),
            post("pause", "/pause_generation", mode="in_place"),
            update("update", "v2", weight_version="12"),
            checksum("after"),
            model_info("after"),
            server_info("after"),
            ready("after"),
            Send(name="flush while paused", path="/flush_cache"),
            post("continue", "/continue_generation"),
            Join(name="generated"),
        ),
    ),
    Scenario(
        name="retract",
        steps=(
            Generate(name="generate"),
            post("pause", "/pause_generation", mode="retract"),
            update("update", "v2", weight_version="13"),
            model_info("after"),
            post("continue", "/continue_generation"),
            Join(name="generated"),
        ),
    ),
    Scenario(
        name="waits",
        steps=(Generate(name="generate"), update("update", "v2", weight_version="14"), Join(name="generated")),
    ),
    Scenario(
        name="aborts",
        steps=(
            Generate(name="generate"),
            update("update", "v2", weight_version="15", abort_all_requests=True),
            Join(name="generated"),
        ),
    ),
    Scenario(
        name="pause aborts",
        steps=(Generate(name="generate"), post("pause", "/pause_generation"), Join(name="generated")),
    ),
    Scenario(
        name="admin key",
        admin_api_key=KEY,
        steps=(
            *(keyed(step, f"{step.name} without a key", {}) for step in _BY_MANAGER),
            *(keyed(step, f"{step.name} with a wrong key", {"Authorization": "Bearer wrong"}) for step in _BY_MANAGER),
            keyed(_BY_MANAGER[0], "another scheme", {"Authorization": f"Basic {KEY}"}),
            *(keyed(step, f"{step.name} with the key", WITH_KEY) for step in _BY_MANAGER),
            model_info("without a key"),
            ready("without a key"),
            Send(name="unknown route", path="/nope", method="GET"),
        ),
    ),
    deadly("wrong shape", update("update", "wrongshape")),
    deadly("last shape wrong", update("update", "lateshape")),
    deadly("truncated", update("update", "truncated")),
    deadly("truncated bin", update("update", "truncated_bin")),
    deadly("zero length", update("update", "zerolen")),
    deadly("bad shard", update("update", "halfbad")),
    deadly("load format nonsense", update("update", "v2", load_format="nonsense")),
)


class Player:
    """Plays scenarios to one server.

    Args:
        server: Which one; it listens.
        models: The folder that ``make_tiny_model.py`` wrote.
    """

    def __init__(self, server: Server, models: Path) -> None:
        self._server = server
        self._models = models
        self._running: threading.Thread | None = None
        self._generated: Answered = {}
        self._checksums: dict[str, str] = {}
        self._session = requests.Session()
        self._session.trust_env = False  # the loopback is not behind a proxy

    def play(self, scenario: Scenario) -> dict[str, Answered]:
        """The answer to each of its steps."""
        names = [step.name for step in scenario.steps]
        if len(set(names)) < len(names):
            raise ValueError(f"two steps of {scenario.name!r} have one name: {names}")
        self._checksums = {}
        headers = WITH_KEY if scenario.admin_api_key else {}
        self._reset(headers)
        return {step.name: self._step(step) for step in scenario.steps}

    def close(self) -> None:
        """Close its connections."""
        self._session.close()

    def _reset(self, headers: dict[str, str]) -> None:
        """Bring the server to ``base`` and ``default``, whatever was played before."""
        for step in (
            post("", "/continue_generation"),
            update("", "base", weight_version="default", load_format="auto", abort_all_requests=True),
        ):
            answer = self._send(keyed(step, "reset", headers))
            if answer.get("status") != 200:
                raise RuntimeError(f"the server cannot be brought to its start: {answer}")

    def _step(self, step: Step) -> Answered:
        match step:
            case Send():
                return self._send(step) | self._generating()
            case Generate():
                return self._generate()
            case Join():
                assert self._running is not None
                self._running.join()
                self._running = None
                return self._generated
            case Restart():
                self._server.restart()
                return {}

    def _generating(self) -> dict[str, bool]:
        """Whether the generation that was started before goes on."""
        if self._running is None:
            return {}
        self._running.join(0.1)  # its answer may be on its way
        return {"still generating": self._running.is_alive()}

    def _generate(self) -> Answered:
        sampling = {"max_new_tokens": MANY_TOKENS, "ignore_eos": True, "temperature": 0}
        body = json.dumps({"text": "the quick", "sampling_params": sampling, "seconds": RUN_SECONDS})
        step = Send(name="generate", path="/generate", body=body, headers=JSON, view=generate_view)

        def generate() -> None:
            self._generated = self._send(step)

        self._running = threading.Thread(target=generate)
        self._running.start()
        while self._session.post(f"{self._server.url}/flush_cache").status_code == 200:
            time.sleep(0.01)  # it is not running yet
        return {}

    def _send(self, step: Send) -> Answered:
        body = step.body.replace("{models}", str(self._models)).encode() if step.body is not None else None
        started = time.monotonic()
        try:
            answer = self._session.request(
                step.method, self._server.url + step.path, data=body, headers=step.headers, timeout=120
            )
        except requests.RequestException as error:
            return self._death(error, started)
        text = answer.text
        if step.view is not None and answer.status_code == 200:
            text = json.dumps(step.view(answer.json()))
        return {
            "status": answer.status_code,
            "content-type": answer.headers.get("content-type"),
            "body": self._portable(text),
        }

    def _death(self, error: BaseException, started: float) -> Answered:
        closed = time.monotonic() - started
        refused = False
        while not refused and time.monotonic() - started < 120:
            try:
                self._session.get(f"{self._server.url}/ready", timeout=2)
            except requests.ConnectionError as later:
                refused = "refused" in str(later)
        refused_after = time.monotonic() - started
        self._server.wait_dead()
        return {
            "error": chain(error),
            "refused": refused,
            "seconds until closed": round(closed, 2),
            "seconds until refused": round(refused_after, 2),
            "seconds until dead": round(time.monotonic() - started, 2),
        }

    def _portable(self, text: str) -> str:
        text = text.replace(str(self._models), "<models>")
        text = re.sub(r'(\\?")[^"\\]*/site-packages/', r"\1<site>/", text)
        text = re.sub(r"0x[0-9a-f]+", "0x<address>", text)

        def named(match: re.Match[str]) -> str:
            return self._checksums.setdefault(match[0], f"<checksum {len(self._checksums) + 1}>")

        return re.sub(r"\b[0-9a-f]{64}\b", named, text)


def chain(error: BaseException) -> list[str]:
    """The classes of an exception and of what it was raised from, outermost first."""
    names: list[str] = []
    current: BaseException | None = error
    while current is not None:
        names.append(f"{type(current).__module__}.{type(current).__qualname__}")
        current = current.__cause__ or current.__context__
    return names


TIMES = frozenset({"seconds until closed", "seconds until refused", "seconds until dead"})


def comparable(answers: dict[str, Answered]) -> dict[str, Answered]:
    """The answers without what the clock said."""
    return {name: {key: value for key, value in answer.items() if key not in TIMES} for name, answer in answers.items()}
