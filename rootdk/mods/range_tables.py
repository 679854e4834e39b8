"""Range tables: the smallest and largest element of a captured array over any rectangle of two of its dimensions.

The array's contents may change from call to call, so tables are built at each call. A table is one block of 64-bit
words, over dimensions called rows and columns; one over columns alone has a single row:

    0, 1               log2 of the elements in a granule of rows, of columns
    2                  words from one level to the next: 2 per granule of columns
    3                  1 where any element is NaN
    4, 5               smallest, largest element of all
    6 ... 6 + rank     the array's shape
    ... 6 + 2 rank     words from one index of each dimension, or granule of rows, to the next; of columns 0
    the rest           [..., rows, levels, columns, 2]: smallest, and ~largest, of the 2**level granules from each on

so two entries of one level cover any stretch of columns, rows are looked at one by one, and both words are combined by
taking the smaller. Floats are stored as words that order as their values do.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rootdk import dtypes
from rootdk.dtypes import DType, Kind

if TYPE_CHECKING:
    from rootdk.mods.intervals import Algebra, IntRange

__all__ = ["ELEMENTS", "POSITIONS", "WHOLE", "build", "finite_below", "from_ordered", "look_up", "whole"]

_HEADER = 6
_INT_MAX = 2**63 - 1

MAX_WORDS = 2**18
"""Words of a table (2 MiB): its granules grow until it has no more."""

MAX_ELEMENTS = 2**26
"""Larger arrays have no table. Reading a boolean takes 0.1 to 0.2 ns, computing its pair over 1 ns in each head."""

MIN_PAIRS = 2**14
"""Smaller arrays over pairs (dense masks) have one granule: more take 0.1 ms, as long as all their tiles."""

_LEAST_FLOAT32 = np.float64(np.finfo(np.float32).min)

MOST_ROWS = 64
"""Granules of rows that are looked at. Over more of them, an element can be any of the whole array's."""

ELEMENTS, POSITIONS, WHOLE = 0, 4, 62
"""log2 of how many elements need no telling apart along a dimension: none, those of a tile, all."""


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


def build(array: np.ndarray, dimensions: tuple[int, ...], grain: tuple[int, ...]) -> np.ndarray:
    """The range table of ``array`` over ``dimensions``, (rows, columns), (columns,) or (), in this module's layout.

    ``grain`` is ``ELEMENTS``, ``POSITIONS`` or ``WHOLE`` for each of them. Example:
    ``build(np.array([3, 1, 2]), (0,), (ELEMENTS,))[4:6]`` is ``[1, 3]``.
    """
    view = _rows_and_columns(array, dimensions)
    if not 0 < view.size <= MAX_ELEMENTS:
        return _unknown(array)
    sizes = _granules(view.shape, grain)
    rows, columns = (-(-length // (1 << size)) for length, size in zip(view.shape[-2:], sizes, strict=True))
    levels = columns.bit_length()
    shape = (*view.shape[:-2], rows, levels, columns, 2)
    words = math.prod(shape)
    if words > MAX_WORDS:
        return _unknown(array)
    low, high, nan = _extremes(view, sizes)
    table = np.empty(_HEADER + 2 * array.ndim + words, np.int64)
    body = table[-words:].reshape(shape)
    body[..., 0, :, 0] = low
    np.invert(high, out=body[..., 0, :, 1])
    for level in range(1, levels):
        below, above, half = body[..., level - 1, :, :], body[..., level, :, :], 1 << (level - 1)
        count = columns - 2 * half + 1
        np.minimum(below[..., :count, :], below[..., half : half + count, :], out=above[..., :count, :])
        above[..., count:, :] = below[..., count:, :]
    table[:_HEADER] = *sizes, 2 * columns, nan, low.min(), high.max()
    table[_HEADER:-words] = *array.shape, *_steps(body, array.ndim, dimensions)
    return table


def finite_below(array: np.ndarray) -> np.ndarray | None:
    """A table that says of any element of a float ``array`` that it is not -inf, where so it is; else None.

    A float64 below float32's numbers counts as -inf: it is, for kernels that accumulate in float32.
    """
    if not 0 < array.size <= MAX_ELEMENTS:
        return None
    if array.dtype.itemsize == 2:  # NumPy has no quick minimum of them
        infinity = 0xFF80 if dtypes.of(array) is dtypes.BFLOAT16 else 0xFC00
        hides = bool((array.view(np.uint16) == infinity).any())
    else:
        hides = not array.min() >= _LEAST_FLOAT32  # also where it is NaN
    if hides:
        return None
    table = _unknown(array)
    table[[4, -2]] = int(_ordered(_LEAST_FLOAT32))
    return table


def _rows_and_columns(array: np.ndarray, dimensions: tuple[int, ...]) -> np.ndarray:
    """A view [..., rows, columns]; what broadcasting repeats beyond them is there once."""
    fixed = array.ndim - len(dimensions)
    view = np.moveaxis(array, dimensions, range(fixed, array.ndim))
    once = (slice(0, 1) if step == 0 else slice(None) for step in view.strides[:fixed])
    return view[*once, *[np.newaxis] * (2 - len(dimensions))]


def _granules(shape: tuple[int, ...], grain: tuple[int, ...]) -> list[int]:
    """log2 of the granules of rows and of columns."""
    sizes = [ELEMENTS, ELEMENTS, *grain][-2:]
    if sizes == [POSITIONS, POSITIONS]:
        if shape[-2] * shape[-1] < MIN_PAIRS:
            return [WHOLE, WHOLE]
        sizes[1] += 2  # tiles are wider than high
    elif sizes[1] == POSITIONS and shape[-1] <= 256:
        sizes[1] = ELEMENTS
    while True:
        rows, columns = (-(-length // (1 << size)) for length, size in zip(shape[-2:], sizes, strict=True))
        words = math.prod(shape[:-2]) * rows * columns * columns.bit_length() * 2
        if words <= MAX_WORDS or rows == columns == 1:
            return sizes
        sizes[columns >= rows] += 1


def _steps(body: np.ndarray, rank: int, dimensions: tuple[int, ...]) -> list[int]:
    """Words between neighbours in each dimension of an array of ``rank``; 0 for columns and what is broadcast."""
    words = [step // 8 if size > 1 else 0 for step, size in zip(body.strides[:-3], body.shape[:-3], strict=True)]
    fixed = [dimension for dimension in range(rank) if dimension not in dimensions]
    steps = dict(zip((*fixed, *dimensions[:-1]), words, strict=False))
    return [steps.get(dimension, 0) for dimension in range(rank)]


def _unknown(array: np.ndarray) -> np.ndarray:
    """A table that says of any element that it can be anything."""
    dtype = dtypes.of(array)
    assert dtype is not None
    low, high = whole(dtype)
    return np.array([WHOLE, WHOLE, 2, 1, low, high, *array.shape, *[0] * array.ndim, low, ~high], np.int64)


def _extremes(view: np.ndarray, sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray, bool]:
    """Smallest and largest word of each granule [..., rows, columns], and whether any element is NaN."""
    dtype = dtypes.of(view)
    assert dtype is not None
    if dtype.kind is not Kind.FLOAT:
        if dtype.kind is Kind.BOOL:
            view = view.view(np.uint8)  # faster
        elif dtype.name == "uint64":
            view = view.astype(np.int64)
        low, high = _reduce(np.minimum, view, sizes), _reduce(np.maximum, view, sizes)
        return low.astype(np.int64), high.astype(np.int64), False
    if dtype is dtypes.BFLOAT16:
        view = dtypes.to_float64(view)
    low = _reduce(np.minimum, view, sizes)
    nan = bool(np.isnan(low).any())
    if nan:
        low = _reduce(np.fmin, view, sizes)
    high = _reduce(np.fmax if nan else np.maximum, view, sizes).astype(np.float64)
    low = low.astype(np.float64)
    if nan:  # granules of nothing else
        low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
    return _ordered(low), _ordered(high), nan


def _reduce(smaller: np.ufunc, view: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    if view.shape[-2] > 1 and abs(view.strides[-1]) > abs(view.strides[-2]):
        return _reduce(smaller, view.swapaxes(-1, -2), sizes[::-1]).swapaxes(-1, -2)
    # whole lines of memory first: that is quick, and leaves little for the slow dimension
    *fixed, rows, columns = view.shape
    granule = min(1 << sizes[0], rows)
    even = rows // granule * granule
    found = view
    if granule > 1:
        found = smaller.reduce(view[..., :even, :].reshape(*fixed, -1, granule, columns), axis=-2)
    if even < rows:
        found = np.concatenate([found, smaller.reduce(view[..., even:, :], axis=-2, keepdims=True)], axis=-2)
    granule = min(1 << sizes[1], columns)
    return found if granule == 1 else smaller.reduceat(found, np.arange(0, columns, granule), axis=-1)


def look_up(
    a: "Algebra", table: Any, dimensions: tuple[int, ...], index: Sequence["IntRange"]
) -> tuple[Any, Any, Any, Any]:
    """Smallest and largest word under ``index``, whether NaN is possible, and whether all of it is inside the array."""

    def word(number: int) -> Any:
        return a.load(table, a.literal(Kind.INT, number))

    zero, known = a.literal(Kind.INT, 0), a.literal(Kind.BOOL, True)
    fixed, at, inside = known, zero, []
    for number, indices in enumerate(index):
        size = word(_HEADER + number)
        known = known & (indices.low >= -size) & (indices.high < size)
        # negative indices count from the end; a range with both signs can be any
        low = a.select(indices.low >= 0, indices.low, a.select(indices.high < 0, indices.low + size, 0))
        high = a.select(indices.high < 0, indices.high + size, a.select(indices.low < 0, size - 1, indices.high))
        inside.append((low, high))
        if number not in dimensions:
            fixed = fixed & (low == high)
            at = at + low * word(_HEADER + len(index) + number)
    first_row = last_row = first = last = step = zero
    if len(dimensions) == 2:
        first_row, last_row = (end >> word(0) for end in inside[dimensions[0]])
        step = word(_HEADER + len(index) + dimensions[0])
    if dimensions:
        first, last = (end >> word(1) for end in inside[dimensions[-1]])
    usable = fixed & (last_row - first_row < MOST_ROWS)
    safe = known & usable
    first_row, first, at = (a.select(safe, value, 0) for value in (first_row, first, at))
    rows, width = a.select(safe, last_row - first_row + 1, 1), a.select(safe, last - first + 1, 1)
    level = a.log2(width)
    left = at + first_row * step + level * word(2) + first * 2 + (_HEADER + 2 * len(index))
    right = left + (width - (a.literal(Kind.INT, 1) << level)) * 2

    def of_row(row: Any) -> tuple[Any, Any]:
        ends = left + row * step, right + row * step
        return a.lower(*(a.load(table, end) for end in ends)), a.lower(*(a.load(table, end + 1) for end in ends))

    low, high = a.lowest(rows, of_row) if len(dimensions) == 2 else of_row(zero)
    return a.select(usable, low, word(4)), a.select(usable, ~high, word(5)), word(3) != 0, known
