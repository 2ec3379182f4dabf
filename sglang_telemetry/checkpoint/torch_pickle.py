"""The pickle inside of a ``torch.save`` file, read as a list of operations: nothing it names is looked up or called.

Python's ``Unpickler`` is not used even with names forbidden: a few bytes make it take gigabytes or hash for ever.
"""

import pickletools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sglang_telemetry.checkpoint.errors import CheckpointError, Faulty, Unchecked
from sglang_telemetry.checkpoint.tensors import MAX_DIMENSIONS, TORCH

MAX_OPERATIONS = 4_000_000
"""About 130 000 tensors in one file."""

_BYTES = "bytes"
_REBUILD = "torch._utils._rebuild_"
_STORAGES = {
    "Float": "F32",
    "Double": "F64",
    "Half": "F16",
    "BFloat16": "BF16",
    "Long": "I64",
    "Int": "I32",
    "Short": "I16",
    "Char": "I8",
    "Byte": "U8",
    "Bool": "BOOL",
    "ComplexFloat": "C64",
    "Untyped": _BYTES,
}
_DICTS = {"collections.OrderedDict", "collections.Counter", "collections.defaultdict", "builtins.dict"}
# What torch.load(weights_only=True), which SGLang calls, takes beside tensors and dictionaries.
_OTHERS = {
    "_codecs.encode",
    "builtins.bytearray",
    "builtins.set",
    "__builtin__.bytearray",
    "__builtin__.set",
    "torch.Size",
    "torch.Tensor",
    "torch.device",
    "torch.nn.Parameter",
    "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout",
}
_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
# Where checkpoints of training frameworks have the weights, when they are not at the top.
_INSIDE = ("state_dict", "model", "model_state_dict", "module")
_VALUES = {
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG",
    "BINFLOAT", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "BINSTRING", "SHORT_BINSTRING", "UNICODE",
    "STRING",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in the pickle.

    Args:
        key: Name of its storage.
        dtype: As safetensors spells it.
        offset: Of its first value in the storage, counted in values.
        shape: Its shape.
        stride: How many values lie between neighbours, one a dimension.
        storage_values: How many values the storage holds; None when that is counted in bytes.
    """

    key: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_values: int | None


def read_pickle(pickled: bytes) -> tuple[dict[str, Stored], str | None]:
    """The tensors by name, and under which key of the top they lie; None when they are at the top.

    Raises:
        Faulty: It ends early or is no pickle, or names what weights have no need of.
        Unchecked: It has tensors that are not described by a storage, such as sparse ones, more operations than are
            done here, or is not understood: torch may write what this reader does not know.
    """
    try:
        top = _Machine().run(pickled)
        return _tensors(top)
    except CheckpointError:
        raise
    except Exception as error:  # the operations can be in any order
        raise Unchecked(f"its pickle is not understood: {type(error).__name__}: {error}") from error


def _tensors(top: Any) -> tuple[dict[str, Stored], str | None]:
    if not isinstance(top, dict):
        raise Faulty("not read: it holds no dictionary of tensors")
    found = {name: value for name, value in top.items() if isinstance(value, Stored)}
    if found:
        return found, None
    for key in sorted(top, key=lambda key: _INSIDE.index(key) if key in _INSIDE else len(_INSIDE)):
        inner = top[key] if isinstance(top[key], dict) else {}
        below = {name: value for name, value in inner.items() if isinstance(value, Stored)}
        if below:
            return below, key
    return {}, None


class _Machine:
    """Pickle's stack machine, with the operations that ``torch.save`` writes; descriptions stand for objects."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, pickled: bytes) -> Any:
        for count, (operation, argument) in enumerate(_operations(pickled)):
            if count > MAX_OPERATIONS:
                raise Unchecked(f"its pickle has more than {MAX_OPERATIONS} operations")
            if operation.name == "STOP":
                return self._stack.pop()
            self._do(operation.name, argument)
        raise Faulty("its pickle has no end")

    def _do(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
            return
        match name:
            case "PROTO" | "FRAME":
                pass
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET" | "GET":
                stack.append(self._memo[argument])
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_SET":
                stack.append({} if name == "EMPTY_DICT" else [])
            case "EMPTY_TUPLE":
                stack.append(())
            case "MARK":
                self._marks.append(len(stack))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack[-int(name[-1]) :] = [tuple(stack[-int(name[-1]) :])]
            case "TUPLE":
                stack.append(tuple(self._marked()))
            case "LIST" | "FROZENSET":
                stack.append(self._marked())
            case "DICT":
                items = self._marked()
                stack.append(_dict(zip(items[::2], items[1::2], strict=True)))
            case "APPEND" | "BUILD" | "POP":  # what lists hold, and the state of objects, is not looked at
                stack.pop()
            case "APPENDS" | "ADDITEMS" | "POP_MARK":
                self._marked()
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                stack[-1].update(_dict([(key, value)]))
            case "SETITEMS":
                items = self._marked()
                stack[-1].update(_dict(zip(items[::2], items[1::2], strict=True)))
            case "GLOBAL":
                stack.append(_global(".".join(argument.split(" "))))
            case "STACK_GLOBAL":
                last, first = stack.pop(), stack.pop()
                stack.append(_global(f"{first}.{last}"))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE" | "NEWOBJ":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_call(function.name, arguments))
            case _:
                raise Faulty(f"not read: its pickle has the operation {name}")

    def _marked(self) -> list[Any]:
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items


def _operations(pickled: bytes) -> Iterator[tuple[pickletools.OpcodeInfo, Any]]:
    """Its operations and their arguments; bytes that are none, and an end in the middle, are a fault."""
    try:
        for operation, argument, _position in pickletools.genops(pickled):
            yield operation, argument
    except ValueError as error:
        raise Faulty(f"its pickle is broken: {type(error).__name__}: {error}") from error


def _dict(items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    # Only texts: to hash a tuple of tuples that share their members can take for ever.
    return {key: value for key, value in items if type(key) is str}


def _global(name: str) -> _Global:
    module, _dot, last = name.rpartition(".")
    of_torch = module in {"torch", "torch.storage"} and (last.endswith("Storage") or last in TORCH)
    if name in _DICTS or name in _OTHERS or name == _FROM_TYPE or name.startswith(_REBUILD) or of_torch:
        return _Global(name)
    if module == "torch" and last.islower():  # a type or a layout that is not in the list: used by a tensor, or by none
        return _Global(name)
    raise Faulty(f"not read: it names {name}")


def _storage(described: Any) -> _Storage:
    what, kind, key, _device, count = described[:5]
    if what != "storage" or type(key) is not str or type(count) is not int or count < 0:
        raise Faulty("its pickle describes a storage in an unknown way")
    last = kind.name.rpartition(".")[2]
    return _Storage(key, _STORAGES.get(last.removesuffix("Storage"), last), count)


def _call(function: str, arguments: tuple[Any, ...]) -> Any:
    if function in _DICTS:
        return {}
    if function == _FROM_TYPE:
        return _call(arguments[0].name, arguments[2])
    if function in {f"{_REBUILD}tensor", f"{_REBUILD}tensor_v2", f"{_REBUILD}tensor_v3"}:
        return _stored(*arguments[:4], dtype=arguments[6].name if function.endswith("_v3") else None)
    if function in {f"{_REBUILD}parameter", f"{_REBUILD}parameter_with_state"}:
        return arguments[0]
    if function.startswith(_REBUILD):
        raise Unchecked(f"not read: it holds what {function} makes")
    if function in _OTHERS:
        return None
    raise Faulty(f"not read: it calls {function}")


def _stored(storage: _Storage, offset: Any, shape: Any, stride: Any, *, dtype: str | None) -> Stored:
    shape, stride = tuple(shape or ()), tuple(stride or ())
    numbers = (offset, *shape, *stride)
    if len(shape) != len(stride) or len(shape) > MAX_DIMENSIONS:
        raise Faulty(f"its pickle describes a tensor with {len(shape)} dimensions and {len(stride)} strides")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise Faulty("its pickle describes a tensor whose sizes are no numbers")
    spelled = storage.dtype if dtype is None else TORCH.get(dtype.removeprefix("torch."), dtype)
    count = None if storage.dtype == _BYTES else storage.count
    return Stored(storage.key, spelled, offset, shape, stride, count)
