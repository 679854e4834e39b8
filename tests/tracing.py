"""Tracing a mod and evaluating its graph over every pair, to compare with what the function itself gives."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rootdk.mods.evaluate import evaluate
from rootdk.mods.trace import Traced, Tracer

Shape = tuple[int, int, int, int]
"""batch, heads, q_len, kv_len."""


def tracer_for(shape: Shape) -> Tracer:
    batch, heads, q_len, kv_len = shape
    return Tracer(q_len, kv_len, heads, (batch,))


def trace_mask(function: Callable[..., Any], shape: Shape = (2, 2, 8, 8)) -> Traced:
    tracer = tracer_for(shape)
    return tracer.finish(None, tracer.call(function, *tracer.indices, what="mask"))


def trace_score(function: Callable[..., Any], shape: Shape = (2, 2, 8, 8)) -> Traced:
    tracer = tracer_for(shape)
    return tracer.finish(tracer.call(function, tracer.score, *tracer.indices, what="score_mod"), None)


def over_pairs(traced: Traced, shape: Shape, score: Any = 0.0, dtype: Any = np.float64) -> Any:
    """The values of all nodes, for every pair of ``shape``."""
    b, h, q, kv = np.ogrid[tuple(slice(size) for size in shape)]
    return evaluate(traced.graph, traced.constants, traced.arrays, score=score, b=b, h=h, q=q, kv=kv, dtype=dtype)


def dense_mask(function: Callable[..., Any], shape: Shape = (2, 2, 8, 8)) -> np.ndarray:
    """Who may attend to whom, by the traced graph of a mask function."""
    return masked(trace_mask(function, shape), shape)


def masked(traced: Traced, shape: Shape) -> np.ndarray:
    mask = traced.graph.mask
    return np.broadcast_to(True if mask is None else over_pairs(traced, shape)[mask], shape)


def dense_score(function: Callable[..., Any], score: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
    """Every pair's new score, by the traced graph of a score function."""
    traced = trace_score(function, score.shape)
    node = traced.graph.score
    return np.broadcast_to(score if node is None else over_pairs(traced, score.shape, score, dtype)[node], score.shape)
