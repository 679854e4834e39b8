"""The gradient of the sinks: it needs the rows' results only, not their scores."""

import numpy as np

from rootdk.gradients import Rows
from rootdk.problem import Bound
from rootdk.row_blocks import head_blocks, head_rows

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
    if not problem.kv_len:
        return total
    for batch in np.ndindex(*problem.batch_shape):
        for head in range(problem.heads):
            total[head] += _of_head(bound, rows, float(sinks[head]), (batch, head))
    return total


def _of_head(bound: Bound, rows: Rows, sink: float, place: tuple[tuple[int, ...], int]) -> float:
    batch, head = place
    real = np.dtype(np.float64)
    output, grad_output = (
        head_rows(bound.canonical(array), batch, head, real) for array in (rows.output, rows.grad_output)
    )
    lse = bound.canonical_rows(rows.lse)[(*batch, head)].astype(real)
    with np.errstate(all="ignore"):
        shift = -np.einsum("ij,ij->i", output, grad_output)
        if rows.grad_lse is not None:
            shift += bound.canonical_rows(rows.grad_lse)[(*batch, head)]
        weights = np.exp(sink - lse)
        each = weights * shift
    empty = np.isneginf(lse)
    unsure = np.flatnonzero(~empty & (weights > _NEARLY_ALL) & (each != 0))
    for block in head_blocks(bound, batch, head, unsure):
        empty[block.rows] = ~block.visible().any(axis=-1)
    return float(np.where(empty, 0, each).sum())
