"""Which tiles of the score matrix a mask empties, cuts or leaves whole: the loop bounds of every kernel."""

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from rootdk.codegen.builder import I1, I64, POINTER, Builder
from rootdk.codegen.frame import Frame
from rootdk.codegen.lower_bounds import classify
from rootdk.codegen.spans import Part, Span
from rootdk.codegen.trimming import ALL, NONE, SOME, Tile, Trim, trimmer
from rootdk.mods.expr import Graph

__all__ = ["Visibility"]


class Visibility:
    """Interval analysis of a graph's mask as one function of the module, called for tiles of any size."""

    def __init__(self, entry: Builder, graph: Graph) -> None:
        self._entry = entry
        self._look = None if graph.mask is None else self._define(entry, graph)

    @contextmanager
    def unless_hidden(
        self, b: Builder, frame: Frame, head: tuple[ir.Value, ir.Value], tile: Tile
    ) -> Iterator[ir.Value]:
        """Runs the body where some pair of the tile may be visible; yields whether some may be hidden.

        ``head`` is (batch, head).
        """
        if self._look is None:
            yield ir.Constant(I1, 0)
            return
        found = b.ir.call(self._look, [frame.pointer, *head, *tile])
        with b.when(b.ir.icmp_signed("!=", found, b.index(NONE))):
            yield b.ir.icmp_signed("==", found, b.index(SOME))

    @staticmethod
    def _define(entry: Builder, graph: Graph) -> ir.Function:
        """(frame, batch, head, first query, last query, first key, last key) -> NONE, SOME or ALL."""
        b = Builder.define(entry.function.module, "visibility", [POINTER, *[I64] * 6], entry, returns=I64)
        pointer, batch, head, first_query, last_query, first_key, last_key = b.function.args
        frame = Frame(b, pointer)
        intervals = {
            "b": (batch, batch), "h": (head, head), "q": (first_query, last_query), "kv": (first_key, last_key),
        }  # fmt: skip
        some_hidden, some_shown = classify(b, graph, intervals, frame.address("constants"), frame.address("tables"))
        partly = b.ir.select(some_hidden, b.index(SOME), b.index(ALL))
        b.ir.ret(b.ir.select(some_shown, partly, b.index(NONE)))
        return b.function

    def trimmed(self, trim: Trim) -> "Trimmed":
        """The same for kernels whose tiles have their rows on one side."""
        return Trimmed(self, trim, None if self._look is None else trimmer(self._entry, self._look, trim))


class Trimmed:
    """Cut tiles without what nobody sees of them."""

    def __init__(self, visibility: Visibility, trim: Trim, function: ir.Function | None) -> None:
        self._visibility, self._trim, self._function = visibility, trim, function

    @contextmanager
    def span(
        self, b: Builder, frame: Frame, head: tuple[ir.Value, ir.Value], tile: Tile, most_rows: int
    ) -> Iterator[Span]:
        """Runs the body where some pair of the tile, of at most ``most_rows``, may be visible; yields what matters."""
        span = Span.allocate(b, -(-most_rows // self._trim.strip))

        def whole() -> None:
            count = self._trim.count(b, tile)
            span.write(0, count, 0, 0, 1)
            span.write_part(0, Part(b.index(0), count, b.index(0), self._trim.vectors(b, tile)))

        if self._function is None:
            whole()
            yield span
            return
        with self._visibility.unless_hidden(b, frame, head, tile) as cut:
            arguments = [frame.pointer, *head, *tile, span.pointer]
            b.choose(cut, lambda: b.ir.call(self._function, arguments), whole)
            with b.when(b.less(span.start, span.end)):
                yield span
