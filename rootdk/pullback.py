"""Attention on ndarrays and what takes cotangents of its results to gradients of its arguments."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rootdk import arguments, engine, gradients, problem
from rootdk.dtypes import Kind, from_float64, to_float64
from rootdk.engine import Captured
from rootdk.errors import DTypeError, ShapeError
from rootdk.gradients import Rows
from rootdk.mods import ranges
from rootdk.mods.evaluate import element_kind
from rootdk.problem import Bound, Operands
from rootdk.sink_gradients import sink_gradient

__all__ = ["Gradients", "Pullback", "attention_vjp", "floating_slots", "sum_to"]


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """One array for each argument that was given, of its shape and dtype."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray | None
    sinks: np.ndarray | None
    captured: dict[str, np.ndarray]
    """Of the floating arrays that the score and mask functions read, by the name the function gives them, in the order
    of their first reads."""


@dataclass(frozen=True, slots=True, eq=False)
class _Arguments:
    """The arrays as they came."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray | None
    sinks: np.ndarray | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Pullback:
    """Gradients of one call for any cotangents of its results; it may be called any number of times.

    It reads the call's arrays again, so they must not change in between.
    """

    _bound: Bound
    _given: _Arguments
    _output: np.ndarray
    _lse: np.ndarray
    _tables: tuple[np.ndarray, ...]
    _captured: Captured

    def __call__(self, grad_out: np.ndarray, grad_lse: np.ndarray | None = None) -> Gradients:
        """Gradients of sum(grad_out · output) + sum(grad_lse · lse).

        Args:
            grad_out: of the output's shape and dtype.
            grad_lse: of the LSE's shape and dtype; None is zero.

        Raises:
            RootdkError: a shape or dtype is wrong.
        """
        _check_cotangent("grad_out", grad_out, self._output)
        if grad_lse is not None:
            _check_cotangent("grad_lse", grad_lse, self._lse)
        bound, operands = self._bound, self._bound.operands
        rows = Rows(self._output, self._lse, grad_out, grad_lse)
        grads = gradients.allocate(bound)
        prepared = gradients.prepare(bound, rows, grads, self._tables, floating_slots(operands))
        inputs = operands.query, operands.key, operands.value
        captured = gradients.run(prepared, inputs, rows, grads, self._captured)
        bias, sinks = self._given.bias, self._given.sinks
        return Gradients(
            query=_as_input(grads.query, self._given.query, bound),
            key=_as_input(grads.key, self._given.key, bound),
            value=_as_input(grads.value, self._given.value, bound),
            bias=None if bias is None else _bias_gradient(captured, bias, operands),
            sinks=None if sinks is None else from_float64(sink_gradient(bound, rows), sinks.dtype),
            captured={
                operands.names[slot]: from_float64(grad, operands.arrays[slot].dtype)
                for slot, grad in captured.items()
                if slot != operands.bias
            },
        )


def attention_vjp(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, return_lse: bool = False, **options: Any
) -> tuple[Any, Pullback]:
    """(output, pullback), or ((output, lse), pullback), of one call on NumPy arrays."""
    bound = problem.bind(query, key, value, **options)
    graph, operands = bound.problem.graph, bound.operands
    output, lse = engine.allocate(bound, lse=True)
    assert lse is not None
    tables = ranges.build_all(graph, operands.arrays)
    captured = engine.capture(graph, operands, tables)
    inputs = operands.query, operands.key, operands.value
    engine.run(engine.prepare(bound, output, lse, tables), inputs, operands.sinks, output, lse, captured)
    given = _Arguments(query, key, value, options.get("bias"), options.get("sinks"))
    pullback = Pullback(bound, given, output, lse, tables, captured)
    return ((output, lse) if return_lse else output), pullback


def floating_slots(operands: Operands) -> tuple[int, ...]:
    """The array slots that have gradients, the bias among them."""
    return tuple(slot for slot, array in enumerate(operands.arrays) if element_kind(array) is Kind.FLOAT)


def sum_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The sum over the dimensions that broadcasting ``shape`` to ``array`` added or repeated; float64 if it sums.

    >>> sum_to(np.ones((2, 3, 4)), (3, 1))
    array([[8.],
           [8.],
           [8.]])
    """
    if array.shape == shape:
        return array
    added = array.ndim - len(shape)
    repeated = [added + axis for axis, size in enumerate(shape) if size == 1]
    return np.asarray(to_float64(array).sum(axis=(*range(added), *repeated))).reshape(shape)


def _as_input(grad: np.ndarray, array: np.ndarray, bound: Bound) -> np.ndarray:
    """A gradient over the whole batch in the shape, layout and dtype of the ``array`` that came in."""
    summed = sum_to(grad, bound.canonical(array).shape)
    own = summed[0] if array.ndim == 2 else bound.canonical(summed)
    return own if own.dtype == array.dtype else from_float64(own, array.dtype)


def _bias_gradient(captured: dict[int, np.ndarray], bias: np.ndarray, operands: Operands) -> np.ndarray:
    assert operands.bias is not None
    return from_float64(captured[operands.bias], bias.dtype).reshape(bias.shape)


def _check_cotangent(name: str, array: object, result: np.ndarray) -> None:
    """Refuse what is not like the result."""
    found = arguments.check_array(name, array)
    if found.shape != result.shape:
        raise ShapeError(f"{name}: expected shape {result.shape}, as the result has, got {found.shape}")
    if found.dtype != result.dtype:
        raise DTypeError(
            f"{name}: expected {result.dtype}, as the result has, got {found.dtype}; "
            f"convert it: {name}.astype(np.{result.dtype})"
        )
