"""The two products of a tile of scores, as a library of functions: one for each width in lane vectors.

    scores    tile[j, lanes] = sum over r of rows[j][r] * packed[r, lanes]
    sums      sums[c, lanes] = factor[lanes] * sums[c, lanes] + sum over j of rows[j][c] * tile[j, lanes]

Panels of the forward and of the backward pass are made of them, whatever the graph: they are compiled once. Strides are
arguments, so that a narrow function also does a part of a wide tile: where a mask leaves some of its lane vectors
nothing to see, they cost nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder, Scalar
from rootdk.codegen.modules import new_module
from rootdk.codegen.online_softmax import is_hidden_weight
from rootdk.codegen.panels import Matrix
from rootdk.codegen.spans import Part, Span
from rootdk.codegen.tile_matmul import poison_free_matmul, tile_matmul
from rootdk.codegen.tile_scores import ScoreTile, raw_scores
from rootdk.machine import Target
from rootdk.planning.schedule import ProductsSpec

__all__ = ["SpanProducts", "Sums", "TileProducts", "products_module"]


def products_module(spec: ProductsSpec, target: Target) -> ir.Module:
    """The module that exports ``spec.functions``."""
    module = new_module("rootdk_products", target)
    TileProducts(module, spec).define(target)
    return module


@dataclass(frozen=True)
class Sums:
    """Where sums are added."""

    target: Matrix
    width: ir.Value
    """Its rows: a whole number of tiles' columns, or with room for as many behind them."""
    factors: ir.Value
    """Points at a vector for each of the target's, which it is multiplied by first."""
    chain: Matrix
    """Memory like the target's, for what is computed part by part."""


@dataclass(frozen=True)
class SpanProducts:
    """The products of a tile ``vectors`` wide, of which a span says what matters; rows count from the span's start."""

    products: "TileProducts"
    b: Builder
    span: Span
    vectors: int
    cut: bool
    """Whether there is a mask, hence parts."""

    def scores(self, rows: Matrix, packed: Matrix, depth: ir.Value, tile: Matrix) -> None:
        b = self.b
        with self._each_part() as part:
            start, lanes = self._place(part)
            arguments = (
                *rows.part(b, start).arguments(b), b.ir.sub(part.end, part.start),
                *packed.part(b, 0, lanes).arguments(b), depth, *tile.part(b, start, lanes).arguments(b),
            )  # fmt: skip
            self.products.scores(b, self._width(part), arguments)

    def sums(self, rows: Matrix, tile: Matrix, sums: Sums) -> None:
        """Several parts go through ``sums.chain``, as the sum of a lane is one chain over the rows of its tile."""
        b = self.b

        def add(part: Part, target: Matrix, factors: ir.Value | None) -> None:
            start, lanes = self._place(part)
            scale = ir.Constant(POINTER, None) if factors is None else b.at(factors, lanes)
            arguments = (
                *rows.part(b, start).arguments(b), b.ir.sub(part.end, part.start),
                *tile.part(b, start, lanes).arguments(b), *target.part(b, 0, lanes).arguments(b), sums.width, scale,
            )  # fmt: skip
            self.products.sums(b, self._width(part), arguments)

        def part_by_part() -> None:
            size = b.mul(b.round_up(sums.width, self.products.columns), sums.chain.stride)
            with b.loop(0, size, b.lanes * b.size) as offset:
                b.store_lanes(b.splat(0.0), sums.chain.pointer, offset)
            with self.span.each_part() as part:
                add(part, sums.chain, None)
            self._put_chain(sums)

        if not self.cut:
            add(self._whole, sums.target, sums.factors)
            return
        single = b.ir.icmp_signed("==", self.span.part_count, b.index(1))
        b.choose(single, lambda: add(self.span.part(0), sums.target, sums.factors), part_by_part)

    @contextmanager
    def _each_part(self) -> Iterator[Part]:
        if not self.cut:
            yield self._whole
            return
        with self.span.each_part() as part:
            yield part

    @property
    def _whole(self) -> Part:
        b = self.b
        return Part(self.span.start, self.span.end, b.index(0), b.index(self.vectors))

    def _put_chain(self, sums: Sums) -> None:
        b = self.b
        offsets = [n * b.lanes * b.size for n in range(self.vectors)]
        factors = [b.load_lanes(sums.factors, offset) for offset in offsets]
        with b.loop(0, sums.width) as c:
            chain, target = sums.chain.part(b, c).pointer, sums.target.part(b, c).pointer
            for offset, factor in zip(offsets, factors, strict=True):
                total = b.load_lanes(chain, offset)
                b.store_lanes(b.fma(b.load_lanes(target, offset), factor, total), target, offset)

    def _place(self, part: Part) -> tuple[ir.Value, ir.Value]:
        """The part's first row in the span, and where its lanes begin, in bytes."""
        b = self.b
        return b.sub(part.start, self.span.start), b.index(b.mul(part.low, b.lanes * b.size))

    def _width(self, part: Part) -> Scalar:
        """How many lane vectors see the part."""
        whole = self.vectors == 1 or not self.cut
        return self.vectors if whole else self.b.ir.sub(part.high, part.low)


class TileProducts:
    """The functions for tiles 1, 2, ... vectors wide, as a module calls them or defines them."""

    def __init__(self, module: ir.Module, spec: ProductsSpec) -> None:
        self._spec, self._module = spec, module
        self.columns = max(shape.value_rows for shape in spec.tiles)
        """Of sums that are computed at a time, at most."""
        rows = [POINTER, I64, I64]
        self._scores = [Builder.declare(module, f"scores_{n}", [*rows, *rows, POINTER, I64]) for n in spec.widths]
        self._sums = [
            Builder.declare(module, f"sums_{n}", [*rows, POINTER, I64, POINTER, I64, I64, POINTER]) for n in spec.widths
        ]

    def define(self, target: Target) -> None:
        """Give the functions their bodies."""
        widths = enumerate(self._spec.tiles, start=1)
        for scores, sums, (vectors, shape) in zip(self._scores, self._sums, widths, strict=True):
            self._define_scores(Builder(scores, target, self._spec.accumulator), vectors, shape.score_rows)
            self._define_sums(Builder(sums, target, self._spec.accumulator), vectors, shape.value_rows)

    def scores(self, b: Builder, vectors: Scalar, arguments: Sequence[ir.Value]) -> None:
        """(rows and their stride, count, packed and its stride, depth, tile and its stride): fill ``count`` rows of the
        tile, and up to a tile's height of further ones with numbers that mean nothing."""
        self._call(b, self._scores, vectors, arguments)

    def sums(self, b: Builder, vectors: Scalar, arguments: Sequence[ir.Value]) -> None:
        """(rows and their stride, count, tile and its stride, sums and their stride, width, factors): add to ``width``
        rows of the sums. The factors are a vector for each of ``vectors``; with null the chain of sums that is there
        goes on, so that a product can be computed part by part."""
        self._call(b, self._sums, vectors, arguments)

    def ones(self, b: Builder) -> ir.Value:
        """Factors that leave the sums as they are."""
        if found := self._module.globals.get("ones"):
            return found
        kind = ir.ArrayType(b.real, len(self._sums) * b.lanes)
        found = ir.GlobalVariable(self._module, kind, "ones")
        found.linkage, found.global_constant, found.align = "internal", True, b.lanes * b.size
        found.initializer = ir.Constant(kind, [1.0] * kind.count)
        return found

    @staticmethod
    def _call(b: Builder, functions: Sequence[ir.Function], vectors: Scalar, arguments: Sequence[ir.Value]) -> None:
        if isinstance(vectors, int):
            b.ir.call(functions[vectors - 1], arguments)
        else:
            b.by_number(vectors, [partial(b.ir.call, function, arguments) for function in functions])

    def _define_scores(self, b: Builder, vectors: int, height: int) -> None:
        rows, row_stride, count, packed, packed_stride, depth, tile, tile_stride = b.function.args
        target = ScoreTile(b, tile, vectors, height, self._stride(b, vectors, tile_stride))
        packed_lanes = Matrix(packed, self._stride(b, vectors, packed_stride))
        raw_scores(target, Matrix(rows, row_stride), count, packed_lanes, depth)
        b.finish()

    def _define_sums(self, b: Builder, vectors: int, columns: int) -> None:
        rows, row_stride, count, tile, tile_stride, sums, sums_stride, width, factors = b.function.args
        tile_stride, sums_stride = (self._stride(b, vectors, stride) for stride in (tile_stride, sums_stride))
        continues = b.ir.icmp_unsigned("==", factors, ir.Constant(POINTER, None))

        def vectors_at(pointer: ir.Value) -> list[ir.Value]:
            return [b.load_lanes(pointer, n * b.lanes * b.size) for n in range(vectors)]

        with b.loop(0, width, columns) as c:
            column = b.at(rows, b.mul(c, b.size))
            own = [b.at(sums, b.mul(b.add(c, m), sums_stride)) for m in range(columns)]

            def elements(j: Scalar, column: ir.Value = column) -> Iterator[ir.Value]:
                row = b.at(column, b.mul(j, row_stride))
                return (b.splat(b.load(b.real, row, m * b.size)) for m in range(columns))

            def lanes(j: Scalar) -> list[ir.Value]:
                return vectors_at(b.at(tile, b.mul(j, tile_stride)))

            def start(own: Sequence[ir.Value] = own) -> list[list[ir.Value]]:
                slots = [[b.slot(b.splat(0.0)) for _ in range(vectors)] for _ in own]
                with b.when(continues):
                    for row, pointer in zip(slots, own, strict=True):
                        for slot, value in zip(row, vectors_at(pointer), strict=True):
                            slot.value = value
                return [[slot.value for slot in row] for row in slots]

            shape = columns, vectors
            if self._spec.hides:
                found = poison_free_matmul(
                    b, count, elements, lanes, shape, lambda _, weight: is_hidden_weight(b, weight), start
                )
            else:
                found = tile_matmul(b, count, elements, lanes, shape, start)
            self._put(b, found, own, continues, factors)
        b.finish()

    def _stride(self, b: Builder, vectors: int, given: ir.Value) -> Scalar:
        """Of lanes in memory. The widest function is no part of a wider tile: a stride that LLVM knows is worth 1 %."""
        return vectors * b.lanes * b.size if vectors == len(self._spec.tiles) else given

    @staticmethod
    def _put(
        b: Builder, found: Sequence[Sequence[ir.Value]], own: Sequence[ir.Value], continues: ir.Value, factors: ir.Value
    ) -> None:
        """The sums of some columns to where they belong."""

        def each() -> Iterator[tuple[ir.Value, ir.Value, int]]:
            for row, pointer in zip(found, own, strict=True):
                for n, total in enumerate(row):
                    yield total, pointer, n * b.lanes * b.size

        def continued() -> None:
            for total, pointer, offset in each():
                b.store_lanes(total, pointer, offset)

        def added() -> None:
            scales = [b.load_lanes(factors, n * b.lanes * b.size) for n in range(len(found[0]))]
            for total, pointer, offset in each():
                scale = scales[offset // (b.lanes * b.size)]
                b.store_lanes(b.fma(b.load_lanes(pointer, offset), scale, total), pointer, offset)

        b.choose(continues, continued, added)
