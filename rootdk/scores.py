"""Ready-made score functions, each as a user would write it; ``score_mod`` takes one, or a sequence in order."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rootdk.errors import ArgumentError, DTypeError, ShapeError
from rootdk.mods.lang import Align, absolute, array, check_align, clip, is_array, position, sizes, tanh
from rootdk.mods.values import Made, Score, as_score

__all__ = ["alibi", "alibi_slopes", "relative_bias", "score", "softcap"]


def softcap(cap: Any) -> Score:
    """Scores squeezed into (-cap, cap): cap * tanh(score / cap), as in Gemma 2 and Grok.

    ``cap`` is a positive number, or a 0-d floating array, which can be learned.

    >>> rootdk.softcap(30.0)             # 3 -> 2.990, 30 -> 22.85, 300 -> 30
    softcap(30.0)

    Raises ArgumentError for a number that is not positive and finite.
    """
    if is_array(cap):
        if cap.ndim or "float" not in str(cap.dtype):
            raise ShapeError(f"cap: expected a number or a 0-d floating array, got {cap.dtype} {tuple(cap.shape)}")
        return _softcap_of(cap)
    if isinstance(cap, bool) or not hasattr(cap, "__float__") or not 0 < float(cap) < math.inf:
        raise ArgumentError(f"cap: expected a positive number, got {cap!r}")
    return _softcap(float(cap))


@functools.lru_cache(maxsize=64)
def _softcap(cap: float) -> Score:
    return _softcap_of(cap)


def _softcap_of(cap: Any) -> Score:
    def softcap(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return cap * tanh(score / cap)

    text = f"softcap({cap if isinstance(cap, float) else 'array'})"
    return Score(softcap, text, Made(__name__, "softcap", (cap,)))


def alibi(slopes: Any = None, align: Align = None) -> Score:
    """Attention with linear biases: score - slopes[h] * |position - j|, so that near keys count more.

    ``slopes`` is a floating array [heads]; by default those of the paper, for any number of heads. ``align`` as for
    ``causal``.

    >>> rootdk.alibi()                   # 2 heads: slopes 1/16 and 1/256
    alibi()

    Raises DTypeError and ShapeError for slopes that are not floats [heads].
    """
    align = check_align(align)
    return _paper_alibi(align) if slopes is None else _alibi(_floats("slopes", slopes, 1, "[heads]"), align)


@functools.lru_cache(maxsize=64)
def _paper_alibi(align: Align) -> Score:
    def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        slopes = array(h, alibi_slopes(sizes(h).heads), "slopes")
        return score - slopes[h] * absolute(position(q_idx, align) - kv_idx)

    text = "alibi()" if align is None else f"alibi(align={align!r})"
    return Score(alibi, text, Made(__name__, "alibi", (None, align)))


def _alibi(slopes: Any, align: Align) -> Score:
    def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        _check_heads("slopes", slopes, sizes(h).heads)
        return score - slopes[h] * absolute(position(q_idx, align) - kv_idx)

    text = f"alibi({slopes.dtype} {list(slopes.shape)})"
    return Score(alibi, text, Made(__name__, "alibi", (slopes, align)))


@functools.lru_cache(maxsize=64)
def alibi_slopes(heads: int) -> np.ndarray:
    """The paper's slopes [heads]: 2^(-8 i / n) for the n heads of a power of two, and every other one of 2 n between.

    >>> alibi_slopes(3)
    array([0.0625    , 0.00390625, 0.25      ])
    """
    power = 2 ** (max(heads, 1).bit_length() - 1)
    own = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    slopes = np.array((own + between)[:heads], np.float64)
    slopes.flags.writeable = False
    return slopes


def relative_bias(table: Any, align: Align = None) -> Score:
    """A learned bias for each distance: score + table[h, clip(j - position, -r, r) + r].

    ``table`` is a floating array [heads, 2 r + 1]. ``align`` as for ``causal``.

    >>> rootdk.relative_bias(np.zeros((8, 65)))      # distances up to 32, then the same
    relative_bias(float64 [8, 65])

    Raises DTypeError and ShapeError for a table that is not floats [heads, 2 r + 1].
    """
    align = check_align(align)
    table = _floats("table", table, 2, "[heads, 2 r + 1]")
    if table.shape[1] % 2 == 0:
        raise ShapeError(
            f"table: expected [heads, 2 r + 1], an odd number of distances, got shape {tuple(table.shape)}"
        )
    reach = table.shape[1] // 2

    def relative_bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        _check_heads("table", table, sizes(h).heads)
        return score + table[h, clip(kv_idx - position(q_idx, align), -reach, reach) + reach]

    text = f"relative_bias({table.dtype} {list(table.shape)})"
    return Score(relative_bias, text, Made(__name__, "relative_bias", (table, align)))


def score(function: Callable[..., Any]) -> Score:
    """A score function of your own: f(score, b, h, q_idx, kv_idx) -> score, on indices; ``h`` counts query heads.

    >>> rootdk.score(lambda score, b, h, q_idx, kv_idx: 2 * score)
    score(<lambda>)

    Raises ArgumentError for what is not a function. It is read at each call, and checked then.
    """
    return as_score(function)


def _floats(name: str, value: Any, rank: int, shape: str) -> Any:
    array = np.asarray(value, np.float64) if isinstance(value, list | tuple) else value
    if not is_array(array):
        raise ArgumentError(f"{name}: expected a floating array {shape}, got {type(value).__name__}")
    if "float" not in str(array.dtype):
        raise DTypeError(f"{name}: expected floats, got {array.dtype}; convert it: {name}.astype(np.float32)")
    if array.ndim != rank:
        raise ShapeError(f"{name}: expected {shape}, got shape {tuple(array.shape)}")
    return array


def _check_heads(name: str, array: Any, heads: int) -> None:
    if array.shape[0] != heads:
        raise ShapeError(
            f"{name}: expected one row for each of the {heads} query heads, got shape {tuple(array.shape)}"
        )
