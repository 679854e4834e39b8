"""JAX's dot_product_attention under jit."""

from functools import partial
from typing import Any

import numpy as np

from rootdk.bench.cases import Arrays, Case
from rootdk.bench.patterns import WINDOW
from rootdk.bench.prepared import Prepared, UnavailableError, lengths_first

__all__ = ["dot_product_attention"]


def dot_product_attention(case: Case, arrays: Arrays) -> Prepared:
    """jax.nn.dot_product_attention on [batch, len, heads, d], the layout it is made for."""
    import jax

    options: dict[str, dict[str, Any]] = {
        "full": {},
        "causal": {"is_causal": True},
        "window": {"local_window_size": (WINDOW, 0)},
    }
    if case.pattern not in options:
        raise UnavailableError(f"has no {case.pattern}")
    if case.d_k != case.d_v:
        raise UnavailableError("needs d_k = d_v")
    if case.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    inputs = [jax.numpy.asarray(np.ascontiguousarray(lengths_first(array, case.layout))) for array in arrays]
    attend = jax.jit(partial(jax.nn.dot_product_attention, **options[case.pattern]))
    return Prepared(
        lambda: attend(*inputs).block_until_ready(),
        lambda output: np.asarray(output).swapaxes(1, 2),
    )
