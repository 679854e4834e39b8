"""Inputs for attention, and how close its results must be, for tests that call it through the public API."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import rootdk
from rootdk import dtypes, reference

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = (np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64))


def random(*shapes: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> list[np.ndarray]:
    """Standard normal arrays."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def _reversed(array: np.ndarray, axis: int) -> np.ndarray:
    return np.flip(np.flip(array, axis).copy(), axis)


def _swapped(array: np.ndarray, first: int, second: int) -> np.ndarray:
    return array.swapaxes(first, second).copy().swapaxes(first, second)


def _shifted(array: np.ndarray) -> np.ndarray:
    view = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def _field(array: np.ndarray) -> np.ndarray:
    view = np.zeros(array.shape, [("before", np.uint8), ("element", array.dtype), ("after", np.uint16)])["element"]
    view[...] = array
    return view


VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "contiguous": np.ndarray.copy,
    "every other element": lambda array: array.repeat(2, axis=-1)[..., ::2],
    "every other row": lambda array: array.repeat(2, axis=-2)[..., ::2, :],
    "elements backwards": lambda array: _reversed(array, -1),
    "rows backwards": lambda array: _reversed(array, -2),
    "outermost backwards": lambda array: _reversed(array, 0),
    "outer dimensions swapped": lambda array: _swapped(array, 0, -2),
    "transposed": lambda array: _swapped(array, -1, -2),
    "Fortran order": np.asfortranarray,
    "odd byte offset": _shifted,
    "field of a structure": _field,
}
"""Equal arrays that lie in memory in another way, of any array of two dimensions or more."""


def assert_same(found: Any, expected: Any) -> None:
    """Equal bits, up to the sign of zero and the payload of NaN; of arrays, or of pairs of output and LSE."""
    if isinstance(found, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        return
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(dtypes.to_float64(found), dtypes.to_float64(expected))


def assert_right(query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: Any) -> None:
    """``rootdk.attention`` agrees with the reference about as well as the reference does with itself.

    That is: up to four times the error that the reference makes in the accumulator's type, and the rounding to the
    output's type. Where few elements, or sums in another order, make that error small: up to what sums of n terms are
    known to reach in practice, sqrt(n) eps times their terms' magnitudes (Higham and Mary 2019).
    """
    output, lse = rootdk.attention(query, key, value, return_lse=True, **options)
    accumulator = lse.dtype
    truth = reference.attention(query, key, value, dtype=_TRUTH[accumulator.name], **options)
    rounded = reference.attention(query, key, value, dtype=accumulator, **options)
    d_k, kv_len = query.shape[-1], truth.weights.shape[-1]
    of_score = math.sqrt(d_k) * _largest_score(query, key, truth, options.get("scale"))
    of_sums = float(np.finfo(accumulator).eps) * (4 + of_score + math.sqrt(kv_len))
    _assert_near("lse", lse, truth.lse, max(4 * _error(rounded.lse, truth.lse), of_sums))
    of_output = of_sums * _largest(dtypes.to_float64(value))
    _assert_near("output", output, truth.output, max(4 * _error(rounded.output, truth.output), of_output))


_TRUTH = {"float32": np.float64, "float64": np.longdouble}


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0))


def _error(found: np.ndarray, truth: np.ndarray) -> float:
    both = np.isfinite(found) & np.isfinite(truth)
    return _largest(found[both] - truth[both])


def _largest_score(query: np.ndarray, key: np.ndarray, truth: reference.Result, scale: Any) -> float:
    """Of all modified scores, and of the products of lengths that bound the raw ones."""
    if scale is None:
        scale = max(query.shape[-1], 1) ** -0.5
    lengths = (_largest(np.linalg.norm(dtypes.to_float64(array), axis=-1)) for array in (query, key))
    return max(_largest(truth.modified_scores), abs(float(scale)) * math.prod(lengths))


def _assert_near(what: str, found: np.ndarray, truth: np.ndarray, tolerance: float) -> None:
    rounding = 0.5 * float(ml_dtypes.finfo(found.dtype).eps)
    smallest = 0.5 * float(ml_dtypes.finfo(found.dtype).smallest_subnormal)
    np.testing.assert_allclose(
        dtypes.to_float64(found), truth.astype(np.float64), rtol=rounding, atol=tolerance + smallest, err_msg=what
    )
