"""The score functions, the bias and the mask of one call, as one graph.

Scores go through scale, then each score function in turn, then the bias, then the mask. A pair is hidden where the mask
is False, or where a score function or the bias makes its score -inf: what was hidden once stays hidden, whatever comes
after. Bias and dense boolean masks are gathers of captured arrays like any other, so kernels know neither.
"""

import functools
import math
from collections.abc import Callable
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

__all__ = ["ScoreMods", "TracedMods", "finish", "hidden_stays_hidden", "trace_mods"]


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
    origins: tuple[Any, ...] = ()
    """What the user holds of the array in each slot: of a mask or bias, with all of its dimensions."""
    asked: bool = False
    """The graph depends on the contents of captured arrays."""


_UNCHANGED = TracedMods(Traced(Graph(), (), (), (), {}))


def trace_mods(mods: ScoreMods, shape: tuple[int, ...], new_tracer: Callable[..., Tracer] = Tracer) -> TracedMods:
    """Check and trace ``mods`` for scores of ``shape`` = [*batch, heads, q_len, kv_len].

    What was traced before, a ``TracedMods`` in the place of the score functions, is everything then.
    """
    if isinstance(mods.score_mod, TracedMods):
        return mods.score_mod
    if mods.mask is None and mods.bias is None and mods.score_mod is None:
        return _UNCHANGED
    # all is checked before the first of the user's functions runs
    steps, mask = _score_steps(mods.score_mod), _mask(mods.mask)
    if mods.bias is None and (mask is None or mask.fixed) and all(step.fixed for step in steps):
        return _trace_fixed(steps, mask, shape)
    return _trace(steps, mods.bias, mask, _started(new_tracer, shape))


@functools.lru_cache(maxsize=256)
def _trace_fixed(steps: tuple[Score, ...], mask: Mask | None, shape: tuple[int, ...]) -> TracedMods:
    """What ready-made masks and scores come to; tracing them takes longer than all else that a small call does."""
    return _trace(steps, None, mask, _started(Tracer, shape))


def _started(new_tracer: Callable[..., Tracer], shape: tuple[int, ...]) -> Tracer:
    *batch_shape, heads, q_len, kv_len = shape
    return new_tracer(q_len, kv_len, heads, tuple(batch_shape))


def _trace(steps: tuple[Score, ...], bias: Any, mask: Mask | None, tracer: Tracer) -> TracedMods:
    score = tracer.score
    for number, step in enumerate(steps):
        changed = step.trace(tracer, score, *tracer.indices)
        score = changed if number == 0 else hidden_stays_hidden(score, changed)
    # the bias is read before the mask, so that slots have one order
    score, view = _with_bias(tracer, score, bias, changed=bool(steps))
    visible = None if mask is None else mask.trace(tracer, *tracer.indices)
    return _finished(tracer, score, visible, view)


def hidden_stays_hidden(score: Any, changed: Any) -> Any:
    """``changed``, but -inf where ``score`` was before a further score function."""
    return lang.where(score == -math.inf, -math.inf, changed)


def finish(tracer: Tracer, score: Sym | None, visible: Sym | None, bias: Any) -> TracedMods:
    """What was traced: the modified score and who is visible, where there is either, with the bias to be added."""
    score, view = _with_bias(tracer, tracer.score if score is None else score, bias, changed=score is not None)
    return _finished(tracer, score, visible, view)


def _finished(tracer: Tracer, score: Sym, visible: Sym | None, bias: Any) -> TracedMods:
    traced = tracer.finish(score, visible)
    traced = replace(traced, graph=with_score_mask(traced.graph))
    slot = None if bias is None else next(slot for slot, source in enumerate(traced.sources) if source is bias)
    origins = tuple(tracer.origins.get(id(source), source) for source in traced.sources)
    return TracedMods(traced, slot, origins, tracer.asked)


def _score_steps(score_mod: Any) -> tuple[Score, ...]:
    if score_mod is None:
        return ()
    return tuple(map(as_score, score_mod)) if isinstance(score_mod, list | tuple) else (as_score(score_mod),)


def _mask(mask: Any) -> Mask | None:
    if isinstance(mask, np.ndarray):
        arguments.check_array("mask", mask)
    return None if mask is None else as_mask(mask)


def _with_bias(tracer: Tracer, score: Sym, bias: Any, *, changed: bool) -> tuple[Sym, Any]:
    """The score with the bias, and the view that the graph reads the bias through."""
    if bias is None:
        return score, None
    added, view = dense(tracer, bias, "bias")
    # -inf hides even where the score is NaN or inf, which the sum would not
    hidden = added == -math.inf
    if changed:
        hidden = hidden | (score == -math.inf)
    return lang.where(hidden, -math.inf, score + added), view
