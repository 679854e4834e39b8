"""The NumPy meaning of every operation, and of a graph: what the compiled code is checked against.

Indices are arrays that broadcast against each other, so a node that depends only on ``q`` costs q_len elements, and
only what depends on every index fills [batch, heads, q_len, kv_len].
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rootdk.dtypes import Kind, to_float64
from rootdk.mods.expr import Graph, Node

__all__ = ["NUMPY", "Values", "element_kind", "evaluate"]

_erf = np.frompyfunc(math.erf, 1, 1)


def _floor_divide(a: np.ndarray, b: np.ndarray) -> Any:
    return np.floor_divide(a, b)  # integers: x // 0 is 0, and the most negative number // -1 wraps


def _sigmoid(x: np.ndarray) -> Any:
    small = np.exp(-np.abs(x))
    return np.where(np.isnan(x), x, np.where(x < 0, small, 1) / (1 + small))


NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "floor_divide": _floor_divide,
    "remainder": np.remainder,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "negative": np.negative,
    "absolute": np.absolute,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "bit_not": np.invert,
    "divide": np.true_divide,
    "power": np.power,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "is_nan": np.isnan,
    "where": np.where,
    "to_bool": lambda x: x != 0,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "sin": np.sin,
    "cos": np.cos,
    "erf": lambda x: np.asarray(_erf(np.asarray(x, np.float64)), np.float64).astype(x.dtype),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
}
"""Value of each operation but leaves, casts and gather, which ``evaluate`` gives: they need more than arguments."""


@dataclass(frozen=True, slots=True)
class Values:
    """The value of each node of a graph, by number, and where its gathers missed."""

    nodes: tuple[np.ndarray, ...]
    outside: dict[int, np.ndarray] = field(default_factory=dict)
    """For each gather with an index out of bounds: the pairs for which it is, broadcastable like its value."""

    def __getitem__(self, number: int) -> np.ndarray:
        return self.nodes[number]


def evaluate(
    graph: Graph,
    constants: Sequence[Any],
    arrays: tuple[np.ndarray, ...],
    *,
    score: Any = 0.0,
    b: Any,
    h: Any,
    q: Any,
    kv: Any,
    dtype: Any = np.float64,
) -> Values:
    """Every node of ``graph``, over indices, scores and constants that broadcast together; floats are of ``dtype``.

    A gather never reads out of bounds: where an index is, its value is some element of the array (0 if it has none),
    and ``outside`` says so. Whether that is an error depends on the pair being visible, hence on the caller.
    """
    dtype = np.dtype(dtype)
    indices = {
        name: np.asarray(value, np.int64) for name, value in zip(("b", "h", "q", "kv"), (b, h, q, kv), strict=True)
    }
    types = {Kind.BOOL: np.dtype(np.bool_), Kind.INT: np.dtype(np.int64), Kind.FLOAT: dtype}
    values: list[np.ndarray] = []
    outside: dict[int, np.ndarray] = {}

    def value(node: Node) -> Any:
        arguments = [values[number] for number in node.args]
        match node.op:
            case "score":
                return score
            case "index":
                return indices[str(node.attr)]
            case "literal":
                return node.attr
            case "constant":
                return constants[_slot(node)]
            case "gather":
                taken, missed = _gather(arrays[_slot(node)], arguments)
                if missed.any():
                    outside[len(values)] = missed
                return taken
            case "to_float" | "to_int":
                return arguments[0]
            case op:
                return NUMPY[op](*arguments)

    with np.errstate(all="ignore"):
        for node in graph.nodes:
            # a cast of a NaN or of a float out of range to an integer may give any integer
            values.append(np.asarray(value(node)).astype(types[node.kind], copy=False))
    return Values(tuple(values), outside)


def _slot(node: Node) -> int:
    assert isinstance(node.attr, int)
    return node.attr


def _gather(array: np.ndarray, indices: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The elements at ``indices`` [one array per dimension], and whether any index was out of bounds."""
    missed = np.zeros((), np.bool_)
    inside = []
    for index, size in zip(indices, array.shape, strict=True):
        missed = missed | (index < -size) | (index >= size)
        inside.append(np.clip(np.where(index < 0, index + size, index), 0, max(size - 1, 0)))
    shape = np.broadcast_shapes(*(index.shape for index in indices))
    elements = array[tuple(inside)] if array.size else np.zeros(shape, array.dtype)
    return (to_float64(elements) if element_kind(array) is Kind.FLOAT else elements), missed


def element_kind(array: np.ndarray) -> Kind:
    """What an element of ``array``, of a known element type, is inside a mod."""
    if array.dtype.kind in "iu":
        return Kind.INT
    return Kind.BOOL if array.dtype == np.bool_ else Kind.FLOAT
