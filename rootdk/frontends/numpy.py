"""NumPy in, NumPy out."""

from typing import Any

import numpy as np

from rootdk import engine, problem
from rootdk.mods import ranges

__all__ = ["attention"]


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, return_lse: bool = False, **options: Any
) -> Any:
    """Output, or (output, LSE), of one call on NumPy arrays."""
    bound = problem.bind(query, key, value, **options)
    output, lse = engine.allocate(bound, lse=return_lse)
    tables = ranges.build_all(bound.problem.graph, bound.operands.arrays)
    prepared = engine.prepare(bound, output, lse, tables)
    engine.run(prepared, bound.operands, output, lse, tables)
    return (output, lse) if return_lse else output
