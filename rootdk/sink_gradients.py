"""The gradient of the sinks: it needs the rows' results only, not their scores."""

import numpy as np

from rootdk.gradients import Rows
from rootdk.problem import Bound
from rootdk.row_blocks import Head, heads

__all__ = ["sink_gradient"]

_NEARLY_ALL = 0.999
"""Of its row a sink has that much only where keys have next to nothing, or nothing: which of them, the keys tell."""


def sink_gradient(bound: Bound, rows: Rows) -> np.ndarray:
    """[heads] float64: d sink = sum over rows of exp(sink - lse) (d lse - dO · O), rows that see no key left out.

    Memory grows as q_len. The order of the sum is fixed, so equal calls give equal bits.
    """
    problem, sinks = bound.problem, bound.operands.sinks
    assert sinks is not None
    total = np.zeros(problem.heads)
    if problem.kv_len:
        for head in heads(bound):
            total[head.number] += _of_head(head, rows, float(sinks[head.number]))
    return total


def _of_head(head: Head, rows: Rows, sink: float) -> float:
    bound = head.bound
    output, grad_output = (head.rows_of(bound.canonical(array)) for array in (rows.output, rows.grad_output))
    lse = head.rows_of(bound.row_view(rows.lse))[:, 0].astype(np.float64)
    with np.errstate(all="ignore"):
        shift = -np.einsum("ij,ij->i", output, grad_output, dtype=np.float64)
        if rows.grad_lse is not None:
            shift += head.rows_of(bound.row_view(rows.grad_lse))[:, 0]
        weights = np.exp(sink - lse)
        each = weights * shift
    empty = np.isneginf(lse)
    unsure = np.flatnonzero(~empty & (weights > _NEARLY_ALL) & (each != 0))
    for block in head.blocks(unsure):
        empty[block.rows] = ~block.visible().any(axis=-1)
    return float(np.where(empty, 0, each).sum())
