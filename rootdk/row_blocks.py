"""Some query rows of one head against all its keys, step by step in NumPy: for what no kernel computes.

A block's arrays are [rows, kv_len], and there are few rows in a block, so memory grows as kv_len and not as
q_len * kv_len. Numbers are in the accumulator's precision.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rootdk import dropout
from rootdk.dtypes import to_float64
from rootdk.mods.evaluate import Values, evaluate
from rootdk.mods.expr import Graph
from rootdk.out_of_bounds import bounds_error
from rootdk.problem import Bound

__all__ = ["Head", "RowBlock", "Softmax", "heads", "softmax", "sum_visible"]

_PAIRS = 2**16
"""Of a block: half a MiB for each array of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """One query head of one batch element, and the head of keys that it reads."""

    bound: Bound
    batch: tuple[int, ...]
    """Its index in the batch dimensions."""
    number: int
    query: np.ndarray
    """[q_len, d_k], [kv_len, d_k] and [kv_len, d_v], in the accumulator's precision."""
    key: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, bound: Bound, batch: tuple[int, ...], number: int) -> "Head":
        operands, groups = bound.operands, bound.problem.groups
        accumulator = np.dtype(bound.problem.dtype.accumulator.name)
        inputs = ((operands.query, number), (operands.key, number // groups), (operands.value, number // groups))
        return cls(bound, batch, number, *(_matrix(array, (*batch, head), accumulator) for array, head in inputs))

    @property
    def kv_number(self) -> int:
        """Of the head of keys."""
        return self.number // self.bound.problem.groups

    def rows_of(self, array: np.ndarray) -> np.ndarray:
        """This query head's [len, d] of [*batch, heads, len, d], in the accumulator's precision."""
        return _matrix(array, (*self.batch, self.number), self.query.dtype)

    def keys_of(self, array: np.ndarray) -> np.ndarray:
        """The same of [*batch, kv_heads, len, d]."""
        return _matrix(array, (*self.batch, self.kv_number), self.query.dtype)

    def blocks(self, rows: np.ndarray | None = None) -> Iterator["RowBlock"]:
        """Every row, or the ``rows`` with these numbers, once."""
        if rows is None:
            rows = np.arange(self.bound.problem.q_len)
        step = max(1, _PAIRS // max(1, self.bound.problem.kv_len))
        for first in range(0, len(rows), step):
            yield RowBlock(self, rows[first : first + step])


def heads(bound: Bound) -> Iterator[Head]:
    """Every head of the problem."""
    for batch in np.ndindex(*bound.problem.batch_shape):
        for number in range(bound.problem.heads):
            yield Head.of(bound, batch, number)


def _matrix(array: np.ndarray, place: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return to_float64(array[place]).astype(dtype, copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class RowBlock:
    """Some rows of one head."""

    head: Head
    rows: np.ndarray
    """[rows]: their numbers."""

    def scores(self) -> np.ndarray:
        """The scaled scores [rows, kv_len]."""
        head = self.head
        return np.asarray(head.query[self.rows] @ head.key.T * head.query.dtype.type(head.bound.problem.scale))

    def evaluate(
        self, graph: Graph, scores: np.ndarray, constants: tuple[np.ndarray, ...] = (),
        arrays: tuple[np.ndarray, ...] = (),
    ) -> Values:  # fmt: skip
        """Every node of ``graph`` for the block's pairs. ``constants`` [rows, kv_len] and ``arrays`` follow the call's
        own."""
        operands = self.head.bound.operands
        b, h, q, kv = self._indices()
        return evaluate(
            graph, (*operands.constants, *constants), (*operands.arrays, *arrays), score=scores, b=b, h=h, q=q, kv=kv,
            dtype=scores.dtype,
        )  # fmt: skip

    def modify(self, graph: Graph, values: Values, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The modified scores, and which pairs are visible, from the ``values`` of ``graph``.

        Raises:
            BoundsError: a mod read a captured array out of bounds for a visible pair.
        """
        modified = scores if graph.score is None else np.broadcast_to(values[graph.score], scores.shape)
        shown = np.True_ if graph.mask is None else values[graph.mask]
        visible = shown & (modified != -math.inf)
        for missed in values.outside.values():
            wrong = np.argwhere(visible & missed)
            if len(wrong):
                row, kv = wrong[0]
                pair = (*self.head.batch, self.head.number, self.rows[row], kv)
                bound = self.head.bound
                raise bounds_error(bound.problem, bound.operands, pair, float(scores[row, kv]))
        return modified, visible

    def visible(self) -> np.ndarray:
        """Which pairs are visible, [rows, kv_len]."""
        graph, scores = self.head.bound.problem.graph, self.scores()
        return self.modify(graph, self.evaluate(graph, scores), scores)[1]

    def dropped(self, weights: np.ndarray) -> np.ndarray:
        """``weights`` [rows, kv_len] after dropout."""
        p = self.head.bound.problem.dropout_p
        if p == 0.0:
            return weights
        kept = dropout.keep(self.head.bound.operands.seed, *self._indices(), p)
        return np.where(kept, weights / weights.dtype.type(1.0 - p if p < 1.0 else 1.0), 0)

    def _indices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """b, h, q, kv of the block's pairs, to be broadcast; b counts the flattened batch."""
        problem, batch = self.head.bound.problem, self.head.batch
        b = np.ravel_multi_index(batch, problem.batch_shape) if batch else 0
        return np.asarray(b), np.asarray(self.head.number), self.rows[:, None], np.arange(problem.kv_len)


@dataclass(frozen=True, slots=True, eq=False)
class Softmax:
    """Of a block; all zero in a row that sees nothing."""

    weights: np.ndarray
    """[rows, kv_len]."""
    sink_weights: np.ndarray
    """[rows]: the sink's share."""


def softmax(modified: np.ndarray, visible: np.ndarray, sink: float) -> Softmax:
    """Weights of the visible pairs, beside one more term of logit ``sink`` (-inf: none)."""
    masked = np.where(visible, modified, -math.inf)
    sees = visible.any(axis=-1)
    top = np.maximum(masked.max(axis=-1, initial=-math.inf), sink)
    # any finite shift does for a row that holds nothing, where -inf would give NaN
    top = np.where(sees, top, 0).astype(modified.dtype)
    exponentials = np.where(visible, np.exp(masked - top[:, None]), 0)
    sink_term = np.where(sees, np.exp(sink - top), 0)
    total = np.where(sees, exponentials.sum(axis=-1) + sink_term, 1)
    return Softmax(exponentials / total[:, None], (sink_term / total).astype(modified.dtype))


def sum_visible(weights: np.ndarray, visible: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """weights @ rows over the visible pairs alone: [n, m], [n, m], [m, d] -> [n, d].

    A product would let NaN and inf through from rows that are hidden, as 0 * NaN is NaN: rows that are finite go
    through the product, the others are added by selection.
    """
    finite = np.isfinite(rows).all(axis=-1)
    selected = np.where(visible, weights, 0)
    if finite.all():
        return np.asarray(selected @ rows)
    total = selected @ np.where(finite[:, None], rows, 0)
    for j in np.flatnonzero(~finite):
        total += np.where(visible[:, j, None], weights[:, j, None] * rows[j], 0)
    return np.asarray(total)
