"""Is a checkpoint whole, and is it the model's: one line that says what is wrong, or None.

SGLang answers a broken checkpoint by dying, and one with missing tensors with success and a mix of old and new weights
(measured on SGLang 0.5.23). Only what is known to be wrong is said; a false alarm on a good sync is worse than none.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sglang_telemetry.checkpoint.architecture import Architecture, read_architecture
from sglang_telemetry.checkpoint.errors import Faulty, Unchecked, line, listed
from sglang_telemetry.checkpoint.headers import Headers, TensorSpec, read_headers

# The last dimension of these is the hidden size in all models that name them so, unless they are quantised.
_OF_HIDDEN_SIZE = {"model.embed_tokens.weight": 2, "model.norm.weight": 1}
_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A checkpoint's tensors beside those of the model.

    Args:
        expected: How many tensors the model has.
        missing: Tensors of the model that the checkpoint does not have.
        extra: Tensors that the model does not know; SGLang ignores them.
        shapes: Tensors with another shape, with what is found and what the model has.
        kinds: Tensors of another kind, such as integers for floats. Half precision for full is no difference.
        renamed: The missing and the extra ones hold equally many values: they are most likely the same under other
            names, as transformers 5 writes the experts of a mixture one by one which the model holds in one tensor.
    """

    expected: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[TensorSpec, TensorSpec]]
    kinds: Mapping[str, tuple[TensorSpec, TensorSpec]]
    renamed: bool = False


def compare(
    found: Mapping[str, TensorSpec],
    expected: Mapping[str, TensorSpec],
    *,
    ties: Iterable[Collection[str]] = (),
) -> Comparison:
    """Compare a checkpoint with the model.

    Args:
        found: The checkpoint's tensors.
        expected: The model's tensors.
        ties: Groups of names that share their storage; one of each group is enough.
    """
    spared = {name for group in ties if any(member in found for member in group) for name in group}
    missing = sorted(expected.keys() - found.keys() - spared)
    extra = sorted(found.keys() - expected.keys())
    pairs = {name: (found[name], expected[name]) for name in sorted(found.keys() & expected.keys())}
    values = sum(expected[name].values for name in missing)
    return Comparison(
        expected=len(expected),
        missing=tuple(missing),
        extra=tuple(extra),
        shapes={name: pair for name, pair in pairs.items() if pair[0].shape != pair[1].shape},
        kinds={name: pair for name, pair in pairs.items() if _other_kind(*pair)},
        renamed=values > 0 and values == sum(found[name].values for name in extra),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is known of a checkpoint; whole when both are None.

    Args:
        fault: What is wrong with it, in one line.
        unchecked: Why it was not looked at, in one line; it may be good or not.
        missing: Tensors that are expected and not there; none where names, shapes or kinds leave a doubt.
    """

    fault: str | None = None
    unchecked: str | None = None
    missing: tuple[str, ...] = ()


def fault_of(
    folder: str | os.PathLike[str],
    *,
    expected: Mapping[str, TensorSpec] | None = None,
    ties: Iterable[Collection[str]] = (),
) -> str | None:
    """What is wrong with a checkpoint, in one line; None when nothing is known to be. See :func:`verdict_of`."""
    return verdict_of(folder, expected=expected, ties=ties).fault


def verdict_of(
    folder: str | os.PathLike[str],
    *,
    headers: Headers | None = None,
    expected: Mapping[str, TensorSpec] | None = None,
    ties: Iterable[Collection[str]] = (),
) -> Verdict:
    """Is a checkpoint whole, and is it the model's?

    Args:
        folder: The checkpoint.
        headers: Its own, where they have just been read.
        expected: The model's tensors, None when they are not known.
        ties: Groups of the model's names that share their storage; one of each group is enough.
    """
    try:
        headers = headers if headers is not None else read_headers(folder)
        architecture = _architecture(folder)
    except Unchecked as error:
        return Verdict(unchecked=line(str(error)))
    except Faulty as error:
        return Verdict(fault=line(str(error)))
    faults = _unseen(headers)
    shapes: Collection[str] = ()
    missing: tuple[str, ...] = ()
    if expected is not None:
        if architecture is not None and architecture.tie_word_embeddings:
            ties = [*ties, *_tied_head(headers, expected)]
        found = compare(headers.tensors, expected, ties=ties)
        faults += _mismatches(found)
        shapes = found.shapes
        missing = () if found.renamed or found.shapes or found.kinds else found.missing
    if not shapes:  # else the same is said already
        faults += _contradictions(headers, architecture)
    return Verdict(fault=line("; ".join(faults)) if faults else None, missing=missing)


def _architecture(folder: str | os.PathLike[str]) -> Architecture | None:
    """One that is broken says nothing; one that cannot be read here may say that a missing head is tied."""
    try:
        return read_architecture(folder)
    except Faulty:
        return None


def _unseen(headers: Headers) -> list[str]:
    """Tensors that are promised or there, and that a server would not find."""
    faults = [
        f"{file.name}: its tensors lie under {file.inside!r}, SGLang looks for them at the top"
        for file in headers.files
        if file.inside is not None
    ]
    lost = {name for name in headers.promised - headers.tensors.keys() if not name.endswith(_HEAD)}
    if lost:
        faults.append(f"the index names {len(lost)} tensors that no shard has: {listed(lost)}")
    if not headers.tensors:
        faults.append(f"{headers.files[0].name}: no tensors in it")
    return faults


def _contradictions(headers: Headers, architecture: Architecture | None) -> list[str]:
    if architecture is None or architecture.hidden_size is None or architecture.quantized:
        return []
    return [
        f"{name} is {list(spec.shape)}, hidden_size in config.json is {architecture.hidden_size}"
        for name, dimensions in _OF_HIDDEN_SIZE.items()
        if (spec := headers.tensors.get(name)) is not None
        and len(spec.shape) == dimensions
        and spec.shape[-1] != architecture.hidden_size
    ]


def _tied_head(headers: Headers, expected: Mapping[str, TensorSpec]) -> list[set[str]]:
    """The output layer and the embedding, which are one tensor when ``config.json`` says so."""
    heads = {name for name in expected if name.endswith(_HEAD)}
    embeddings = {name for name in headers.tensors if name.endswith("embed_tokens.weight")}
    return [heads | embeddings] if heads and embeddings else []


def _mismatches(found: Comparison) -> list[str]:
    faults = [_shape(found)] if found.shapes else []
    if found.missing and not found.renamed:
        faults.append(f"{len(found.missing)} of {found.expected} tensors are missing: {listed(found.missing)}")
    if found.kinds:
        name, (here, model) = next(iter(found.kinds.items()))
        more = f" and {len(found.kinds) - 1} more are of another kind" if len(found.kinds) > 1 else ""
        faults.append(f"{name} is {here.dtype}, the model has {model.dtype}{more}")
    return faults


def _other_kind(here: TensorSpec, model: TensorSpec) -> bool:
    return here.kind is not None and model.kind is not None and here.kind != model.kind


def _shape(found: Comparison) -> str:
    name, (here, model) = next(iter(found.shapes.items()))
    more = f" and {len(found.shapes) - 1} more have other shapes" if len(found.shapes) > 1 else ""
    return f"{name} is {list(here.shape)}, the model has {list(model.shape)}{more}"
