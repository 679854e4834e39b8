"""Other libraries' arrays as NumPy views of the same memory; no library is imported that is not loaded already."""

import sys
from typing import Any

import numpy as np

from rootdk.dtypes import BFLOAT16_BITS
from rootdk.errors import DTypeError

__all__ = ["as_ndarray", "is_array"]


def is_array(value: Any) -> bool:
    """Whether ``value`` is an array of some library."""
    return isinstance(value, np.ndarray) or (
        hasattr(type(value), "__array__") and hasattr(value, "shape") and not isinstance(value, np.generic)
    )


def as_ndarray(value: Any, name: str) -> np.ndarray:
    """``value`` as an ndarray that shares its memory. Raises DTypeError where that cannot be."""
    if isinstance(value, np.ndarray):
        return value
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            return _from_torch(torch, value)
        return np.asarray(value)
    except (TypeError, RuntimeError, ValueError) as error:
        raise DTypeError(f"{name}: expected an array in this machine's memory, got {_shown(value)}: {error}") from error


def _from_torch(torch: Any, tensor: Any) -> np.ndarray:
    detached = tensor.detach()
    if detached.dtype is torch.bfloat16:
        bits: np.ndarray = detached.view(torch.int16).numpy()
        return bits.view(BFLOAT16_BITS)
    array: np.ndarray = detached.resolve_conj().resolve_neg().numpy()
    return array


def _shown(value: Any) -> str:
    device = getattr(value, "device", None)
    return f"{type(value).__name__} of {getattr(value, 'dtype', None)}" + (f" on {device}" if device else "")
