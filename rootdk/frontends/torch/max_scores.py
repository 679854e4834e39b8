"""The greatest score that each query sees: a second pass over the scores, tile by tile, in NumPy."""

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from rootdk.dtypes import to_float64
from rootdk.errors import ArgumentError
from rootdk.frontends.torch.arguments import Inputs, Options, bind
from rootdk.frontends.torch.modes import has_numbers
from rootdk.mods.evaluate import evaluate
from rootdk.problem import Bound

__all__ = ["max_scores"]

_TILE = 256


def max_scores(inputs: Inputs, options: Options) -> Tensor:
    """[*batch, heads, q_len], float32: the maximum of a row's visible scores, after scale and score functions.

    -inf for a row that sees no key. The memory it takes beside the result grows with the heads alone. Raises
    ArgumentError for tensors of which there are no numbers now.
    """
    if not all(map(has_numbers, inputs)):
        raise ArgumentError(
            "return_aux: expected max_scores=False with tensors of a transform or a tracer of torch, got True"
        )
    bound = bind(inputs, options)
    problem = bound.problem
    found = np.full((problem.batch, problem.heads, problem.q_len), -math.inf, np.float32)
    rows, columns = (_tiles(length) for length in (problem.q_len, problem.kv_len))
    for b, row, column in itertools.product(range(problem.batch), rows, columns):
        best = _scores(bound, b, row, column).max(axis=-1, initial=-math.inf)
        found[b, :, row] = np.maximum(found[b, :, row], best)
    return torch.from_numpy(found.reshape(*problem.batch_shape, problem.heads, problem.q_len))


def _tiles(length: int) -> list[slice]:
    return [slice(start, min(start + _TILE, length)) for start in range(0, length, _TILE)]


def _scores(bound: Bound, b: int, rows: slice, columns: slice) -> np.ndarray:
    """Masked scores [heads, rows, columns] of one batch element, -inf where hidden."""
    problem, operands = bound.problem, bound.operands
    accumulator = np.dtype(problem.dtype.accumulator.name)
    place = np.unravel_index(b, problem.batch_shape) if problem.batch_shape else ()
    query = _widened(operands.query[place][:, rows], accumulator) * accumulator.type(problem.scale)
    key = np.repeat(_widened(operands.key[place][:, columns], accumulator), problem.groups, axis=0)
    with np.errstate(all="ignore"):
        scores = query @ key.swapaxes(-1, -2)
        h, q, kv = np.ogrid[: problem.heads, rows, columns]
        graph = problem.graph
        values = evaluate(
            graph, operands.constants, operands.arrays, score=scores, b=b, h=h, q=q, kv=kv, dtype=accumulator
        )
        modified = scores if graph.score is None else np.broadcast_to(values[graph.score], scores.shape)
        return modified if graph.mask is None else np.where(values[graph.mask], modified, -math.inf)


def _widened(array: np.ndarray, accumulator: np.dtype) -> np.ndarray:
    return array if array.dtype == accumulator else to_float64(array).astype(accumulator)
