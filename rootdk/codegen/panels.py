"""Rows in memory to lanes and back: a panel holds its queries side by side, one query a lane.

    packed[r, lane] = row(lane)[r]        r-major, ``lanes * vectors`` wide, contiguous

Rows past the end are the last row again: their lanes compute the same values and store them to the same place, so no
lane is ever masked and nothing outside the array is touched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder, Scalar
from rootdk.codegen.elements import load_elements, store_elements
from rootdk.dtypes import DType

__all__ = ["LaneRows", "Matrix", "Rows", "copy_row", "pack", "transpose", "unpack"]


@dataclass(frozen=True)
class LaneRows:
    """Scratch memory of rows that are ``vectors`` lane vectors wide."""

    b: Builder
    pointer: ir.Value
    vectors: Scalar
    """Known where code is emitted per width, a run-time value elsewhere."""

    @property
    def stride(self) -> Scalar:
        """Bytes from row to row."""
        return self.b.mul(self.vectors, self.b.lanes * self.b.size)

    def offset(self, row: Scalar, n: Scalar) -> Scalar:
        """Of lane vector ``n`` of a row, in bytes."""
        return self.b.add(self.b.mul(row, self.stride), self.b.mul(n, self.b.lanes * self.b.size))

    @property
    def matrix(self) -> "Matrix":
        return Matrix(self.pointer, self.stride)


@dataclass(frozen=True)
class Matrix:
    """Rows of adjacent accumulators."""

    pointer: ir.Value
    stride: Scalar
    """Bytes from row to row."""

    def part(self, b: Builder, row: Scalar, offset: Scalar = 0) -> "Matrix":
        """What begins ``offset`` bytes into ``row``."""
        return Matrix(b.at(self.pointer, b.add(b.mul(row, self.stride), offset)), self.stride)

    def arguments(self, b: Builder) -> tuple[ir.Value, ir.Value]:
        return self.pointer, b.index(self.stride)


@dataclass(frozen=True)
class Rows:
    """A matrix in memory: ``count`` rows of ``width`` elements, strides in bytes."""

    dtype: DType
    pointer: ir.Value
    row_stride: ir.Value
    stride: ir.Value
    count: ir.Value
    width: ir.Value

    TYPES = (POINTER, *[I64] * 4)

    @property
    def arguments(self) -> tuple[ir.Value, ...]:
        """All but the element type, as arguments of a function."""
        return self.pointer, self.row_stride, self.stride, self.count, self.width

    def lane_pointers(self, b: Builder, first: ir.Value, lanes: int) -> list[ir.Value]:
        """Where the rows first, first + 1, ... start; past the last row, the last row."""
        last = b.sub(self.count, 1)
        return [
            b.at(self.pointer, b.mul(b.lower_of(b.add(first, lane), last), self.row_stride)) for lane in range(lanes)
        ]

    def whole(self, b: Builder, step: int) -> ir.Value:
        """How many leading columns can be read ``step`` at a time: none where elements are not adjacent."""
        adjacent = b.ir.icmp_signed("==", self.stride, b.index(self.dtype.size))
        return b.ir.select(adjacent, b.index(b.round_down(self.width, step)), b.index(0))


def transpose(b: Builder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """Columns of a square of lanes, by log2(lanes) rounds of two-input shuffles, the widest exchange first."""
    rows, count = list(rows), len(rows)
    index = ir.VectorType(ir.IntType(32), count)
    distance = count // 2
    while distance:
        for i in range(count):
            if i & distance:
                continue
            low = [lane if not lane & distance else count + lane - distance for lane in range(count)]
            high = [lane + distance if not lane & distance else count + lane for lane in range(count)]
            pair = rows[i], rows[i + distance]
            rows[i], rows[i + distance] = (
                b.ir.shuffle_vector(*pair, ir.Constant(index, pattern)) for pattern in (low, high)
            )
        distance //= 2
    return rows


def pack(
    b: Builder, rows: Rows, first: ir.Value, column: ir.Value, stride: Scalar,
    transform: Callable[[ir.Value], ir.Value], *, prefetch: int = 0,
) -> None:  # fmt: skip
    """One lane vector of a panel, starting at row ``first``: packed rows lie ``stride`` bytes apart from ``column`` on.

    ``transform`` is applied to every value, vector or scalar. While it reads a row it asks for the one ``prefetch``
    rows on.
    """
    pointers = rows.lane_pointers(b, first, b.lanes)
    whole = rows.whole(b, b.lanes)
    with b.loop(0, whole, b.lanes) as r:
        offset = b.mul(r, rows.dtype.size)
        square = transpose(b, [load_elements(b, rows.dtype, p, offset, lanes=b.lanes) for p in pointers])
        if prefetch:
            ahead = b.ir.add(b.index(offset), b.index(b.mul(rows.row_stride, prefetch)))
            for pointer in pointers:
                b.prefetch(pointer, ahead)
        for x, vector in enumerate(square):
            b.store_lanes(transform(vector), column, b.mul(b.add(r, x), stride))
    with b.loop(whole, rows.width) as r:
        for x, pointer in enumerate(pointers):
            value = load_elements(b, rows.dtype, pointer, b.mul(r, rows.stride))
            b.store(transform(value), column, b.add(b.mul(r, stride), x * b.size))


def unpack(
    b: Builder, column: ir.Value, stride: Scalar, rows: Rows, first: ir.Value, transform: Callable[[ir.Value], ir.Value]
) -> None:
    """The inverse of ``pack``."""
    pointers = rows.lane_pointers(b, first, b.lanes)
    whole = rows.whole(b, b.lanes)

    def vector_at(r: Scalar) -> ir.Value:
        return transform(b.load_lanes(column, b.mul(r, stride)))

    with b.loop(0, whole, b.lanes) as r:
        offset = b.mul(r, rows.dtype.size)
        square = transpose(b, [vector_at(b.add(r, x)) for x in range(b.lanes)])
        for pointer, row in zip(pointers, square, strict=True):
            store_elements(b, rows.dtype, row, pointer, offset)
    with b.loop(whole, rows.width) as r:
        vector = vector_at(r)
        for x, pointer in enumerate(pointers):
            value = b.ir.extract_element(vector, ir.Constant(ir.IntType(32), x))
            store_elements(b, rows.dtype, value, pointer, b.mul(r, rows.stride))


def copy_row(
    b: Builder,
    rows: Rows,
    row: ir.Value,
    target: ir.Value,
    *,
    padding: int,
    transform: Callable[[ir.Value], ir.Value] = lambda value: value,
) -> None:
    """Row ``row``, transformed, as adjacent accumulators at ``target``, and ``padding`` zeros behind it.

    Tiles may run over the end of a row: what they compute there is finite, and nobody reads it.
    """
    source = b.at(rows.pointer, b.mul(row, rows.row_stride))
    whole = rows.whole(b, b.lanes)
    with b.loop(0, whole, b.lanes) as r:
        value = load_elements(b, rows.dtype, source, b.mul(r, rows.dtype.size), lanes=b.lanes)
        b.store(transform(value), target, b.mul(r, b.size))
    with b.loop(whole, rows.width) as r:
        b.store(transform(load_elements(b, rows.dtype, source, b.mul(r, rows.stride))), target, b.mul(r, b.size))
    end = b.at(target, b.mul(rows.width, b.size))
    for start in range(0, padding, b.lanes):
        lanes = min(b.lanes, padding - start)
        b.store(b.splat(0.0, lanes), end, start * b.size)
