"""The two products of a tile of scores, as a library of functions: one for each width in lane vectors.

    scores    tile[j, lanes] = sum over r of rows[j][r] * packed[r, lanes]
    sums      sums[c, lanes] = factor[lanes] * sums[c, lanes] + sum over j of rows[j][c] * tile[j, lanes]

Panels of the forward and of the backward pass are made of them, whatever the graph: they are compiled once. A span says
which rows matter, and in parts, which lane vectors see them: the others cost nothing. Sums stay in registers from part
to part, as the sum of a lane is one chain over the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder, Scalar
from rootdk.codegen.modules import new_module
from rootdk.codegen.online_softmax import is_hidden_weight
from rootdk.codegen.panels import LaneRows, Matrix
from rootdk.codegen.spans import Part, Span
from rootdk.codegen.tile_matmul import add_products, select_where_not_finite, unrolled, zero_tile
from rootdk.codegen.tile_scores import ScoreTile, raw_scores
from rootdk.machine import Target
from rootdk.planning.schedule import ProductsSpec

__all__ = ["TileProducts", "products_module"]


def products_module(spec: ProductsSpec, target: Target) -> ir.Module:
    """The module that exports ``spec.functions``."""
    module = new_module("rootdk_products", target)
    TileProducts(module, spec).define(target)
    return module


class TileProducts:
    """The functions for tiles 1, 2, ... vectors wide, as a module calls them or defines them."""

    def __init__(self, module: ir.Module, spec: ProductsSpec) -> None:
        self._spec, self._module = spec, module
        scores = [POINTER, I64, POINTER, POINTER, I64, POINTER]
        sums = [POINTER, I64, POINTER, POINTER, POINTER, I64, POINTER]
        self._scores = [Builder.declare(module, f"scores_{vectors}", scores) for vectors in spec.widths]
        self._sums = [Builder.declare(module, f"sums_{vectors}", sums) for vectors in spec.widths]

    def scores(
        self, b: Builder, vectors: Scalar, rows: Matrix, span: Span, packed: ir.Value, depth: ir.Value, tile: ir.Value
    ) -> None:
        """Fill the span's rows of the tile; up to a tile's height of further ones get numbers that mean nothing."""
        b.call_by_number(vectors, self._scores, [*rows.arguments(b), span.pointer, packed, depth, tile])

    def sums(
        self, b: Builder, vectors: Scalar, rows: Matrix, span: Span, tile: ir.Value, sums: ir.Value, width: ir.Value,
        factors: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """Add to ``width`` rows of the sums: a whole number of tiles' columns, or with room for as many behind them.

        ``factors`` points at ``vectors`` vectors that the sums are multiplied by first.
        """
        scale = ir.Constant(POINTER, None) if factors is None else factors
        b.call_by_number(vectors, self._sums, [*rows.arguments(b), span.pointer, tile, sums, width, scale])

    def define(self, target: Target) -> None:
        """Give the functions their bodies."""
        parts: list[ir.Function] = []
        widths = enumerate(self._spec.tiles, start=1)
        for scores, sums, (vectors, shape) in zip(self._scores, self._sums, widths, strict=True):
            b = Builder(scores, target, self._spec.accumulator)
            parts.append(self._part_of_scores(b, vectors, shape.score_rows))
            self._define_scores(b, vectors, parts)
            self._define_sums(Builder(sums, target, self._spec.accumulator), vectors, shape.value_rows)

    # Scores ----------------------------------------------------------------------------------------------------------

    def _define_scores(self, b: Builder, vectors: int, parts: Sequence[ir.Function]) -> None:
        """Part by part, each by the function of its width."""
        rows, row_stride, span_pointer, packed, depth, tile = b.function.args
        stride = b.index(vectors * b.lanes * b.size)
        with Span(b, span_pointer).each_part() as part:
            offset = b.mul(part.low, b.lanes * b.size)
            place = b.at(tile, b.add(b.mul(part.start, stride), offset))
            arguments = (
                b.at(rows, b.mul(part.start, row_stride)), row_stride, b.ir.sub(part.end, part.start),
                b.at(packed, offset), stride, depth, place, stride,
            )  # fmt: skip
            calls = [partial(b.ir.call, function, arguments) for function in parts]
            if self._spec.hides:
                b.by_number(b.ir.sub(part.high, part.low), calls)
            else:
                calls[-1]()
        b.finish()

    def _part_of_scores(self, like: Builder, vectors: int, height: int) -> ir.Function:
        """(rows and their stride, count, packed and its stride, depth, tile and its stride)"""
        types = [POINTER, I64, I64, POINTER, I64, I64, POINTER, I64]
        b = Builder.define(self._module, f"part_{vectors}", types, like)
        rows, row_stride, count, packed, packed_stride, depth, tile, tile_stride = b.function.args
        if vectors == len(self._spec.tiles):  # no part of a wider tile; a stride that LLVM knows is worth 1 %
            packed_stride = tile_stride = b.index(vectors * b.lanes * b.size)
        target = ScoreTile(b, tile, vectors, height, tile_stride)
        raw_scores(target, Matrix(rows, row_stride), count, Matrix(packed, packed_stride), depth)
        return b.finish()

    # Sums ------------------------------------------------------------------------------------------------------------

    def _define_sums(self, b: Builder, vectors: int, columns: int) -> None:
        rows, row_stride, span_pointer, tile, sums, width, factors = b.function.args
        span, target = Span(b, span_pointer), LaneRows(b, sums, vectors)
        scales = self._factors(b, factors, vectors)
        with b.loop(0, width, columns) as c:
            matrix = Matrix(b.at(rows, b.mul(c, b.size)), row_stride)
            product = _ColumnTile(b, matrix, LaneRows(b, tile, vectors), columns, vectors)
            with span.each_part() as part:
                product.add(part, narrow=self._spec.hides)
            if self._spec.hides:
                product.select_where_not_finite(span)
            for m, row in enumerate(product.tile):
                for n, (slot, scale) in enumerate(zip(row, scales, strict=True)):
                    offset = target.offset(b.add(c, m), n)
                    b.store_lanes(b.fma(b.load_lanes(sums, offset), scale, slot.value), sums, offset)
        b.finish()

    @staticmethod
    def _factors(b: Builder, pointer: ir.Value, vectors: int) -> list[ir.Value]:
        """The vectors at ``pointer``, ones if it is null."""
        slots = [b.slot(b.splat(1.0)) for _ in range(vectors)]
        with b.when(b.ir.icmp_unsigned("!=", pointer, ir.Constant(POINTER, None))):
            for n, slot in enumerate(slots):
                slot.value = b.load_lanes(pointer, n * b.lanes * b.size)
        return [slot.value for slot in slots]


class _ColumnTile:
    """Sums of some columns of ``rows``, in registers."""

    def __init__(self, b: Builder, rows: Matrix, lanes: LaneRows, columns: int, vectors: int) -> None:
        self.b, self.rows, self.lanes, self.columns, self.vectors = b, rows, lanes, columns, vectors
        self.tile = zero_tile(b, (columns, vectors))

    def add(self, part: Part, *, narrow: bool) -> None:
        """A part of the rows, over the lane vectors that see it; all of them, unless ``narrow``."""
        b, vectors = self.b, self.vectors
        if not narrow:
            self._add(part, 0, vectors)
            return
        ranges = [(low, high) for low in range(vectors) for high in range(low + 1, vectors + 1)]
        number = b.ir.add(b.ir.mul(part.low, b.index(vectors)), part.high)
        b.switch(number, {low * vectors + high: partial(self._add, part, low, high) for low, high in ranges})

    def _add(self, part: Part, low: int, high: int) -> None:
        # narrow parts are short: unrolling them was measured to bring nothing
        unroll = unrolled((self.columns, self.vectors)) if high - low == self.vectors else 1
        tile = [row[low:high] for row in self.tile]
        add_products(self.b, tile, (part.start, part.end), self._elements, self._lanes(low, high), unroll=unroll)

    def select_where_not_finite(self, span: Span) -> None:
        """All lane vectors of each part serve, as what nobody sees of it is marked as hidden."""

        def selected() -> list[list[ir.Value]]:
            tile, lanes = zero_tile(self.b, (self.columns, self.vectors)), self._lanes(0, self.vectors)
            with span.each_part() as part:
                add_products(self.b, tile, (part.start, part.end), self._elements, lanes, hidden=self._hidden)
            return [[slot.value for slot in row] for row in tile]

        select_where_not_finite(self.b, self.tile, selected)

    def _elements(self, j: Scalar) -> Iterator[ir.Value]:
        b, row = self.b, self.rows.part(self.b, j).pointer
        return (b.splat(b.load(b.real, row, m * b.size)) for m in range(self.columns))

    def _lanes(self, low: int, high: int) -> Callable[[Scalar], list[ir.Value]]:
        b, lanes = self.b, self.lanes
        return lambda j: [b.load_lanes(lanes.pointer, lanes.offset(j, n)) for n in range(low, high)]

    def _hidden(self, _: ir.Value, weight: ir.Value) -> ir.Value:
        return is_hidden_weight(self.b, weight)
