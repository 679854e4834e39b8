"""Trimming of tiles that a mask cuts: strips of rows that nobody sees are left out, and of the others lane vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder
from rootdk.codegen.spans import Part, Span

__all__ = ["ALL", "KEYS", "NONE", "QUERIES", "SOME", "Tile", "Trim", "trimmer"]

Tile = tuple[ir.Value, ir.Value, ir.Value, ir.Value]
"""First and last query, first and last key, all inclusive."""

NONE, SOME, ALL = range(3)
"""Of the pairs of a tile are visible."""


@dataclass(frozen=True)
class Trim:
    """Which side of a tile its rows are on; lanes are on the other."""

    rows: int
    """Where ``Tile`` has the first of them."""
    strip: int
    """Rows at a time. A look costs some 10 ns, a strip of a lane vector half a microsecond."""

    def first_and_last(self, tile: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
        return tile[self.rows], tile[self.rows + 1]

    def count(self, b: Builder, tile: Sequence[ir.Value]) -> ir.Value:
        """Rows of a tile."""
        return _length(b, self.first_and_last(tile))

    def vectors(self, b: Builder, tile: Sequence[ir.Value]) -> ir.Value:
        """Lane vectors of a tile."""
        lanes = _length(b, self._other.first_and_last(tile))
        return b.ir.sdiv(b.ir.add(lanes, b.index(b.lanes - 1)), b.index(b.lanes))

    def strip_of(self, b: Builder, tile: Sequence[ir.Value], start: ir.Value, size: int) -> list[ir.Value]:
        """The part of a tile that begins at row ``start`` and has at most ``size`` rows."""
        first, last = self.first_and_last(tile)
        cut = list(tile)
        cut[self.rows] = b.ir.add(first, start)
        cut[self.rows + 1] = b.lower_of(b.add(cut[self.rows], size - 1), last)
        return cut

    def vector_of(self, b: Builder, tile: Sequence[ir.Value], number: ir.Value) -> list[ir.Value]:
        """The part of a tile that is its lane vector ``number``."""
        return self._other.strip_of(b, tile, b.index(b.mul(number, b.lanes)), b.lanes)

    @property
    def _other(self) -> "Trim":
        return Trim(2 - self.rows, self.strip)


QUERIES, KEYS = Trim(0, 8), Trim(2, 16)


def _length(b: Builder, ends: tuple[ir.Value, ir.Value]) -> ir.Value:
    return b.ir.add(b.ir.sub(ends[1], ends[0]), b.index(1))


def trimmer(entry: Builder, look: ir.Function, trim: Trim) -> ir.Function:
    """The function that writes a tile's span: (frame, batch, head, the tile, the span's words).

    ``look`` tells of (frame, batch, head, a tile) whether none, some or all of its pairs are visible.
    """
    b = Builder.define(entry.function.module, "trim", [POINTER, *[I64] * 6, POINTER], entry)
    *arguments, pointer = b.function.args
    _Trimmer(b, look, trim, arguments[:3], arguments[3:], Span(b, pointer)).trim()
    return b.finish()


class _Trimmer:
    """The body of ``trimmer``'s function."""

    def __init__(
        self, b: Builder, look: ir.Function, trim: Trim, head: list[ir.Value], tile: list[ir.Value], span: Span
    ) -> None:
        self.b, self.look, self.rule, self.head, self.tile, self.span = b, look, trim, head, tile, span
        self.count, self.vectors = trim.count(b, tile), trim.vectors(b, tile)
        self.parts = b.slot(b.index(0))
        none = b.index(-1)
        self.latest = [b.slot(value) for value in (none, none, none)]  # end, low and high of the part before

    def trim(self) -> None:
        b, count = self.b, self.count
        start, end, cut_start, cut_end = (b.slot(b.index(value)) for value in (count, 0, count, 0))
        with b.loop(0, count, self.rule.strip) as strip:
            strip_end = b.lower_of(b.add(strip, self.rule.strip), count)
            tile = self.rule.strip_of(b, self.tile, strip, self.rule.strip)
            found = self._look(tile)
            low, high = self._seeing(tile, found)
            with b.when(b.less(low, high)):
                start.value, end.value = b.lower_of(start.value, strip), strip_end
                self._append(Part(strip, strip_end, low, high))
            with b.when(b.ir.icmp_signed("!=", found, b.index(ALL))):
                cut_start.value, cut_end.value = b.lower_of(cut_start.value, strip), strip_end
        cut = b.higher_of(cut_start.value, start.value), b.lower_of(cut_end.value, end.value)
        self.span.write(start.value, end.value, *cut, self.parts.value)

    def _look(self, tile: Sequence[ir.Value]) -> ir.Value:
        return self.b.ir.call(self.look, [*self.head, *tile])

    def _seeing(self, tile: Sequence[ir.Value], found: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The first and the end of the lane vectors that see something of a strip."""
        b = self.b
        all_seen = b.ir.icmp_signed("==", found, b.index(ALL))
        low = b.slot(b.ir.select(all_seen, b.index(0), self.vectors))
        high = b.slot(b.ir.select(all_seen, self.vectors, b.index(0)))
        with b.when(b.ir.icmp_signed("==", found, b.index(SOME))), b.loop(0, self.vectors) as n:
            seen = self._look(self.rule.vector_of(b, tile, n))
            with b.when(b.ir.icmp_signed("!=", seen, b.index(NONE))):
                low.value, high.value = b.lower_of(low.value, n), b.ir.add(n, b.index(1))
        return low.value, high.value

    def _append(self, part: Part) -> None:
        """One more part, or the one before grown by it."""
        b, parts = self.b, self.parts
        alike = ir.Constant(ir.IntType(1), 1)
        for slot, value in zip(self.latest, (part.start, part.low, part.high), strict=True):
            alike = b.ir.and_(alike, b.ir.icmp_signed("==", slot.value, value))
        with b.when(b.ir.not_(alike)):
            self.span.write_part(parts.value, part)
            parts.value = b.ir.add(parts.value, b.index(1))
        self.span.lengthen_part(b.sub(parts.value, 1), part.end)
        for slot, value in zip(self.latest, (part.end, part.low, part.high), strict=True):
            slot.value = value
