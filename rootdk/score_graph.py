"""The score functions, the bias and the mask of one call, as one graph.

Scores go through scale, then each score function in turn, then the bias, then the mask. A pair is hidden where the mask
is False, or where a score function or the bias makes its score -inf: what was hidden once stays hidden, whatever comes
after. Bias and dense boolean masks are gathers of captured arrays like any other, so kernels know neither.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rootdk import arguments
from rootdk.mods import lang
from rootdk.mods.dense import dense
from rootdk.mods.expr import Graph
from rootdk.mods.score_mask import with_score_mask
from rootdk.mods.trace import Sym, Traced, Tracer
from rootdk.mods.values import Mask, Score, as_mask, as_score

__all__ = ["ScoreMods", "TracedMods", "trace_mods"]


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMods:
    """What changes the scores, as the caller gave it."""

    mask: Any = None
    bias: Any = None
    score_mod: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class TracedMods:
    """``ScoreMods`` as data."""

    traced: Traced
    bias: int | None = None
    """The array slot of the bias."""


_UNCHANGED = TracedMods(Traced(Graph(), (), (), (), {}))


def trace_mods(mods: ScoreMods, shape: tuple[int, ...]) -> TracedMods:
    """Check and trace ``mods`` for scores of ``shape`` = [*batch, heads, q_len, kv_len]."""
    if mods.mask is None and mods.bias is None and mods.score_mod is None:
        return _UNCHANGED
    # all is checked before the first of the user's functions runs
    steps, mask = _score_steps(mods.score_mod), _mask(mods.mask)
    if mods.bias is not None:
        arguments.check_bias(mods.bias)
    elif (mask is None or mask.fixed) and all(step.fixed for step in steps):
        return _trace_fixed(steps, mask, shape)
    return _trace(steps, mods.bias, mask, shape)


@functools.lru_cache(maxsize=256)
def _trace_fixed(steps: tuple[Score, ...], mask: Mask | None, shape: tuple[int, ...]) -> TracedMods:
    """What ready-made masks and scores come to; tracing them takes longer than all else that a small call does."""
    return _trace(steps, None, mask, shape)


def _trace(
    steps: tuple[Score, ...], bias_array: np.ndarray | None, mask: Mask | None, shape: tuple[int, ...]
) -> TracedMods:
    *batch_shape, heads, q_len, kv_len = shape
    tracer = Tracer(q_len, kv_len, heads, tuple(batch_shape))
    score, bias = _trace_score(tracer, steps, bias_array)
    visible = None if mask is None else mask.trace(tracer, *tracer.indices)
    traced = tracer.finish(score, visible)
    traced = replace(traced, graph=with_score_mask(traced.graph))
    slot = None if bias is None else next(slot for slot, array in enumerate(traced.arrays) if array is bias)
    return TracedMods(traced, slot)


def _score_steps(score_mod: Any) -> tuple[Score, ...]:
    if score_mod is None:
        return ()
    return tuple(map(as_score, score_mod)) if isinstance(score_mod, list | tuple) else (as_score(score_mod),)


def _mask(mask: Any) -> Mask | None:
    if isinstance(mask, np.ndarray):
        arguments.check_array("mask", mask)
    return None if mask is None else as_mask(mask)


def _trace_score(
    tracer: Tracer, steps: tuple[Score, ...], bias: np.ndarray | None
) -> tuple[Sym | None, np.ndarray | None]:
    """The score after every step and the bias, and the view that the graph reads the bias through."""
    score = tracer.score
    for number, step in enumerate(steps):
        changed = step.trace(tracer, score, *tracer.indices)
        score = changed if number == 0 else lang.where(score == -math.inf, -math.inf, changed)
    if bias is None:
        return (score if steps else None), None
    added, view = dense(tracer, bias, "bias")
    # -inf hides even where the score is NaN or inf, which the sum would not
    hidden = added == -math.inf
    if steps:
        hidden = hidden | (score == -math.inf)
    return lang.where(hidden, -math.inf, score + added), view
