"""The range of every operation: what its result can be, given what its arguments can be.

The rules are written once, over an ``Algebra`` of plain values with Python's operators, and run on two: arrays of
tiles in NumPy (``mods.bounds``) and scalar machine code inside a kernel (``codegen.lower_bounds``). A rule may say too
much is possible, never too little: a tile that is wrongly proven empty is a wrong answer.

Endpoints of floats are computed in the accumulator's own type. Its arithmetic is correctly rounded, hence monotone, so
an operation on endpoints gives the endpoints of the operation, rounding included.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from rootdk.dtypes import FLOAT64, DType, Kind
from rootdk.mods import ranges
from rootdk.mods.expr import Graph

__all__ = ["INT_MAX", "INT_MIN", "Algebra", "FloatRange", "IntRange", "Range", "Rule", "Truth", "corners"]

INT_MIN, INT_MAX = -(2**63), 2**63 - 1

Value = Any
"""A number or truth value of an algebra: an array, or a machine value with Python's operators."""


@dataclass(frozen=True, slots=True)
class IntRange:
    """The integers from ``low`` to ``high``, both included."""

    low: Value
    high: Value


@dataclass(frozen=True, slots=True)
class FloatRange:
    """The floats from ``low`` to ``high``, and NaN where ``nan``; the ends may be infinite and are never NaN."""

    low: Value
    high: Value
    nan: Value


@dataclass(frozen=True, slots=True)
class Truth:
    """Which truth values are possible."""

    can_be_false: Value
    can_be_true: Value


Range = IntRange | FloatRange | Truth
Rule = Callable[..., Range]
"""rule(algebra, *ranges of the arguments) -> range of the result."""

Checked = tuple[Value, Value]
"""A wrapped 64-bit result, and whether it overflowed."""


class Algebra(ABC):
    """The operations on values that the rules need beside Python's ``+ - * / & | ^ ~ << >>`` and comparisons."""

    def __init__(self, graph: Graph, indices: Mapping[str, IntRange], accumulator: DType) -> None:
        self.graph = graph
        self.indices = indices
        self.stretches = {
            graph.nodes[stretch.node]: (position, stretch.dimensions)
            for position, stretch in enumerate(ranges.stretches(graph))
        }
        self.smallest_normal = 2.0**-1022 if accumulator is FLOAT64 else 2.0**-126

    @abstractmethod
    def literal(self, kind: Kind, value: float) -> Value:
        """A value known now; a float in the accumulator's type."""

    @abstractmethod
    def constant(self, slot: int, kind: Kind) -> Value:
        """A captured number."""

    @abstractmethod
    def table(self, position: int) -> Value:
        """The range table of stretch number ``position`` of the graph."""

    @abstractmethod
    def load(self, table: Value, offset: Value) -> Value:
        """The 64-bit word number ``offset`` of a range table."""

    @abstractmethod
    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """``a`` where the condition holds, else ``b``; at most one of them is a Python number."""

    @abstractmethod
    def add(self, a: Value, b: Value) -> Checked: ...

    @abstractmethod
    def subtract(self, a: Value, b: Value) -> Checked: ...

    @abstractmethod
    def multiply(self, a: Value, b: Value) -> Checked: ...

    @abstractmethod
    def quotient(self, a: Value, b: Value) -> Value:
        """floor(a / b) of integers, b >= 1."""

    @abstractmethod
    def log2(self, a: Value) -> Value:
        """floor(log2(a)) of an integer >= 1."""

    @abstractmethod
    def to_float(self, a: Value) -> Value: ...

    @abstractmethod
    def to_int(self, a: Value) -> Value:
        """Truncates; |a| <= 2**62."""

    @abstractmethod
    def from_bits(self, word: Value) -> Value:
        """The float64 whose bits are ``word``, in the accumulator's type."""

    @abstractmethod
    def floor(self, a: Value) -> Value: ...

    @abstractmethod
    def sqrt(self, a: Value) -> Value: ...

    @abstractmethod
    def lowest(self, count: Value, words: Callable[[Value], tuple[Value, ...]]) -> tuple[Value, ...]:
        """The smallest of each of ``words(0)`` ... ``words(count - 1)``; count >= 1."""

    def lower(self, a: Value, b: Value) -> Value:
        return self.select(a < b, a, b)

    def higher(self, a: Value, b: Value) -> Value:
        return self.select(a > b, a, b)


def corners(a: Algebra, function: Callable[[Value, Value], Value], x: Range, y: Range) -> list[Value]:
    """``function`` at every pair of ends of two ranges of numbers."""
    assert not isinstance(x, Truth) and not isinstance(y, Truth)
    return [function(p, q) for p, q in product((x.low, x.high), (y.low, y.high))]
