"""What a checkpoint has to hold, as far as the model in hand and the checkpoint itself leave no doubt.

An engine may mean to leave out what is frozen, or to send a part, an adapter, a merged or a quantised model: a tensor
is missed only where its kin is there and all names of the checkpoint are the model's own. A false alarm on a good sync
is worse than none.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sglang_telemetry.checkpoint.errors import CheckpointError
from sglang_telemetry.checkpoint.headers import Headers, read_headers
from sglang_telemetry.checkpoint.tensors import TensorSpec
from sglang_telemetry.checkpoint.validate import Verdict, verdict_of
from sglang_telemetry.instrument.model import Ties, tensors_of, trained_in

_NUMBER = re.compile(r"\.\d+(?=\.)")
_LAYER = re.compile(r"(.*\.\d+)\.")
_OF_ADAPTERS = re.compile(r"\.base_layer\.|\blora_|\.modules_to_save\.|\boriginal_module\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The tensors that a checkpoint has to hold, None when that is not known; of each tie one name is enough."""

    tensors: dict[str, TensorSpec] | None = None
    ties: Ties = ()


def expected_of(model: Any, found: Collection[str]) -> Expected:
    """What a checkpoint with these tensors has to hold if the model was sent; never raises.

    Args:
        model: Anything; of a ``torch.nn.Module`` something may be known.
        found: Names of the tensors in the checkpoint.
    """
    tensors, ties = tensors_of(model)
    strange = any(name not in tensors for name in found) or any(map(_OF_ADAPTERS.search, tensors))
    if strange or not found:
        return Expected()
    there = {kin for name in found for kin in kin_of(name)}
    trained = trained_in(model)
    return Expected(
        tensors={name: spec for name, spec in tensors.items() if name in trained and there & kin_of(name)}, ties=ties
    )


def headers_of(folder: str) -> Headers | None:
    """Of a checkpoint; None when it cannot be read, which is for others to say."""
    try:
        return read_headers(folder)
    except CheckpointError:
        return None


def verdict_for(model: Any, folder: str, headers: Headers | None) -> Verdict:
    """Is the checkpoint in a folder whole, and is it the one of a model?

    Args:
        model: As for :func:`expected_of`.
        folder: The checkpoint.
        headers: Its own, as :func:`headers_of` has just read them.
    """
    expected = expected_of(model, headers.tensors if headers is not None else ())
    return verdict_of(folder, headers=headers, expected=expected.tensors, ties=expected.ties)


def kin_of(name: str) -> set[str]:
    """What a tensor has in common with its kin: the module, the layer, and its place in every layer.

    Args:
        name: Such as ``model.layers.1.mlp.down_proj.weight``.
    """
    layer = _LAYER.match(name)
    kin = {_NUMBER.sub(".*", name), name.rpartition(".")[0], layer[1] if layer is not None else ""}
    return kin - {""}
