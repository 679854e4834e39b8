"""Range tables: the smallest and largest element of a captured array over any stretch of one dimension.

A mask that compares gathered values (document ids, lengths, padding) skips tiles by what the array holds under each
tile. The array's contents may change from call to call, so tables are built at each call; code depends only on which
gathers have one. A table is one block of 64-bit words:

    0                  log2 of the granule, in elements
    1                  words from one level to the next: 2 per granule of the stretched dimension
    2                  1 where any element is NaN
    3, 4               smallest, largest element of all
    5 ... 5 + rank     the array's shape
    ... 5 + 2 rank     words from one index of each dimension to the next (0 for the stretched one)
    the rest           [rows, levels, granules, 2]: smallest, and ~largest, of the 2**level granules from each one on

so two entries of one level cover any stretch, and both words are combined by taking the smaller. Floats are stored as words that order as their values do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rootdk import dtypes
from rootdk.dtypes import DType, Kind
from rootdk.mods.expr import Graph

if TYPE_CHECKING:
    from rootdk.mods.intervals import Algebra, IntRange

__all__ = ["Stretch", "build", "build_all", "from_ordered", "look_up", "reachable", "stretches", "varying", "whole"]

_HEADER = 5
_INT_MAX = 2**63 - 1

MAX_WORDS = 2**20
"""Tables larger than this (8 MiB) are not built; their gathers can be anything."""

MAX_ELEMENTS = 2**24
"""Nor are tables of arrays that would take longer to read than skipped tiles could save."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A gather that has a range table: at most one of its indices varies within a tile."""

    node: int
    slot: int
    dimension: int | None
    """The dimension whose index varies, or the last; None for rank 0."""
    fine: bool
    """Whether single elements matter: the index is not simply a tile's position."""


def varying(graph: Graph) -> list[bool]:
    """Which nodes can differ within a tile: those that depend on q, kv or the score."""
    found: list[bool] = []
    for node in graph.nodes:
        leaf = node.op == "score" or (node.op == "index" and node.attr in ("q", "kv"))
        found.append(leaf or any(found[arg] for arg in node.args))
    return found


def reachable(graph: Graph, roots: Sequence[int]) -> set[int]:
    """The nodes that ``roots`` depend on, themselves included."""
    found = set(roots)
    for number in reversed(range(len(graph.nodes))):
        if number in found:
            found.update(graph.nodes[number].args)
    return found


def stretches(graph: Graph) -> tuple[Stretch, ...]:
    """The gathers of ``graph`` that get a range table: those that decide the mask, or index another gather."""
    roots = [] if graph.mask is None else [graph.mask]
    for node in graph.nodes:
        if node.op == "gather":
            roots += node.args
    varies = varying(graph)
    found = []
    for number in sorted(reachable(graph, roots)):
        node = graph.nodes[number]
        if node.op != "gather":
            continue
        moving = [dimension for dimension, arg in enumerate(node.args) if varies[arg]]
        if len(moving) > 1:
            continue
        assert isinstance(node.attr, int)
        dimension = moving[0] if moving else len(node.args) - 1 if node.args else None
        fine = not moving or not _is_position(graph, varies, node.args[moving[0]])
        found.append(Stretch(number, node.attr, dimension, fine))
    return tuple(found)


def _is_position(graph: Graph, varies: list[bool], number: int) -> bool:
    """Whether a node is q or kv, or that moved by what is fixed within a tile."""
    node = graph.nodes[number]
    if node.op in ("add", "subtract"):
        return all(not varies[arg] or _is_position(graph, varies, arg) for arg in node.args)
    return node.op == "index"


def whole(dtype: DType) -> tuple[int, int]:
    """The smallest and largest word that an array of ``dtype`` can hold."""
    if dtype.kind is Kind.FLOAT:
        return int(_ordered(np.float64(-np.inf))), int(_ordered(np.float64(np.inf)))
    if dtype.kind is Kind.BOOL:
        return 0, 1
    if dtype.size == 8:
        return -(2**63), _INT_MAX  # unsigned too: a mod's integers are signed, and wrap
    limits = np.iinfo(dtype.name)
    return int(limits.min), int(limits.max)


def _ordered(values: Any) -> Any:
    """float64 values as integers in the same order: of negatives, all bits but the sign are flipped."""
    bits = values.view(np.int64)
    return bits ^ ((bits >> 63) & _INT_MAX)


def from_ordered(word: Any) -> Any:
    """The bits of the float64 that ``_ordered`` made ``word`` of."""
    return word ^ ((word >> 63) & _INT_MAX)


def build_all(graph: Graph, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The range tables of a call, one per stretch of ``graph``; gathers that read alike share one."""
    made: dict[tuple[int, int | None, bool], np.ndarray] = {}
    found = []
    for stretch in stretches(graph):
        key = (stretch.slot, stretch.dimension, stretch.fine)
        if key not in made:
            made[key] = build(arrays[stretch.slot], stretch.dimension, stretch.fine)
        found.append(made[key])
    return tuple(found)


def build(array: np.ndarray, dimension: int | None, fine: bool) -> np.ndarray:
    """The range table of ``array`` along ``dimension``, as int64 words in this module's layout.

    Example: ``build(np.array([3, 1, 2]), 0, True)[3:5]`` is ``[1, 3]``.
    """
    shape = array.shape
    view = array.reshape(1) if dimension is None else np.moveaxis(array, dimension, -1)
    # rows that broadcasting repeats are read, and stored, once
    others = tuple(slice(0, 1) if step == 0 else slice(None) for step in view.strides[:-1])
    view = view[(*others, slice(None))]
    length, rows = view.shape[-1], view.size // max(view.shape[-1], 1)
    granule_log2 = 0 if length <= 256 or (fine and length <= 4096) else 4
    granules = -(-length // (1 << granule_log2))
    levels = max(granules, 1).bit_length()
    words = 2 * granules * levels * rows
    if view.size == 0 or words > MAX_WORDS or view.size > MAX_ELEMENTS:
        return _unknown(array)
    low, high, nan = _extremes(view.reshape(rows, length), 1 << granule_log2)
    table = np.empty(_HEADER + 2 * len(shape) + words, np.int64)
    body = table[_HEADER + 2 * len(shape) :].reshape(rows, levels, granules, 2)
    body[:, 0, :, 0] = low
    np.invert(high, out=body[:, 0, :, 1])
    for level in range(1, levels):
        below, half = body[:, level - 1], 1 << (level - 1)
        count = granules - 2 * half + 1
        np.minimum(below[:, :count], below[:, half : half + count], out=body[:, level, :count])
        body[:, level, count:] = below[:, count:]
    table[:_HEADER] = granule_log2, 2 * granules, nan, low.min(), high.max()
    table[_HEADER : _HEADER + 2 * len(shape)] = *shape, *_steps(view.shape, len(shape), dimension, words // rows)
    return table


def _steps(view_shape: tuple[int, ...], rank: int, dimension: int | None, row: int) -> list[int]:
    """Words between neighbours in each dimension of the array; 0 for ``dimension`` and broadcast ones."""
    steps = []
    for size in reversed(view_shape[:-1]):
        steps.append(row if size > 1 else 0)
        row *= size
    steps.reverse()
    if dimension is not None:
        steps.insert(dimension, 0)
    assert len(steps) == rank
    return steps


def _unknown(array: np.ndarray) -> np.ndarray:
    """A table that says of any element that it can be anything."""
    dtype = dtypes.of(array)
    assert dtype is not None
    low, high = whole(dtype)
    return np.array([62, 2, 1, low, high, *array.shape, *[0] * array.ndim, low, ~high], np.int64)


def _extremes(rows: np.ndarray, granule: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Smallest and largest word of each ``granule`` elements of each row, and whether any is NaN."""
    dtype = dtypes.of(rows)
    assert dtype is not None
    if dtype.kind is not Kind.FLOAT:
        if dtype.name == "uint64":
            rows = rows.astype(np.int64)
        low, high = _reduce(np.minimum, rows, granule), _reduce(np.maximum, rows, granule)
        return low.astype(np.int64), high.astype(np.int64), False
    if dtype is dtypes.BFLOAT16:
        rows = dtypes.to_float64(rows)
    nan = bool(np.isnan(rows).any())
    smaller, larger = (np.fmin, np.fmax) if nan else (np.minimum, np.maximum)
    low, high = _reduce(smaller, rows, granule).astype(np.float64), _reduce(larger, rows, granule).astype(np.float64)
    if nan:  # granules of nothing else
        low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
    return _ordered(low), _ordered(high), nan


def _reduce(smaller: np.ufunc, rows: np.ndarray, granule: int) -> np.ndarray:
    return rows if granule == 1 else smaller.reduceat(rows, np.arange(0, rows.shape[1], granule), axis=1)


def look_up(a: "Algebra", table: Any, dimension: int | None, index: Sequence["IntRange"]) -> tuple[Any, Any, Any, Any]:
    """Smallest and largest word under ``index``, whether NaN is possible, and whether all of it is inside the array."""
    rank = len(index)
    known, point = a.literal(Kind.BOOL, True), a.literal(Kind.BOOL, True)
    row = first = last = a.literal(Kind.INT, 0)
    for number, at in enumerate(index):
        size = a.load(table, a.literal(Kind.INT, _HEADER + number))
        known = known & (at.low >= -size) & (at.high < size)
        # negative indices count from the end; a range with both signs can be any
        low = a.select(at.low >= 0, at.low, a.select(at.high < 0, at.low + size, 0))
        high = a.select(at.high < 0, at.high + size, a.select(at.low < 0, size - 1, at.high))
        if number == dimension:
            first, last = low, high
        else:
            point = point & (low == high)
            row = row + low * a.load(table, a.literal(Kind.INT, _HEADER + rank + number))
    safe = known & point
    granule = a.load(table, a.literal(Kind.INT, 0))
    first, last = a.select(safe, first, 0) >> granule, a.select(safe, last, 0) >> granule
    level = a.log2(last - first + 1)
    start = a.select(safe, row, 0) + level * a.load(table, a.literal(Kind.INT, 1)) + (_HEADER + 2 * rank)
    left, right = start + first * 2, start + (last + 1 - (a.literal(Kind.INT, 1) << level)) * 2
    low = a.lower(a.load(table, left), a.load(table, right))
    high = ~a.lower(a.load(table, left + 1), a.load(table, right + 1))
    low = a.select(point, low, a.load(table, a.literal(Kind.INT, 3)))
    high = a.select(point, high, a.load(table, a.literal(Kind.INT, 4)))
    return low, high, a.load(table, a.literal(Kind.INT, 2)) != 0, known
