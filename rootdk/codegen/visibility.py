"""Which tiles of the score matrix a mask empties, cuts or leaves whole: the loop bounds of every kernel."""

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from rootdk.codegen.builder import I1, I64, POINTER, Builder
from rootdk.codegen.frame import Frame
from rootdk.codegen.lower_bounds import classify
from rootdk.mods.expr import Graph

__all__ = ["Tile", "Visibility"]

Tile = tuple[ir.Value, ir.Value, ir.Value, ir.Value]
"""First and last query, first and last key, all inclusive."""

_NONE, _SOME, _ALL = range(3)


class Visibility:
    """Interval analysis of a graph's mask as one function of the module, called for tiles of any size."""

    def __init__(self, entry: Builder, graph: Graph) -> None:
        self._function = None if graph.mask is None else self._define(entry, graph)

    @contextmanager
    def unless_hidden(
        self, b: Builder, frame: Frame, head: tuple[ir.Value, ir.Value], tile: Tile
    ) -> Iterator[ir.Value]:
        """Runs the body where some pair of the tile may be visible; yields whether some may be hidden.

        ``head`` is (batch, head).
        """
        if self._function is None:
            yield ir.Constant(I1, 0)
            return
        found = b.ir.call(self._function, [frame.pointer, *head, *tile])
        with b.when(b.ir.icmp_signed("!=", found, b.index(_NONE))):
            yield b.ir.icmp_signed("==", found, b.index(_SOME))

    @staticmethod
    def _define(entry: Builder, graph: Graph) -> ir.Function:
        """(frame, batch, head, first query, last query, first key, last key) -> none, some or all."""
        b = Builder.define(entry.function.module, "visibility", [POINTER, *[I64] * 6], entry, returns=I64)
        pointer, batch, head, first_query, last_query, first_key, last_key = b.function.args
        frame = Frame(b, pointer)
        intervals = {
            "b": (batch, batch), "h": (head, head), "q": (first_query, last_query), "kv": (first_key, last_key),
        }  # fmt: skip
        some_hidden, some_shown = classify(b, graph, intervals, frame.address("constants"), frame.address("tables"))
        partly = b.ir.select(some_hidden, b.index(_SOME), b.index(_ALL))
        b.ir.ret(b.ir.select(some_shown, partly, b.index(_NONE)))
        return b.function
