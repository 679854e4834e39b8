"""How close gradients must be to the reference's, for tests that call them through the public API."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import rootdk
from rootdk import dtypes, reference
from rootdk.pullback import Gradients

ARRAYS = ("query", "key", "value", "bias", "sinks")


class Case(NamedTuple):
    """One call and the cotangents of its results."""

    inputs: tuple[np.ndarray, np.ndarray, np.ndarray]
    options: dict[str, Any]
    grad_out: np.ndarray
    grad_lse: np.ndarray | None

    @property
    def dtype(self) -> np.dtype:
        return self.inputs[0].dtype


def case(*inputs: np.ndarray, lse: bool = True, **options: Any) -> Case:
    """A call with random cotangents, laid out in memory as the results are."""
    rng = np.random.default_rng(9)
    output, logs = rootdk.attention(*inputs, return_lse=True, **options)
    grad_out = rng.standard_normal(output.shape).astype(output.dtype)
    grad_lse = rng.standard_normal(logs.shape).astype(logs.dtype) if lse else None
    return Case((inputs[0], inputs[1], inputs[2]), options, grad_out, grad_lse)


def pulled(one: Case) -> Gradients:
    _, pullback = rootdk.attention_vjp(*one.inputs, **one.options)
    found: Gradients = pullback(one.grad_out, one.grad_lse)
    return found


def by_name(grads: Gradients | reference.Gradients) -> dict[str, np.ndarray]:
    """Every gradient that there is; those of captured arrays by their names in the function."""
    arrays = {name: getattr(grads, name) for name in ARRAYS}
    return {name: array for name, array in arrays.items() if array is not None} | grads.captured


def assert_right(one: Case) -> Gradients:
    """The gradients have their arguments' shapes and dtypes, and errors that can be accounted for.

    That is: three times the error that the reference makes when it computes in the inputs' own type; or, where that is
    small by luck, a few roundings in the accumulator's type and those of a score, which its exponential makes relative.
    """
    found, truth, rounded = pulled(one), _reference(one, _truth(one.dtype)), _reference(one, one.dtype)
    named, true, low = by_name(found), by_name(truth), by_name(rounded)
    lucky = float(np.finfo(_accumulator(one.dtype)).eps) * (8 + 2 * _largest_score(one))
    assert list(named) == list(true)
    for name, grad in named.items():
        assert grad.shape == true[name].shape, name
        given = {**dict(zip(ARRAYS, one.inputs, strict=False)), **one.options}.get(name)
        if given is not None:
            assert grad.dtype == given.dtype, name
        own = float(ml_dtypes.finfo(grad.dtype).eps) * _largest(true[name])
        error = _largest(dtypes.to_float64(grad) - true[name].astype(np.float64))
        assert error <= max(3 * _largest(low[name] - true[name]), lucky * _largest(true[name])) + own, name
    return found


def assert_same(found: Gradients, expected: Gradients) -> None:
    """Equal bits, up to the sign of zero and the payload of NaN."""
    one, other = by_name(found), by_name(expected)
    assert list(one) == list(other)
    for name, grad in one.items():
        assert grad.dtype == other[name].dtype
        np.testing.assert_array_equal(dtypes.to_float64(grad), dtypes.to_float64(other[name]), err_msg=name)


def _accumulator(dtype: np.dtype) -> Any:
    return np.float64 if dtype == np.float64 else np.float32


def _largest_score(one: Case) -> float:
    scores = reference.attention(*one.inputs, **one.options).modified_scores
    return _largest(scores[np.isfinite(scores)])


def _truth(dtype: np.dtype) -> Any:
    return np.longdouble if dtype == np.float64 else np.float64


def _reference(one: Case, dtype: Any) -> reference.Gradients:
    found: reference.Gradients = reference.attention_vjp(
        *one.inputs, grad_out=one.grad_out, grad_lse=one.grad_lse, dtype=dtype, **one.options
    )
    return found


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0))
