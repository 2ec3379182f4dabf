"""The trainer's model against what the server was started with, and how much a sync of it writes."""

import json
from pathlib import Path

import pytest

from sglang_telemetry.checkpoint.headers import read_headers
from sglang_telemetry.preflight.findings import Level
from sglang_telemetry.preflight.model import TrainerModel, same_model, trainer_model
from sglang_telemetry.server_truth.examine import examine
from sglang_telemetry.server_truth.facts import ServerFacts
from sglang_telemetry.testing import FakeSGLang
from tests.testing.checkpoints import tensors, write_folder


def facts_of(path: str | Path) -> ServerFacts:
    with FakeSGLang(path) as server:
        return examine(server.url)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """What the server runs."""
    return write_folder(tmp_path / "base", tensors(1))


def test_the_same(base: Path, tmp_path: Path) -> None:
    """Other weights of the same sizes."""
    found = same_model(trainer_model(str(write_folder(tmp_path / "v2", tensors(2))), None), facts_of(base))
    assert found is not None
    assert (found.level, found.reason) == (
        Level.OK,
        f"4 tensors have the names and shapes of {base}, which the server was started with",
    )


def test_other_sizes(base: Path, tmp_path: Path) -> None:
    """Both are named: this would kill the server."""
    other = write_folder(tmp_path / "other", tensors(4, hidden=4))
    (other / "config.json").write_text(json.dumps({"model_type": "qwen2", "hidden_size": 4}))
    found = same_model(trainer_model(str(other), None), facts_of(base))
    assert found is not None
    assert found.level is Level.FAIL
    assert "hidden_size is 4 here, 8 there" in found.reason
    assert found.fix == f"start SGLang with --model-path {other}"


def test_only_the_kind_can_be_compared(tmp_path: Path) -> None:
    """The server's path is not here."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8}
    mine = write_folder(tmp_path / "mine", tensors(1))
    same = same_model(trainer_model(str(mine), None), facts_of("/models/elsewhere"))
    (mine / "config.json").write_text(json.dumps(config))
    other = same_model(trainer_model(str(mine), None), facts_of("/models/elsewhere"))
    assert same is not None
    assert other is not None
    assert (same.level, "sizes were not compared, since /models/elsewhere cannot be read here" in same.reason) == (
        Level.OK,
        True,
    )
    assert (other.level, "model_type is llama here, qwen2 there" in other.reason) == (Level.FAIL, True)


def test_the_tensors_of_a_model(base: Path, tmp_path: Path) -> None:
    """A trainer that gives its tensors needs no folder."""
    right = read_headers(base).tensors
    wrong = read_headers(write_folder(tmp_path / "x", tensors(4, hidden=4))).tensors
    names = {f"other.{name}": spec for name, spec in right.items()}
    found = [same_model(trainer_model(None, one), facts_of(base)) for one in (right, wrong, names)]
    assert [one.level for one in found if one is not None] == [Level.OK, Level.FAIL, Level.WARN]
    assert found[1] is not None
    assert "is [32, 4] here, [32, 8] there and 3 more" in found[1].reason


def test_nothing_to_compare(base: Path) -> None:
    """Nobody asked."""
    found = same_model(TrainerModel(), facts_of(base))
    assert found is not None
    assert (found.level, found.reason) == (
        Level.OK,
        "not compared: give the model that is trained (--model DIR, or model=)",
    )


def test_a_folder_without_weights(base: Path, tmp_path: Path) -> None:
    """Its sizes are compared, and it is told why its tensors are not."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.json").write_bytes((base / "config.json").read_bytes())
    model = trainer_model(str(mine), None)
    found = same_model(model, facts_of(base))
    assert (model.unread, model.payload_bytes) == ("no weight files", None)
    assert found is not None
    assert (found.level, found.reason) == (
        Level.WARN,
        f"the same sizes as {base}, which the server was started with; not all of {mine} can be read: no weight files",
    )


def test_a_broken_config(base: Path, tmp_path: Path) -> None:
    """With tensors beside it these are compared; without, nothing is. Nobody is told to give what he gave."""
    mine = write_folder(tmp_path / "mine", tensors(2))
    (mine / "config.json").write_bytes(b"{nonsense")
    broken = "config.json: 9 bytes that are no JSON: JSONDecodeError"
    found = same_model(trainer_model(str(mine), None), facts_of(base))
    (mine / "model.safetensors").unlink()
    nothing = same_model(trainer_model(str(mine), None), facts_of(base))
    assert found is not None
    assert nothing is not None
    assert found.level is nothing.level is Level.WARN
    assert found.reason == (
        f"4 tensors have the names and shapes of {base}, which the server was started with; "
        f"not all of {mine} can be read: {broken}"
    )
    assert nothing.reason == f"not compared: {mine}: {broken}; no weight files"


def test_payload(base: Path) -> None:
    """Half precision, two bytes a number."""
    count = 32 * 8 + 2 * 8 * 16 + 8
    assert trainer_model(str(base), None).payload_bytes == 2 * count
    assert trainer_model(None, None).payload_bytes is None
