"""Arrays over pairs, masks and biases, as gathers: [batch..., heads, q_len, kv_len], broadcast where a size is 1."""

import math
from itertools import combinations
from typing import Any

from rootdk.errors import ShapeError
from rootdk.mods.symbols import Sym
from rootdk.mods.trace import Tracer

__all__ = ["dense"]


def dense(tracer: Tracer, array: Any, name: str) -> tuple[Sym, Any]:
    """The element that ``array`` holds for a pair, and the view that it is read through.

    The shape must broadcast to [*batch_shape, heads, q_len, kv_len], or it is a ShapeError. A dimension of size 1 is
    broadcast: nothing indexes it, and the view lacks it. The view is a new array even when its shape is the same, so
    that an array which a function captures too has a slot, hence a gradient, of its own.
    """
    _check_broadcast(name, tuple(array.shape), (*tracer.batch_shape, tracer.heads, tracer.q_len, tracer.kv_len))
    b, h, q, kv = tracer.indices
    axes = [axis for axis in range(array.ndim) if array.shape[axis] != 1]
    view = array.squeeze(tuple(axis for axis in range(array.ndim) if array.shape[axis] == 1))[...]
    # counted from the right: -1 kv, -2 q, -3 h, then the batch dimensions
    last = {-1: kv, -2: q, -3: h}
    positions = [axis - array.ndim for axis in axes]
    indices = tuple(last[at] if at in last else _batch_index(b, tracer.batch_shape, at + 3) for at in positions)
    element: Sym = tracer.array(view, name)
    tracer.origins[id(view)] = array
    return (element[indices] if indices else element), view


def _batch_index(b: Sym, batch_shape: tuple[int, ...], axis: int) -> Sym:
    """The index along batch dimension ``axis`` (from the right) of flat batch ``b``."""
    inner = math.prod(batch_shape[axis + 1 :]) if axis != -1 else 1
    outer = math.prod(batch_shape[:axis])
    index = b if inner == 1 else b // inner
    return index if outer == 1 else index % batch_shape[axis]


def _check_broadcast(name: str, shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Refuse a shape that does not broadcast to ``target`` = [*batch, heads, q_len, kv_len]."""
    extra = max(len(shape) - len(target), 0)
    fits = all(size == 1 for size in shape[:extra]) and _fits(shape[extra:], target[len(target) - len(shape) + extra :])
    if fits:
        return
    message = f"{name}: expected a shape that broadcasts to [batch, heads, q_len, kv_len] = {target}, got {shape}"
    for axes in combinations(range(len(target)), len(shape)):
        if shape and _fits(shape, tuple(target[axis] for axis in axes)):
            wide = tuple(shape[axes.index(axis)] if axis in axes else 1 for axis in range(axes[0], len(target)))
            raise ShapeError(f"{message}; reshape it: {name}.reshape{wide}")
    raise ShapeError(f"{message}; each of its dimensions must be 1 or the one above, counted from the right")


def _fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return all(size in (1, full) for size, full in zip(shape, target, strict=True))
