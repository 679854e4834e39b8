"""Some query rows of one head against all its keys, step by step in NumPy: for what no kernel computes.

A block's arrays are [rows, kv_len], and there are few rows in a block, so memory grows as kv_len and not as
q_len * kv_len. Numbers are in the accumulator's precision.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rootdk.dtypes import to_float64
from rootdk.mods.evaluate import Values, evaluate
from rootdk.mods.expr import Graph
from rootdk.out_of_bounds import bounds_error
from rootdk.problem import Bound

__all__ = ["RowBlock", "Softmax", "blocks", "head_rows", "softmax", "sum_visible"]

_PAIRS = 2**16
"""Of a block: half a MiB for each array of it."""


@dataclass(frozen=True, slots=True, eq=False)
class RowBlock:
    """Rows of one head; ``batch`` is their index in the batch dimensions."""

    bound: Bound
    batch: tuple[int, ...]
    head: int
    rows: np.ndarray
    """[rows]: their numbers."""

    @property
    def kv_head(self) -> int:
        return self.head // self.bound.problem.groups

    @property
    def accumulator(self) -> np.dtype:
        return np.dtype(self.bound.problem.dtype.accumulator.name)

    def scores(self) -> np.ndarray:
        """The scaled scores [rows, kv_len]."""
        operands = self.bound.operands
        query = head_rows(operands.query, self.batch, self.head, self.accumulator)[self.rows]
        key = head_rows(operands.key, self.batch, self.kv_head, self.accumulator)
        return np.asarray(query @ key.T * self.accumulator.type(self.bound.problem.scale))

    def evaluate(self, graph: Graph, scores: np.ndarray, constants: tuple[Any, ...] = ()) -> Values:
        """Every node of ``graph`` for the block's pairs; ``constants`` follow the call's own."""
        problem, operands = self.bound.problem, self.bound.operands
        b = int(np.ravel_multi_index(self.batch, problem.batch_shape)) if self.batch else 0
        return evaluate(
            graph, (*operands.constants, *constants), operands.arrays, score=scores, b=b, h=self.head,
            q=self.rows[:, None], kv=np.arange(problem.kv_len), dtype=self.accumulator,
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
                pair = (*self.batch, self.head, self.rows[row], kv)
                raise bounds_error(self.bound.problem, self.bound.operands, pair, float(scores[row, kv]))
        return modified, visible

    def visible(self) -> np.ndarray:
        """Which pairs are visible, [rows, kv_len]."""
        graph, scores = self.bound.problem.graph, self.scores()
        return self.modify(graph, self.evaluate(graph, scores), scores)[1]


def blocks(bound: Bound) -> Iterator[RowBlock]:
    """Every row of the problem once, head by head."""
    problem = bound.problem
    for batch in np.ndindex(*problem.batch_shape):
        for head in range(problem.heads):
            yield from head_blocks(bound, batch, head, np.arange(problem.q_len))


def head_blocks(bound: Bound, batch: tuple[int, ...], head: int, rows: np.ndarray) -> Iterator[RowBlock]:
    """The ``rows`` of one head."""
    step = max(1, _PAIRS // max(1, bound.problem.kv_len))
    for first in range(0, len(rows), step):
        yield RowBlock(bound, batch, head, rows[first : first + step])


def head_rows(array: np.ndarray, batch: tuple[int, ...], head: int, dtype: np.dtype) -> np.ndarray:
    """One head of [*batch, heads, len, d] as [len, d] numbers of ``dtype``."""
    return to_float64(array[(*batch, head)]).astype(dtype, copy=False)


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
    top = np.where(sees & (top != -math.inf), top, 0).astype(modified.dtype)
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
