"""Which tiles of the score matrix a mask empties, cuts or leaves whole: the loop bounds of every kernel."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.builder import I1, I64, POINTER, Builder
from rootdk.codegen.frame import Frame
from rootdk.codegen.lower_bounds import classify
from rootdk.mods.expr import Graph

__all__ = ["KEYS", "QUERIES", "Span", "Tile", "Trim", "Visibility"]

Tile = tuple[ir.Value, ir.Value, ir.Value, ir.Value]
"""First and last query, first and last key, all inclusive."""

_NONE, _SOME, _ALL = range(3)


@dataclass(frozen=True)
class Trim:
    """The side of a tile along which a cut one is trimmed, by strips."""

    first: int
    """Where ``Tile`` has the side's first row; the last is next to it."""
    strip: int
    """Rows at a time. A look costs some 10 ns, a strip of a panel some microseconds."""


QUERIES, KEYS = Trim(0, 8), Trim(2, 16)


@dataclass(frozen=True)
class Span:
    """The rows of a tile in which some pair is visible, [start, end), and those in which one is not, [cut_start,
    cut_end); counted from the first row of the side that is trimmed."""

    start: ir.Value
    end: ir.Value
    cut_start: ir.Value
    cut_end: ir.Value


class Visibility:
    """Interval analysis of a graph's mask as one function of the module, called for tiles of any size."""

    def __init__(self, entry: Builder, graph: Graph, trim: Trim) -> None:
        self._trim = trim
        self._function = None if graph.mask is None else self._define(entry, graph)
        self._span = None if self._function is None else self._define_span(entry, self._function, trim)

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

    @contextmanager
    def visible_span(self, b: Builder, frame: Frame, head: tuple[ir.Value, ir.Value], tile: Tile) -> Iterator[Span]:
        """Runs the body where some pair of the tile may be visible; yields the rows that matter."""
        count = b.index(b.add(b.sub(tile[self._trim.first + 1], tile[self._trim.first]), 1))
        with self.unless_hidden(b, frame, head, tile) as cut:
            zero = b.index(0)
            if self._span is None:
                yield Span(zero, count, zero, zero)
                return
            slots = [b.slot(value) for value in (zero, count, zero, zero)]
            with b.when(cut):
                with b.ir.goto_entry_block():
                    found = b.ir.alloca(I64, 4)
                b.ir.call(self._span, [frame.pointer, *head, *tile, found])
                for word, slot in enumerate(slots):
                    slot.value = b.load(I64, found, 8 * word, align=8)
            span = Span(*(slot.value for slot in slots))
            with b.when(b.less(span.start, span.end)):
                yield span

    @staticmethod
    def _define_span(entry: Builder, look: ir.Function, trim: Trim) -> ir.Function:
        """(frame, batch, head, first query, last query, first key, last key, the span's four words)."""
        b = Builder.define(entry.function.module, "visible_span", [POINTER, *[I64] * 6, POINTER], entry)
        *whole, words = b.function.args
        side = slice(3 + trim.first, 5 + trim.first)
        first, last = whole[side]
        count = b.ir.add(b.ir.sub(last, first), b.index(1))
        start, end, cut_start, cut_end = (b.slot(value) for value in (count, b.index(0), count, b.index(0)))
        with b.loop(0, count, trim.strip) as strip:
            strip_end = b.lower_of(b.add(strip, trim.strip), count)
            arguments = list(whole)
            arguments[side] = b.ir.add(first, strip), b.ir.sub(b.ir.add(first, strip_end), b.index(1))
            found = b.ir.call(look, arguments)
            with b.when(b.ir.icmp_signed("!=", found, b.index(_NONE))):
                start.value, end.value = b.lower_of(start.value, strip), strip_end
            with b.when(b.ir.icmp_signed("!=", found, b.index(_ALL))):
                cut_start.value, cut_end.value = b.lower_of(cut_start.value, strip), strip_end
        # hidden strips at either end are left out altogether
        for word, value in enumerate(
            (start.value, end.value, b.higher_of(cut_start.value, start.value), b.lower_of(cut_end.value, end.value))
        ):
            b.store(value, words, 8 * word, align=8)
        return b.finish()

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
