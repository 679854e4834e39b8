"""Ready-made masks. Each is a mask function as a user would write it, so each compiles to loop bounds where it can.

In the examples ``o`` is a visible pair, queries down and keys across. Masks combine: ``causal() & documents(ids)``.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from rootdk.errors import ArgumentError, DTypeError, ShapeError
from rootdk.mods.lang import Align, check_align, is_array, position, sizes
from rootdk.mods.values import FunctionMask, Made, Mask, as_mask

__all__ = ["causal", "documents", "lengths", "mask", "prefix_lm", "sink_tokens", "sliding_window"]


def causal(align: Align = None) -> Mask:
    """Each query sees the keys up to its own position.

    ``align`` says where query 0 stands among the keys: "start" at key 0, "end" so that the last query stands at the
    last key, an integer at that key. It must be given where q_len differs from kv_len.

    >>> rootdk.causal()                  # 3 queries, 3 keys
    o . .
    o o .
    o o o

    Raises ArgumentError for another ``align``, and at the call where it is missing and the lengths differ.
    """
    return _causal(check_align(align))


@functools.lru_cache(maxsize=64)
def _causal(align: Align) -> Mask:
    def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= position(q_idx, align)

    return FunctionMask(causal, f"causal({_shown(align=align)})", Made(__name__, "causal", (align,)))


def sliding_window(left: int | None, right: int | None = 0, align: Align = None) -> Mask:
    """Each query sees the keys from ``left`` before its position to ``right`` after it, both included.

    None leaves a side unbounded; ``sliding_window(None, 0)`` is ``causal()``. ``align`` as for ``causal``.

    >>> rootdk.sliding_window(1)         # 4 queries, 4 keys: itself and the key before
    o . . .
    o o . .
    . o o .
    . . o o

    Raises ArgumentError for a negative or fractional width.
    """
    return _sliding_window(_width("left", left), _width("right", right), check_align(align))


@functools.lru_cache(maxsize=256)
def _sliding_window(left: int | None, right: int | None, align: Align) -> Mask:
    def sliding_window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        visible: Any = True
        if left is None and right is None:
            return visible
        at = position(q_idx, align)
        if left is not None:
            visible = (kv_idx >= at - left) & visible
        if right is not None:
            visible = (kv_idx <= at + right) & visible
        return visible

    return FunctionMask(
        sliding_window,
        f"sliding_window({left}, {right}{_shown(', ', align=align)})",
        Made(__name__, "sliding_window", (left, right, align)),
    )


def prefix_lm(length: Any, align: Align = None) -> Mask:
    """Every query sees the first ``length`` keys; the rest is causal. ``length`` is an integer or an array [batch].

    >>> rootdk.prefix_lm(2)              # 4 queries, 4 keys
    o o . .
    o o . .
    o o o .
    o o o o

    Raises ArgumentError for a negative length, ShapeError and DTypeError for an array that is not integers [batch].
    """
    align = check_align(align)
    if is_array(length) and length.ndim:
        return _prefix_lm_per_batch(_integers("length", length, (1,), "[batch]"), align)
    return _prefix_lm(_count("length", length), align)


@functools.lru_cache(maxsize=256)
def _prefix_lm(length: int, align: Align) -> Mask:
    def prefix_lm(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx < length) | (kv_idx <= position(q_idx, align))

    return FunctionMask(
        prefix_lm, f"prefix_lm({length}{_shown(', ', align=align)})", Made(__name__, "prefix_lm", (length, align))
    )


def _prefix_lm_per_batch(length: Any, align: Align) -> Mask:
    def prefix_lm(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        _check_length("length", length, sizes(b).batch, "batch")
        return (kv_idx < length[b]) | (kv_idx <= position(q_idx, align))

    return FunctionMask(
        prefix_lm,
        f"prefix_lm({_array_text(length)}{_shown(', ', align=align)})",
        Made(__name__, "prefix_lm", (length, align)),
    )


def documents(ids: Any, kv_ids: Any = None) -> Mask:
    """Several documents in one sequence: a query sees the keys of its own document.

    ``ids`` are integers [len] or [batch, len], one per query, and per key too unless ``kv_ids`` gives those. A negative
    id is padding, which sees nothing and is seen by nobody.

    >>> rootdk.documents(np.array([0, 0, 1, -1]))
    o o . .
    o o . .
    . . o .
    . . . .

    Raises DTypeError for ids that are not integers, ShapeError where they do not fit q_len, kv_len and batch.
    """
    ids = _integers("ids", ids, (1, 2), "[len] or [batch, len]")
    names = "ids", "ids" if kv_ids is None else "kv_ids"
    kv_ids = ids if kv_ids is None else _integers("kv_ids", kv_ids, (1, 2), "[len] or [batch, len]")

    def documents(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        batch, _, q_len, kv_len = sizes(b)
        for name, array, length, meaning in ((names[0], ids, q_len, "q_len"), (names[1], kv_ids, kv_len, "kv_len")):
            _check_length(name, array, length, meaning, -1)
            if len(array.shape) == 2:
                _check_length(name, array, batch, "batch")
        query = ids[b, q_idx] if len(ids.shape) == 2 else ids[q_idx]
        key = kv_ids[b, kv_idx] if len(kv_ids.shape) == 2 else kv_ids[kv_idx]
        return (query == key) & (query >= 0)

    return FunctionMask(
        documents,
        f"documents({_array_text(ids)})",
        Made(__name__, "documents", (ids, None if kv_ids is ids else kv_ids)),
    )


def lengths(kv_lengths: Any) -> Mask:
    """Padded batches: batch ``b`` has ``kv_lengths[b]`` keys, and what follows is hidden. Integers [batch].

    >>> rootdk.lengths(np.array([2]))    # 2 queries, 4 keys
    o o . .
    o o . .

    Raises DTypeError for lengths that are not integers, ShapeError for another shape.
    """
    kv_lengths = _integers("kv_lengths", kv_lengths, (1,), "[batch]")

    def lengths(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        _check_length("kv_lengths", kv_lengths, sizes(b).batch, "batch")
        return kv_idx < kv_lengths[b]

    return FunctionMask(lengths, f"lengths({_array_text(kv_lengths)})", Made(__name__, "lengths", (kv_lengths,)))


def sink_tokens(count: int) -> Mask:
    """The first ``count`` keys, which every query sees; with a window: ``sliding_window(256) | sink_tokens(4)``.

    >>> rootdk.sink_tokens(1)            # 2 queries, 3 keys
    o . .
    o . .

    Raises ArgumentError for a negative or fractional count.
    """
    return _sink_tokens(_count("count", count))


@functools.lru_cache(maxsize=256)
def _sink_tokens(count: int) -> Mask:
    def sink_tokens(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx < count

    return FunctionMask(sink_tokens, f"sink_tokens({count})", Made(__name__, "sink_tokens", (count,)))


def mask(function_or_array: Callable[..., Any] | Any) -> Mask:
    """A mask of your own, to combine with others: f(b, h, q_idx, kv_idx) -> bool, or a boolean array.

    The function gets indices, not positions; ``h`` counts query heads. The array (True = visible) broadcasts to
    [batch, heads, q_len, kv_len]. Both are read at each call.

    >>> rootdk.mask(lambda b, h, q_idx, kv_idx: kv_idx % 2 == 0)      # 2 queries, 4 keys
    o . o .
    o . o .

    Raises DTypeError for an array that is not boolean. The function is checked when it is used.
    """
    return as_mask(function_or_array)


def _width(name: str, value: Any) -> int | None:
    return None if value is None else _count(name, value, "a number of keys, 0 or more, or None for no bound")


def _count(name: str, value: Any, expected: str = "a number of keys, 0 or more") -> int:
    whole = hasattr(type(value), "__index__") and not isinstance(value, bool)
    if not whole or operator.index(value) < 0:
        raise ArgumentError(f"{name}: expected {expected}, got {value!r}")
    return operator.index(value)


def _integers(name: str, value: Any, ranks: tuple[int, ...], shape: str) -> Any:
    array = np.asarray(value) if isinstance(value, list | tuple) else value
    if not is_array(array):
        raise ArgumentError(f"{name}: expected an array of integers {shape}, got {type(value).__name__}")
    if "int" not in str(array.dtype):
        raise DTypeError(f"{name}: expected integers, got {array.dtype}; convert it: {name}.astype(np.int64)")
    if array.ndim not in ranks:
        raise ShapeError(f"{name}: expected {shape}, got shape {tuple(array.shape)}")
    return array


def _check_length(name: str, array: Any, expected: int, meaning: str, axis: int = 0) -> None:
    if array.shape[axis] != expected:
        hint = "; give the ids of the keys as kv_ids=" if name == "ids" and axis == -1 else ""
        raise ShapeError(f"{name}: expected {meaning} = {expected} elements, got shape {tuple(array.shape)}{hint}")


def _array_text(array: Any) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _shown(before: str = "", *, align: Align) -> str:
    return "" if align is None else f"{before}align={align!r}"
