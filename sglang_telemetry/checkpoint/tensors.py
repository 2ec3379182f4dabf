"""A tensor as a file describes it: shape, type, and where its bytes lie. Types are spelled as safetensors does."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

MAX_DIMENSIONS = 64
"""More than torch allows; a longer shape is no shape, and its product would take long to compute."""

# https://docs.rs/safetensors/latest/safetensors/tensor/enum.Dtype.html
BITS: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""How many bits one value takes."""

TORCH: Mapping[str, str] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
"""torch's types, without ``torch.``, in safetensors' spelling."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor looks like.

    Args:
        shape: Empty for a single number.
        dtype: ``F32``, ``F16``, ``BF16``, ``I64``, ...: what safetensors writes.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def values(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)

    @property
    def kind(self) -> str | None:
        """``float``, ``integer``, ``bool`` or ``complex``; None when the type is not known."""
        if self.dtype == "BOOL":
            return "bool"
        if self.dtype not in BITS:
            return None
        return {"F": "float", "B": "float", "C": "complex"}.get(self.dtype[0], "integer")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of a tensor lie.

    Args:
        file: Name of the file in the folder.
        offset: From the start of the file, in bytes.
        nbytes: From the first byte that the tensor uses to the last.
    """

    file: str
    offset: int
    nbytes: int
