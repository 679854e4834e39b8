"""What of a tile matters: a few words of memory that interval analysis writes and the hot loops read.

A tile has rows, along which it is trimmed, and lane vectors. Keys are the rows of the forward pass, queries those of
the backward pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.builder import I64, Builder, Scalar

__all__ = ["Part", "Span"]

_HEADER, _PART_WORDS = 5, 4


@dataclass(frozen=True)
class Part:
    """Rows [start, end), of which nothing is visible outside the lane vectors [low, high)."""

    start: ir.Value
    end: ir.Value
    low: ir.Value
    high: ir.Value


class _Word:
    """A word of a span, read where the attribute is."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __get__(self, span: "Span", _: type) -> ir.Value:
        return span.word(self.place)


class Span:
    """The words at ``pointer``; rows count from the tile's first."""

    def __init__(self, b: Builder, pointer: ir.Value) -> None:
        self.b, self.pointer = b, pointer

    @classmethod
    def allocate(cls, b: Builder, most_parts: int) -> "Span":
        with b.ir.goto_entry_block():
            return cls(b, b.ir.alloca(I64, _HEADER + _PART_WORDS * most_parts))

    start, end = _Word(0), _Word(1)
    """Rows [start, end): outside of them nothing is visible."""
    cut_start, cut_end = _Word(2), _Word(3)
    """Rows [cut_start, cut_end): outside of them, in the span, everything is visible."""
    part_count = _Word(4)

    def part(self, number: Scalar) -> Part:
        return Part(*(self.word(self._place(number, word)) for word in range(_PART_WORDS)))

    @contextmanager
    def each_part(self) -> Iterator[Part]:
        """Loops over the parts, which follow each other and hold all that is visible."""
        with self.b.loop(0, self.part_count) as number:
            yield self.part(number)

    def write(self, start: Scalar, end: Scalar, cut_start: Scalar, cut_end: Scalar, part_count: Scalar) -> None:
        for word, value in enumerate((start, end, cut_start, cut_end, part_count)):
            self._set(word, value)

    def write_part(self, number: Scalar, part: Part) -> None:
        for word, value in enumerate((part.start, part.end, part.low, part.high)):
            self._set(self._place(number, word), value)

    def lengthen_part(self, number: Scalar, end: ir.Value) -> None:
        self._set(self._place(number, 1), end)

    def _place(self, number: Scalar, word: int) -> Scalar:
        return self.b.add(self.b.mul(number, _PART_WORDS), _HEADER + word)

    def word(self, word: Scalar) -> ir.Value:
        return self.b.load(I64, self.pointer, self.b.mul(word, 8), align=8)

    def _set(self, word: Scalar, value: Scalar) -> None:
        self.b.store(self.b.index(value), self.pointer, self.b.mul(word, 8), align=8)
