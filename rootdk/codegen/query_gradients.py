"""dQ += dS K for one block of queries and one group of keys: rows of score gradients broadcast, keys in the lanes' way
along d_k."""

from collections.abc import Iterator

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder, Scalar
from rootdk.codegen.online_softmax import is_hidden_weight
from rootdk.codegen.tile_matmul import poison_free_matmul, tile_matmul
from rootdk.codegen.tile_scores import Mods
from rootdk.planning.schedule import KEY_GROUP, Schedule

__all__ = ["QueryGradients"]


class QueryGradients:
    """The function (score gradients, keys, key stride, sums, sum stride, rows, keys in the group, vectors of d_k)."""

    def __init__(self, entry: Builder, mods: Mods, schedule: Schedule) -> None:
        self.mods, self.schedule = mods, schedule
        self.function = self._define(entry)

    def _define(self, entry: Builder) -> ir.Function:
        types = [POINTER, POINTER, I64, POINTER, *[I64] * 4]
        b = Builder.define(entry.function.module, "query_gradients", types, entry)
        gradients, keys, key_stride, sums, sum_stride, rows, count, vectors = b.function.args
        # tiles of columns as equal as can be: four vectors are 2 + 2, not 3 + 1
        tiles = b.ir.sdiv(b.ir.add(vectors, b.index(self.schedule.vectors - 1)), b.index(self.schedule.vectors))
        tiles = b.index(b.higher_of(tiles, 1))  # of no column where d_k is 0
        narrow, wide = b.ir.sdiv(vectors, tiles), b.ir.srem(vectors, tiles)
        with b.loop(0, tiles) as tile:
            first = b.add(b.mul(tile, narrow), b.lower_of(tile, wide))
            width = b.ir.add(narrow, b.ir.zext(b.less(tile, wide), I64))
            offset = b.mul(first, b.lanes * b.size)
            for vectors_here, shape in enumerate(self.schedule.tiles, start=1):
                with (
                    b.when(b.ir.icmp_signed("==", width, b.index(vectors_here))),
                    b.loop(0, rows, shape.score_rows) as i,
                ):
                    self._tile(
                        b, (shape.score_rows, vectors_here), count, b.at(gradients, b.mul(i, KEY_GROUP * b.size)),
                        (b.at(keys, offset), key_stride), (b.at(sums, b.add(b.mul(i, sum_stride), offset)), sum_stride),
                    )  # fmt: skip
        return b.finish()

    def _tile(
        self,
        b: Builder,
        shape: tuple[int, int],
        count: ir.Value,
        gradients: ir.Value,
        keys: tuple[ir.Value, ir.Value],
        sums: tuple[ir.Value, ir.Value],
    ) -> None:
        rows, vectors = shape
        key_pointer, key_stride = keys
        sum_pointer, sum_stride = sums

        def elements(j: Scalar) -> Iterator[ir.Value]:
            column = b.at(gradients, b.mul(j, b.size))
            return (b.splat(b.load(b.real, column, m * KEY_GROUP * b.size)) for m in range(rows))

        def lanes(j: Scalar) -> list[ir.Value]:
            row = b.at(key_pointer, b.mul(j, key_stride))
            return [b.load(b.vector, row, n * b.lanes * b.size, b.size) for n in range(vectors)]

        if self.mods.graph.may_hide:
            added = poison_free_matmul(b, count, elements, lanes, shape, lambda weight, _: is_hidden_weight(b, weight))
        else:
            added = tile_matmul(b, count, elements, lanes, shape)
        for m, row in enumerate(added):
            for n, total in enumerate(row):
                where = b.at(sum_pointer, b.add(b.mul(sum_stride, m), n * b.lanes * b.size))
                b.store(b.ir.fadd(b.load(b.vector, where, 0, b.size), total), where, 0, b.size)
