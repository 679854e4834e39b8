"""Each single argument of a call, checked and made plain; a message says what was expected, what came, what to do."""

import functools
import math
import operator
import os

import numpy as np

from rootdk import dtypes
from rootdk.dtypes import DType, Kind
from rootdk.errors import ArgumentError, DTypeError, ShapeError

__all__ = [
    "as_layout",
    "as_probability",
    "as_scale",
    "as_seed",
    "as_sinks",
    "check_array",
    "check_bias",
    "element_type",
]

LAYOUTS = ("bhsd", "bshd")


@functools.lru_cache(maxsize=64)
def element_type(dtype: np.dtype) -> DType | None:
    """``dtypes.of`` by dtype; remembered, as NumPy takes a microsecond to spell a dtype's name."""
    return dtypes.of(np.empty(0, dtype))


def check_array(name: str, array: object) -> np.ndarray:
    """``array`` itself, if it is a plain NumPy array of native byte order."""
    # asked of subclasses only, as the first mention of np.ma loads it, for some milliseconds
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise DTypeError(f"{name}: expected a plain array, got a masked array; use {name}.filled(...) and say mask=")
    if not isinstance(array, np.ndarray):
        raise DTypeError(f"{name}: expected an array, got {type(array).__name__}; convert it: np.asarray({name})")
    if not array.dtype.isnative:
        raise DTypeError(
            f"{name}: expected native byte order, got {array.dtype.str}; "
            f"convert it: {name}.astype({name}.dtype.newbyteorder('='))"
        )
    return array


def check_float(name: str, array: object) -> DType:
    """The element type of ``array``, one of the four floating types."""
    found = check_array(name, array)
    dtype = element_type(found.dtype)
    if dtype is None or dtype.kind is not Kind.FLOAT:
        names = ", ".join(known.name for known in dtypes.FLOATS)
        raise DTypeError(f"{name}: expected one of {names}, got {found.dtype}; convert it: {name}.astype(np.float32)")
    return dtype


def check_bias(array: object) -> None:
    """Refuse a bias that is not a floating array."""
    dtype = check_array("bias", array).dtype
    if dtype == np.bool_:
        raise DTypeError("bias: expected a floating array that is added to the scores, got bool; pass it as mask=")
    if dtype.kind in "iu":
        raise DTypeError(
            f"bias: expected a floating array that is added to the scores, got {dtype}; convert it: "
            "bias.astype(np.float32), or, to hide pairs where it is 0, pass mask=bias != 0"
        )
    check_float("bias", array)


def as_scale(scale: object, d_k: int) -> float:
    """The factor on the raw scores: 1/sqrt(d_k) unless given. With d_k = 0 every score is 0, so any factor does."""
    if scale is None:
        return 1.0 / math.sqrt(d_k) if d_k else 1.0
    return _finite("scale", scale, "a finite number, or None for 1/sqrt(d_k)")


def as_probability(name: str, value: object) -> float:
    """``value`` as a float in [0, 1]."""
    expected = "a probability from 0 to 1"
    number = _finite(name, value, expected)
    if not 0.0 <= number <= 1.0:
        raise ArgumentError(f"{name}: expected {expected}, got {value!r}")
    return number


def _finite(name: str, value: object, expected: str) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    item = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    if isinstance(item, bool | str | bytes) or getattr(item, "ndim", None) or not hasattr(item, "__float__"):
        raise ArgumentError(f"{name}: expected {expected}, got {_shown(value)}")
    try:
        number = float(item)
    except OverflowError:  # an integer beyond every float
        number = math.inf
    if not math.isfinite(number):
        raise ArgumentError(f"{name}: expected {expected}, got {number}")
    return number


def _shown(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"{value!r}" if isinstance(value, bool | str | bytes | int | float | complex) else type(value).__name__


def as_seed(seed: object) -> int:
    """``seed`` as an unsigned 64-bit integer; None draws a fresh one."""
    if seed is None:
        return int.from_bytes(os.urandom(8), "little")
    try:
        number = operator.index(seed)  # type: ignore[arg-type]  # what is no integer raises, and is reported below
    except TypeError:
        raise ArgumentError(f"seed: expected an integer or None, got {_shown(seed)}") from None
    if not 0 <= number < 1 << 64:
        raise ArgumentError(f"seed: expected an integer from 0 to 2**64 - 1, got {number}; use seed % 2**64")
    return number


def as_layout(layout: object) -> str:
    """``layout``, if it names one."""
    if isinstance(layout, str) and layout in LAYOUTS:
        return layout
    raise ArgumentError(
        f'layout: expected "bhsd" ([batch, heads, len, d]) or "bshd" ([batch, len, heads, d]), got {layout!r}'
    )


def as_sinks(sinks: object, heads: int, accumulator: DType) -> np.ndarray | None:
    """``sinks`` as [heads] numbers of the accumulator's type, or None."""
    if sinks is None:
        return None
    check_float("sinks", sinks)
    assert isinstance(sinks, np.ndarray)
    if sinks.shape != (heads,):
        raise ShapeError(f"sinks: expected one logit per query head, shape ({heads},), got {sinks.shape}")
    with np.errstate(over="ignore"):
        return dtypes.to_float64(sinks).astype(accumulator.name)
