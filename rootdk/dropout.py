"""Which weights dropout keeps: a hash of the seed and the pair's indices, so that no order of work can change it.

Kernels compute the same in 32-bit vector arithmetic: a state and an odd step for each row, then one multiply-add and
one ``mix32`` for each key. Rows step differently because rows that only started differently would repeat each other's
patterns, shifted.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["keep", "threshold"]

UInt32s = NDArray[np.uint32]
UInt64s = NDArray[np.uint64]


def threshold(dropout_p: float) -> int:
    """A pair is kept where its 32-bit hash is at least this; 2**32 keeps none."""
    return int(dropout_p * 2.0**32)


def keep(seed: int, b: np.ndarray, h: np.ndarray, q: np.ndarray, kv: np.ndarray, dropout_p: float) -> np.ndarray:
    """True where the weight of the pair stays; the indices broadcast, ``b`` counts the flattened batch."""
    with np.errstate(over="ignore"):
        head = _mix64(_mix64(_mix64(np.asarray(seed, np.uint64)) + b.astype(np.uint64)) + h.astype(np.uint64))
        start, twist = head.astype(np.uint32), (head >> np.uint64(32)).astype(np.uint32)
        row = _mix32(start + q.astype(np.uint32))
        step = _mix32(row ^ twist) | np.uint32(1)
        pair = _mix32(row + step * kv.astype(np.uint32))
    return pair.astype(np.uint64) >= np.uint64(threshold(dropout_p))


def _mix32(x: UInt32s) -> UInt32s:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _mix64(x: UInt64s) -> UInt64s:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
