"""What the model in hand is made of: names, shapes and kinds of its tensors, and how often they were changed.

By torch's own rules for a state dict, and only where those hold for sure: of sharded, quantised or fake tensors, and of
modules that write themselves, nothing is known rather than something false. Nothing is copied, and ``state_dict()`` is
never called: for a sharded model it is a collective.
"""

import sys
from collections.abc import Iterator
from typing import Any

from sglang_telemetry.checkpoint.headers import TensorSpec
from sglang_telemetry.checkpoint.tensors import TORCH

Ties = tuple[frozenset[str], ...]


def tensors_of(model: Any) -> tuple[dict[str, TensorSpec], Ties]:
    """The tensors that ``model.state_dict()`` would name, and the groups of names that share one storage; never raises.

    Args:
        model: A ``torch.nn.Module``; of anything else nothing is known.
    """
    try:
        tensors = _tensors(model)
        places: dict[object, set[str]] = {}
        for name, tensor in tensors.items():
            if tensor.numel():
                places.setdefault((tensor.device, tensor.data_ptr()), set()).add(name)
        ties = tuple(frozenset(names) for names in places.values() if len(names) > 1)
        return {name: _spec(tensor) for name, tensor in tensors.items()}, ties
    except Exception:  # a model can be anything, and torch is not ours
        return {}, ()


def trained_in(model: Any) -> frozenset[str]:
    """Names of the parameters that an optimizer may change; never raises."""
    try:
        named = model.named_parameters(remove_duplicate=False)
        return frozenset(name for name, parameter in named if parameter.requires_grad)
    except Exception:
        return frozenset()


def changes_of(model: Any) -> int | None:
    """How often parameters were changed in place, as an optimizer does; None where torch does not count that.

    Args:
        model: Anything.
    """
    try:
        parameters = list(model.parameters())
        return sum(one._version for one in parameters) if parameters and all(map(_is_plain, parameters)) else None
    except Exception:  # it is no module, or its tensors were made in inference mode
        return None


def _tensors(model: Any) -> dict[str, Any]:
    """By name; empty when that cannot be told without a state dict."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module) or getattr(model, "hf_quantizer", None) is not None:
        return {}
    modules = dict(model.named_modules(remove_duplicate=False))
    if any(_writes_itself(module, torch.nn.Module) for module in modules.values()):
        return {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(_buffers(modules))
    if not all(map(_is_whole, parameters.values())) or not all(map(_is_plain, buffers.values())):
        return {}
    left_out = set(getattr(model, "_keys_to_ignore_on_save", None) or ())  # transformers
    return {name: tensor for name, tensor in (parameters | buffers).items() if name not in left_out}


def _is_plain(tensor: Any) -> bool:
    """A subclass may hold a part of a tensor, or another than it shows; one on ``meta`` holds nothing."""
    torch = sys.modules["torch"]
    return type(tensor) in (torch.nn.Parameter, torch.Tensor) and not tensor.is_meta


def _is_whole(parameter: Any) -> bool:
    """Does it hold its own numbers? DeepSpeed leaves parameters empty, and integers are packed ones."""
    has_numbers = parameter.dtype.is_floating_point and parameter.numel() and not hasattr(parameter, "ds_id")
    return bool(_is_plain(parameter) and has_numbers)


def _writes_itself(module: Any, plain: Any) -> bool:
    kind = type(module)
    own = kind.state_dict is not plain.state_dict or kind._save_to_state_dict is not plain._save_to_state_dict
    return own or bool(module._state_dict_hooks)


def _buffers(modules: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for prefix, module in modules.items():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer


def _spec(tensor: Any) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(tuple(tensor.shape), TORCH.get(dtype, dtype))
