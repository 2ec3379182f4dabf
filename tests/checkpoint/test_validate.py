"""What is said of a checkpoint: nothing of a good one, one line of each that SGLang dies of or mixes weights with."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_telemetry.checkpoint import headers
from sglang_telemetry.checkpoint.choice import SAFETENSORS_INDEX
from sglang_telemetry.checkpoint.headers import TensorSpec, read_headers
from sglang_telemetry.checkpoint.validate import Verdict, compare, fault_of, verdict_of
from tests.checkpoint.files import saved, saved_bin, sharded, spelled, weights, write
from tests.testing.checkpoints import write_models

HEAD, EMBEDDING, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"


def specs(content: Mapping[str, torch.Tensor]) -> dict[str, TensorSpec]:
    """What the model has."""
    return {name: TensorSpec(tuple(tensor.shape), spelled(tensor)) for name, tensor in content.items()}


def configured(folder: Path, **config: object) -> Path:
    """A folder with this ``config.json``."""
    return write(folder, "config.json", json.dumps(config).encode())


def without(content: Mapping[str, torch.Tensor], *names: str) -> dict[str, torch.Tensor]:
    """The content without some tensors."""
    return {name: tensor for name, tensor in content.items() if name not in names}


@pytest.mark.parametrize("save", [saved, saved_bin])
def test_good(tmp_path: Path, save: object) -> None:
    """Of what was saved from the model itself nothing is said, in both kinds of file."""
    assert callable(save)
    folder = configured(save(tmp_path, weights()), hidden_size=64, tie_word_embeddings=False)
    assert fault_of(folder) is None
    assert fault_of(folder, expected=specs(weights())) is None
    assert fault_of(folder, expected=specs({name: tensor.float() for name, tensor in weights().items()})) is None


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("base", None),
        ("v2", None),
        ("v2_bin", None),
        ("sharded", None),
        ("weightsonly", None),
        ("extra", None),
        ("missing", "1 of 4 tensors are missing: model.layers.1.mlp.down_proj.weight"),
        ("noweights", "no weight files"),
        ("emptydir", "no weight files"),
        ("lostshard", "model.safetensors.index.json: names 1 missing shards: model-00003-of-00003.safetensors"),
        ("truncated", "model.safetensors: 771 bytes found, 1285 expected: cut short"),
        (
            "truncated_bin",
            "pytorch_model.bin: 1969 bytes found, the end of the archive is missing or broken: cut short",
        ),
        ("zerolen", "model.safetensors: 0 bytes found: empty"),
        ("halfbad", "model-00003-of-00003.safetensors: "),
        ("wrongshape", "model.embed_tokens.weight is [32, 4], the model has [32, 8] and 3 more have other shapes"),
        ("lateshape", "model.norm.weight is [4], the model has [8]"),
        ("nowhere", "No such file or directory"),
    ],
)
def test_the_models_that_were_measured(tmp_path: Path, model: str, fault: str | None) -> None:
    """Those that a real SGLang was asked to load, each with the words for what it died of."""
    models = write_models(tmp_path / "models")
    expected = read_headers(models / "base").tensors
    found = fault_of(models / model, expected=expected)
    if fault is None:
        assert found is None
    else:
        # Sizes of headers and archives are the writer's; what matters is which file, and of what kind.
        words = fault.split(" bytes found, ")[-1] if " expected: cut short" not in fault else "expected: cut short"
        assert found is not None
        assert words in found
        assert found.startswith(fault.split(": ")[0])


@pytest.mark.parametrize("model", ["wrongshape", "lateshape"])
def test_shapes_that_config_json_contradicts(tmp_path: Path, model: str) -> None:
    """Known without the model: such a folder killed a server."""
    found = fault_of(write_models(tmp_path / "models") / model)
    name = f"{EMBEDDING} is [32, 4]" if model == "wrongshape" else f"{NORM} is [4]"
    assert found is not None
    assert found.startswith(f"{name}, hidden_size in config.json is 8")


def test_only_what_is_well_known_is_compared_with_config_json(tmp_path: Path) -> None:
    """Embeddings of other models may have another size than the hidden one, and packed ones do."""
    content = {
        "model.decoder.embed_tokens.weight": torch.zeros(8, 4),
        "audio.embed_tokens.weight": torch.zeros(8, 5),
        "model.norm.weight": torch.zeros(2, 2),
        "norm.weight": torch.zeros(7),
    }
    assert fault_of(configured(saved(tmp_path / "a", content), hidden_size=64)) is None
    packed = saved(tmp_path / "b", {EMBEDDING: torch.zeros(8, 4, dtype=torch.int32)})
    assert fault_of(configured(packed, hidden_size=64, quantization_config={"bits": 4})) is None
    assert fault_of(configured(packed, hidden_size="many")) is None
    assert fault_of(write(packed, "config.json", b"{nonsense")) is None
    assert fault_of(configured(packed, hidden_size=64)) == f"{EMBEDDING} is [8, 4], hidden_size in config.json is 64"


def test_several_faults_are_one_line(tmp_path: Path) -> None:
    """Shapes first, since they kill the server; what is missing; what is of another kind."""
    content = without(weights(), DOWN, HEAD) | {
        NORM: torch.zeros(32).half(),
        EMBEDDING: torch.zeros(128, 64, dtype=torch.int64),
    }
    assert fault_of(saved(tmp_path, content), expected=specs(weights())) == (
        f"{NORM} is [32], the model has [64]; "
        f"2 of 7 tensors are missing: {HEAD}, {DOWN}; "
        f"{EMBEDDING} is I64, the model has BF16"
    )


def test_many_missing(tmp_path: Path) -> None:
    """The first three are named."""
    content = weights(layers=100)
    names = sorted(content)[:40]
    found = fault_of(saved(tmp_path, without(content, *names)), expected=specs(content))
    assert found == f"40 of 203 tensors are missing: {', '.join(names[:3])} and 37 more"


def test_tied_weights(tmp_path: Path) -> None:
    """One name of those that share a storage is enough, in either direction; none of them is not."""
    expected = specs(weights())
    ties = [(HEAD, EMBEDDING), ("other", "names")]
    assert fault_of(saved(tmp_path / "a", without(weights(), HEAD)), expected=expected, ties=ties) is None
    assert fault_of(saved(tmp_path / "b", without(weights(), EMBEDDING)), expected=expected, ties=ties) is None
    neither = saved(tmp_path / "c", without(weights(), EMBEDDING, HEAD))
    assert fault_of(neither, expected=expected, ties=ties) == f"2 of 7 tensors are missing: {HEAD}, {EMBEDDING}"


def test_config_json_ties_the_head(tmp_path: Path) -> None:
    """As transformers saves such a model, also when nobody said what is tied."""
    folder = saved(tmp_path, without(weights(), HEAD))
    expected = specs(weights())
    assert fault_of(folder, expected=expected) == f"1 of 7 tensors are missing: {HEAD}"
    assert fault_of(configured(folder, tie_word_embeddings=True), expected=expected) is None
    assert fault_of(configured(folder, tie_word_embeddings=False), expected=expected) is not None


def test_tensors_under_other_names_are_not_missing(tmp_path: Path) -> None:
    """One tensor of all experts, saved expert by expert, as transformers 5 does; a lost one is found all the same."""
    model = weights() | {"model.layers.0.mlp.experts.down_proj": torch.zeros(4, 8, 16).half()}
    experts = {f"model.layers.0.mlp.experts.{one}.down_proj.weight": torch.zeros(8, 16).half() for one in range(4)}
    assert fault_of(saved(tmp_path / "a", weights() | experts), expected=specs(model)) is None
    found = fault_of(saved(tmp_path / "b", without(weights() | experts, NORM)), expected=specs(model))
    assert found == f"2 of 8 tensors are missing: model.layers.0.mlp.experts.down_proj, {NORM}"


def test_comparison_tells_what_is_no_fault() -> None:
    """Extra tensors, which SGLang ignores, for whoever asks."""
    found = specs(without(weights(), NORM) | {"bogus": torch.zeros(3)})
    told = compare(found, specs(weights()))
    assert (told.expected, told.missing, told.extra, told.shapes, told.kinds) == (7, (NORM,), ("bogus",), {}, {})
    assert not told.renamed


def test_types_that_are_not_known_are_not_compared() -> None:
    """A newer one on either side is no other kind."""
    known, unknown, whole = TensorSpec((2,), "F32"), TensorSpec((2,), "F3_NEW"), TensorSpec((2,), "I64")
    assert compare({"a": unknown}, {"a": known}).kinds == compare({"a": known}, {"a": unknown}).kinds == {}
    assert compare({"a": whole}, {"a": known}).kinds == {"a": (whole, known)}


def test_tensors_that_sglang_does_not_look_for(tmp_path: Path) -> None:
    """It reads the top of the dictionary: all weights are old after a sync that succeeded."""
    found = fault_of(saved_bin(tmp_path, {"state_dict": weights()}), expected=specs(weights()))
    assert found == "pytorch_model.bin: its tensors lie under 'state_dict', SGLang looks for them at the top"


def test_no_tensors(tmp_path: Path) -> None:
    """A file that is whole and holds nothing: a sync that succeeds and changes nothing."""
    assert fault_of(saved(tmp_path / "a", {})) == "model.safetensors: no tensors in it"
    assert fault_of(saved_bin(tmp_path / "b", {"step": 1})) == "pytorch_model.bin: no tensors in it"


def test_an_index_that_promises_more(tmp_path: Path) -> None:
    """A shard of another save under the same name: tensors that no file has."""
    shards = {"a.safetensors": {"x": torch.ones(2)}, "b.safetensors": {"y": torch.ones(2), HEAD: torch.ones(2)}}
    sharded(tmp_path, shards, index=SAFETENSORS_INDEX)
    assert fault_of(tmp_path) is None
    write(tmp_path, "b.safetensors", (tmp_path / "a.safetensors").read_bytes().replace(b'"x"', b'"z"'))
    assert fault_of(tmp_path) == "the index names 1 tensors that no shard has: y"


def test_what_cannot_be_checked_is_no_fault(tmp_path: Path) -> None:
    """torch's old format, whatever the model has."""
    folder = saved_bin(tmp_path, weights(), _use_new_zipfile_serialization=False)
    assert fault_of(folder, expected=specs(weights())) is None


def test_names_of_a_file_are_data(tmp_path: Path) -> None:
    """Line breaks, colours and endless names do not reach a terminal."""
    name = "a\n\x1b[31mred\x00" + "x" * 5000
    found = fault_of(saved(tmp_path, {name: torch.zeros(2)}), expected={name: TensorSpec((3,), "F32")})
    assert found is not None
    assert found.startswith("a redxxx")
    assert len(found) <= 500
    assert found.isprintable()


def test_an_unreadable_folder(tmp_path: Path) -> None:
    """That it is none is a fault; a loop of links, a path with a NUL and one that is too long are not looked at."""
    write(tmp_path, "file", b"")
    os.symlink("loop", tmp_path / "loop")
    assert verdict_of(tmp_path / "file") == Verdict(fault="Not a directory")
    assert verdict_of(tmp_path / "nowhere") == Verdict(fault="No such file or directory")
    assert verdict_of(tmp_path / "loop") == Verdict(unchecked="Too many levels of symbolic links")
    assert verdict_of(tmp_path / ("x" * 300)) == Verdict(unchecked="File name too long")
    assert verdict_of(f"{tmp_path}/a\0b").fault is None


def failing(monkeypatch: pytest.MonkeyPatch, call: str, number: int, name: str = "") -> None:
    """Let a call of the system fail for all paths that end so."""
    real: Any = getattr(os, call)

    def fails(path: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(path, int) or os.fspath(path).endswith(name):
            raise OSError(number, os.strerror(number))
        return real(path, *rest, **named)

    monkeypatch.setattr(os, call, fails)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("save", [saved, saved_bin])
@pytest.mark.parametrize(
    ("call", "name"), [("pread", ""), ("open", ""), ("stat", "model.safetensors"), ("listdir", ""), ("fstat", "")]
)
def test_what_fails_here_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, save: Any, call: str, name: str
) -> None:
    """A file server with a hiccup, or another user: the checkpoint may be good, and nobody is to be paged."""
    folder = save(tmp_path, weights())
    failing(monkeypatch, call, number, name)
    found = verdict_of(folder, expected=specs(weights()))
    monkeypatch.undo()
    assert found.fault is None
    assert fault_of(folder) is None
    if call != "stat" or save is saved:
        assert found.unchecked is not None
        assert found.unchecked.endswith(os.strerror(number))


def test_shards_that_cannot_be_looked_at_are_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is an index that cannot: which files count would then be a guess."""
    sharded(tmp_path, {"a.safetensors": {"x": torch.ones(2)}}, index=SAFETENSORS_INDEX)
    for name in ("a.safetensors", SAFETENSORS_INDEX):
        with monkeypatch.context() as patched:
            failing(patched, "stat", errno.ESTALE, name)
            assert verdict_of(tmp_path) == Verdict(unchecked=f"{name}: Stale file handle")


def test_a_config_that_cannot_be_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may say that the head is tied, which is then not missing."""
    folder = configured(saved(tmp_path, without(weights(), HEAD)), tie_word_embeddings=True)
    failing(monkeypatch, "lstat", errno.EIO, "config.json")
    assert verdict_of(folder, expected=specs(weights())) == Verdict(unchecked="config.json: Input/output error")


def test_a_mistake_of_ours_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a reader raises that it did not think of."""

    def broken(_file: object) -> Any:
        raise KeyError("oops")

    monkeypatch.setattr(headers, "read_safetensors", broken)
    said = "model.safetensors: cannot be checked: KeyError: 'oops'"
    assert verdict_of(saved(tmp_path, weights())) == Verdict(unchecked=said)


def test_an_index_that_is_too_long(tmp_path: Path) -> None:
    """A limit of ours."""
    saved(tmp_path, weights())
    (tmp_path / SAFETENSORS_INDEX).touch()
    os.truncate(tmp_path / SAFETENSORS_INDEX, (64 << 20) + 1)
    said = f"{SAFETENSORS_INDEX}: {(64 << 20) + 1} bytes long, at most {64 << 20} are read"
    assert verdict_of(tmp_path) == Verdict(unchecked=said)
