"""The score functions, the bias and the mask of one call, as one graph.

Scores go through scale, then each score function in turn, then the bias, then the mask. A pair is hidden where the mask
is False, or where a score function or the bias makes its score -inf: what was hidden once stays hidden, whatever comes
after. Bias and dense boolean masks are gathers of captured arrays like any other, so kernels know neither.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rootdk import arguments
from rootdk.errors import ArgumentError
from rootdk.mods import lang
from rootdk.mods.dense import dense
from rootdk.mods.expr import Graph
from rootdk.mods.trace import Sym, Traced, Tracer
from rootdk.mods.values import Mask, Score

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
    steps = _score_steps(mods.score_mod)
    _check_arrays(mods, shape)
    *batch_shape, heads, q_len, kv_len = shape
    tracer = Tracer(q_len, kv_len, heads, tuple(batch_shape))
    score, bias = _trace_score(tracer, steps, mods.bias, shape)
    mask = None if mods.mask is None else _trace_mask(tracer, mods.mask, shape)
    traced = tracer.finish(score, mask)
    slot = None if bias is None else next(slot for slot, array in enumerate(traced.arrays) if array is bias)
    return TracedMods(traced, slot)


def _score_steps(score_mod: Any) -> tuple[Any, ...]:
    steps = () if score_mod is None else tuple(score_mod) if isinstance(score_mod, list | tuple) else (score_mod,)
    for step in steps:
        if isinstance(step, Mask):
            raise ArgumentError("score_mod: expected a score function, got a mask; pass it as mask=")
        if isinstance(step, np.ndarray):
            raise ArgumentError("score_mod: expected a score function, got an array; to add it to the scores: bias=")
        if not isinstance(step, Score) and not callable(step):
            raise ArgumentError(
                "score_mod: expected f(score, b, h, q_idx, kv_idx) -> score, or a sequence of such functions, got "
                f"{type(step).__name__}"
            )
    return steps


def _check_arrays(mods: ScoreMods, shape: tuple[int, ...]) -> None:
    mask = mods.mask
    if mods.bias is not None:
        arguments.check_bias(mods.bias)
        arguments.check_broadcast("bias", mods.bias.shape, shape)
    if isinstance(mask, np.ndarray):
        arguments.check_mask(mask)
        arguments.check_broadcast("mask", mask.shape, shape)
    elif isinstance(mask, Score):
        raise ArgumentError("mask: expected a mask, got a score function; pass it as score_mod=")
    elif mask is not None and not isinstance(mask, Mask) and not callable(mask):
        raise ArgumentError(
            "mask: expected a boolean array (True = may attend), a mask such as rootdk.causal(), or "
            f"f(b, h, q_idx, kv_idx) -> bool, got {mask if isinstance(mask, bool) else type(mask).__name__}; "
            "None shows every pair"
        )


def _trace_score(
    tracer: Tracer, steps: tuple[Any, ...], bias: np.ndarray | None, shape: tuple[int, ...]
) -> tuple[Sym | None, np.ndarray | None]:
    """The score after every step and the bias, and the view that the graph reads the bias through."""
    score = tracer.score
    for number, step in enumerate(steps):
        if isinstance(step, Score):
            changed = step.trace(tracer, score, *tracer.indices)
        else:
            changed = tracer.call(step, score, *tracer.indices, what="score_mod")
        score = changed if number == 0 else lang.where(score == -math.inf, -math.inf, changed)
    if bias is None:
        return (score if steps else None), None
    added, view = dense(tracer, bias, "bias")
    # -inf hides even where the score is NaN or inf, which the sum would not
    hidden = added == -math.inf
    if steps:
        hidden = hidden | (score == -math.inf)
    return lang.where(hidden, -math.inf, score + added), view


def _trace_mask(tracer: Tracer, mask: Any, shape: tuple[int, ...]) -> Sym:
    if isinstance(mask, Mask):
        return mask.trace(tracer, *tracer.indices)
    if isinstance(mask, np.ndarray):
        return dense(tracer, mask, "mask")[0]
    return tracer.call(mask, *tracer.indices, what="mask")
