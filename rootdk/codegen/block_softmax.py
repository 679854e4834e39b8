"""Scores of a block to weights in place, as a library of functions: one for each width in lane vectors.

Two passes over the rows of a span's parts: the largest score of each lane, then the weights and their sum. Lane vectors
that see nothing of a part take no part in it; what nobody has computed of them becomes a hidden weight.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir

from rootdk.codegen.builder import POINTER, Builder, Scalar
from rootdk.codegen.modules import new_module
from rootdk.codegen.online_softmax import HIDDEN_WEIGHT, LaneStats, Softmax
from rootdk.codegen.panels import LaneRows
from rootdk.codegen.spans import Part, Span
from rootdk.machine import Target
from rootdk.planning.schedule import SoftmaxSpec

__all__ = ["BlockSoftmax", "softmax_module"]


def softmax_module(spec: SoftmaxSpec, target: Target) -> ir.Module:
    """The module that exports ``spec.functions``."""
    module = new_module("rootdk_softmax", target)
    BlockSoftmax(module, spec).define(target)
    return module


class BlockSoftmax:
    """The functions for tiles 1, 2, ... vectors wide, as a module calls them or defines them."""

    def __init__(self, module: ir.Module, spec: SoftmaxSpec) -> None:
        self._spec = spec
        self._functions = [Builder.declare(module, name, [POINTER] * 4) for name in spec.functions]

    def weigh(
        self, b: Builder, vectors: ir.Value, tile: ir.Value, span: Span, stats: ir.Value, factors: ir.Value
    ) -> None:
        """Turn scores into weights; update each lane vector's statistics, write what its outputs so far are to be
        multiplied by."""
        b.call_by_number(vectors, self._functions, [tile, span.pointer, stats, factors])

    def define(self, target: Target) -> None:
        """Give the functions their bodies."""
        for vectors, function in enumerate(self._functions, start=1):
            b = Builder(function, target, self._spec.accumulator)
            _Weighing(b, self._spec, vectors).emit()
            b.finish()


class _Vectors:
    """Lane vectors in the function's own memory."""

    def __init__(self, b: Builder, values: Sequence[ir.Value]) -> None:
        self._b = b
        with b.ir.goto_entry_block():
            self._pointer = b.ir.alloca(b.vector, len(values))
        for n, value in enumerate(values):
            self.store(n, value)

    def load(self, n: Scalar) -> ir.Value:
        return self._b.load_lanes(self._pointer, self._b.mul(n, self._b.lanes * self._b.size))

    def store(self, n: Scalar, value: ir.Value) -> None:
        self._b.store_lanes(value, self._pointer, self._b.mul(n, self._b.lanes * self._b.size))


Step = Callable[[Scalar, Scalar, ir.Value, ir.Value], ir.Value]
"""(row, lane vector, its constant, what was accumulated) -> accumulated with the row."""


class _Weighing:
    """The body of the function for tiles ``vectors`` wide."""

    def __init__(self, b: Builder, spec: SoftmaxSpec, vectors: int) -> None:
        tile, span, self._stats, self._factors = b.function.args
        self._b, self._spec, self._vectors = b, spec, vectors
        self._span, self._tile = Span(b, span), LaneRows(b, tile, vectors)
        self._softmax = Softmax(b, spec.log2_scores)

    def emit(self) -> None:
        b, softmax = self._b, self._softmax
        stats = [LaneStats(b, b.at(self._stats, n * 2 * b.lanes * b.size)) for n in range(self._vectors)]
        maxima = _Vectors(b, [stat.maximum for stat in stats])
        self._fold(maxima, maxima, self._larger)
        shifts = _Vectors(b, [softmax.shift(maxima.load(n)) for n in range(self._vectors)])
        sums = _Vectors(b, [b.splat(0.0)] * self._vectors)
        self._fold(sums, shifts, self._weigh)
        for n, stat in enumerate(stats):
            factor = softmax.exponential(b.ir.fsub(stat.maximum, shifts.load(n)))
            b.store_lanes(factor, self._factors, n * b.lanes * b.size)
            stat.store(maxima.load(n), b.fma(stat.sum, factor, sums.load(n)))

    def _larger(self, row: Scalar, n: Scalar, _: ir.Value, maximum: ir.Value) -> ir.Value:
        return self._b.maximum(self._b.load_lanes(self._tile.pointer, self._tile.offset(row, n)), maximum)

    def _weigh(self, row: Scalar, n: Scalar, shift: ir.Value, total: ir.Value) -> ir.Value:
        b, tile = self._b, self._tile
        score = b.load_lanes(tile.pointer, tile.offset(row, n))
        weight = self._softmax.exponential(b.ir.fsub(score, shift))
        if self._spec.hides:
            hidden = b.ir.fcmp_ordered("==", score, b.splat(float("-inf")))
            weight = b.ir.select(hidden, b.splat(HIDDEN_WEIGHT), weight)
        b.store_lanes(weight, tile.pointer, tile.offset(row, n))
        return b.ir.fadd(total, weight)

    def _fold(self, accumulators: _Vectors, constants: _Vectors, step: Step) -> None:
        """All rows of all parts, in order."""
        b = self._b
        with self._span.each_part() as part:
            arguments = part, accumulators, constants, step
            if self._spec.hides and self._vectors > 1:
                wide = b.ir.icmp_signed("==", b.ir.sub(part.high, part.low), b.index(self._vectors))
                b.choose(wide, lambda: self._fold_wide(*arguments), lambda: self._fold_narrow(*arguments))
            else:
                self._fold_wide(*arguments)

    def _fold_wide(self, part: Part, accumulators: _Vectors, constants: _Vectors, step: Step) -> None:
        """The hot loop: everything in registers."""
        b, widths = self._b, range(self._vectors)
        fixed, slots = [constants.load(n) for n in widths], [b.slot(accumulators.load(n)) for n in widths]
        with b.loop(part.start, part.end) as row:
            for n in widths:
                slots[n].value = step(row, n, fixed[n], slots[n].value)
        for n in widths:
            accumulators.store(n, slots[n].value)

    def _fold_narrow(self, part: Part, accumulators: _Vectors, constants: _Vectors, step: Step) -> None:
        b, tile = self._b, self._tile
        with b.loop(part.low, part.high) as n:
            fixed, slot = constants.load(n), b.slot(accumulators.load(n))
            with b.loop(part.start, part.end) as row:
                slot.value = step(row, n, fixed, slot.value)
            accumulators.store(n, slot.value)
        for start, end in ((b.index(0), part.low), (part.high, b.index(self._vectors))):
            with b.loop(start, end) as n, b.loop(part.start, part.end) as row:
                b.store_lanes(b.splat(HIDDEN_WEIGHT), tile.pointer, tile.offset(row, n))
