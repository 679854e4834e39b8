"""dQ += dS K for one block of queries and one group of keys: rows of score gradients broadcast, keys in the lanes' way
along d_k."""

from collections.abc import Iterator

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder, Scalar
from rootdk.codegen.modules import new_module
from rootdk.codegen.online_softmax import is_hidden_weight
from rootdk.codegen.tile_matmul import poison_free_matmul, tile_matmul
from rootdk.machine import Target
from rootdk.planning.schedule import KEY_GROUP, QueryGradientsSpec

__all__ = ["QueryGradients", "query_gradients_module"]


def query_gradients_module(spec: QueryGradientsSpec, target: Target) -> ir.Module:
    """The module that exports ``spec.functions``."""
    module = new_module("rootdk_query_gradients", target)
    QueryGradients(module, spec).define(target)
    return module


class QueryGradients:
    """The function (score gradients, keys, key stride, sums, sum stride, rows, keys in the group, vectors of d_k)."""

    def __init__(self, module: ir.Module, spec: QueryGradientsSpec) -> None:
        self._spec = spec
        self._most = len(spec.tiles)
        self.function = Builder.declare(module, *spec.functions, [POINTER, POINTER, I64, POINTER, *[I64] * 4])

    def define(self, target: Target) -> None:
        """Give the function its body."""
        b = Builder(self.function, target, self._spec.accumulator)
        gradients, keys, key_stride, sums, sum_stride, rows, count, vectors = b.function.args
        # tiles of columns as equal as can be: four vectors are 2 + 2, not 3 + 1
        tiles = b.ir.sdiv(b.ir.add(vectors, b.index(self._most - 1)), b.index(self._most))
        tiles = b.index(b.higher_of(tiles, 1))  # of no column where d_k is 0
        narrow, wide = b.ir.sdiv(vectors, tiles), b.ir.srem(vectors, tiles)
        with b.loop(0, tiles) as tile:
            first = b.add(b.mul(tile, narrow), b.lower_of(tile, wide))
            width = b.ir.add(narrow, b.ir.zext(b.less(tile, wide), I64))
            offset = b.mul(first, b.lanes * b.size)
            for vectors_here, shape in enumerate(self._spec.tiles, start=1):
                with (
                    b.when(b.ir.icmp_signed("==", width, b.index(vectors_here))),
                    b.loop(0, rows, shape.score_rows) as i,
                ):
                    self._tile(
                        b, (shape.score_rows, vectors_here), count, b.at(gradients, b.mul(i, KEY_GROUP * b.size)),
                        (b.at(keys, offset), key_stride), (b.at(sums, b.add(b.mul(i, sum_stride), offset)), sum_stride),
                    )  # fmt: skip
        b.finish()

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

        if self._spec.hides:
            added = poison_free_matmul(b, count, elements, lanes, shape, lambda weight, _: is_hidden_weight(b, weight))
        else:
            added = tile_matmul(b, count, elements, lanes, shape)
        for m, row in enumerate(added):
            for n, total in enumerate(row):
                where = b.at(sum_pointer, b.add(b.mul(sum_stride, m), n * b.lanes * b.size))
                b.store(b.ir.fadd(b.load(b.vector, where, 0, b.size), total), where, 0, b.size)
