"""The element types that arrays may have, and what the kernels compute them in."""

from dataclasses import dataclass
from enum import Enum

import numpy as np

__all__ = [
    "BFLOAT16", "BFLOAT16_BITS", "FLOAT16", "FLOAT32", "FLOAT64", "FLOATS", "DType", "Kind", "from_float64", "named",
    "of", "to_float64",
]  # fmt: skip


class Kind(Enum):
    """What a value is inside a mod: a truth value, a 64-bit integer, or a float of the accumulator's precision."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"


@dataclass(frozen=True, slots=True)
class DType:
    """An element type in memory."""

    name: str
    size: int
    """Bytes."""
    kind: Kind

    @property
    def accumulator(self) -> "DType":
        """The type that sums are kept in: float64 for float64, else float32."""
        return FLOAT64 if self is FLOAT64 else FLOAT32


FLOAT16 = DType("float16", 2, Kind.FLOAT)
BFLOAT16 = DType("bfloat16", 2, Kind.FLOAT)
FLOAT32 = DType("float32", 4, Kind.FLOAT)
FLOAT64 = DType("float64", 8, Kind.FLOAT)
FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
_INTEGERS = tuple(DType(f"{sign}int{8 * size}", size, Kind.INT) for sign in ("", "u") for size in (1, 2, 4, 8))
_BY_NAME = {dtype.name: dtype for dtype in (*FLOATS, *_INTEGERS, DType("bool", 1, Kind.BOOL))}

# NumPy has no bfloat16. ml_dtypes adds one, named "bfloat16"; where it is not installed (torch brings bfloat16
# tensors without it) the raw bits travel under this structured type, so that nothing needs ml_dtypes to run.
BFLOAT16_BITS = np.dtype([("bfloat16", "<u2")])


def named(name: str) -> DType:
    """The element type that is called ``name``."""
    return _BY_NAME[name]


def of(array: np.ndarray) -> DType | None:
    """The element type of ``array``, or None where rootdk does not know it."""
    if array.dtype == BFLOAT16_BITS:
        return BFLOAT16
    if not array.dtype.isnative:
        return None
    return _BY_NAME.get(array.dtype.name)


def to_float64(array: np.ndarray) -> np.ndarray:
    """A float64 copy of ``array``, whatever its element type."""
    if array.dtype == BFLOAT16_BITS:
        bits = np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(np.float64).reshape(array.shape)
    return array.astype(np.float64)


def from_float64(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``array``, of any floating dtype that NumPy has, as dense elements of ``dtype``; too large is inf."""
    with np.errstate(over="ignore", under="ignore"):
        if dtype != BFLOAT16_BITS:
            return np.ascontiguousarray(array).astype(dtype, copy=False).reshape(array.shape)
        bits = np.ascontiguousarray(array).astype(np.float32).view(np.uint32)
    # to nearest, halves to even; a NaN keeps its upper bits, made quiet so that they cannot all be zero
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    quiet = bits >> np.uint32(16) | np.uint32(0x40)
    halves = np.where(np.isnan(bits.view(np.float32)), quiet, rounded).astype(np.uint16)
    return halves.view(BFLOAT16_BITS).reshape(array.shape)
