"""The error for a captured array that a visible pair indexes out of bounds, with the index and the user's line."""

from collections.abc import Sequence

import numpy as np

from rootdk.errors import BoundsError
from rootdk.mods.evaluate import evaluate
from rootdk.problem import Operands, Problem

__all__ = ["bounds_error"]


def bounds_error(problem: Problem, operands: Operands, pair: Sequence[int], score: float = 0.0) -> BoundsError:
    """The error to raise for ``pair`` = [*batch, head, query, key], whose scaled score is ``score``."""
    *batch, h, q, kv = (int(index) for index in pair)
    b = int(np.ravel_multi_index(tuple(batch), problem.batch_shape)) if batch else 0
    values = evaluate(problem.graph, operands.constants, operands.arrays, score=score, b=b, h=h, q=q, kv=kv)
    number = next(iter(values.outside))
    node = problem.graph.nodes[number]
    assert isinstance(node.attr, int)
    array = operands.arrays[node.attr]
    indices = [int(values[arg]) for arg in node.args]
    axis, index, size = next(
        (axis, index, size)
        for axis, (index, size) in enumerate(zip(indices, array.shape, strict=True))
        if not -size <= index < size
    )
    name = operands.names[node.attr] or "array"
    site = operands.sites.get(number)
    place = f"{site}: " if site else ""
    shown = ", ".join(map(str, indices))
    where = f"batch {b}, head {h}, query {q}, key {kv}"
    return BoundsError(
        f"{place}{name}[{shown}]: expected an index from {-size} to {size - 1} in dimension {axis}, got {index}, "
        f"for {where}, which is visible; clamp the index, or hide the pair with a mask"
    )
