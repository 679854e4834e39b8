"""Interval analysis as machine code: what a tile's mask can be, decided inside the kernel before the tile is computed.

Straight scalar code, some instructions per operation, so no mask is materialised and no block list is built. The rules
are ``mods.intervals``'s; this is their algebra of LLVM values.
"""

from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir

from rootdk.codegen.builder import I1, I64, POINTER, Builder
from rootdk.dtypes import Kind
from rootdk.mods.expr import Graph
from rootdk.mods.intervals import Algebra, Checked, IntRange, Truth
from rootdk.mods.range_rules import propagate
from rootdk.mods.ranges import reachable

__all__ = ["classify"]


def classify(
    builder: Builder,
    graph: Graph,
    intervals: Mapping[str, tuple[ir.Value, ir.Value]],
    constants: ir.Value,
    tables: ir.Value,
) -> tuple[ir.Value, ir.Value]:
    """Whether any pair of a tile can be hidden, and whether any can be visible: two i1.

    ``intervals`` are the first and last value of b, h, q and kv in the tile, i64 inside the problem. ``constants``
    points to the captured numbers, 8 bytes each: integers as i64, floats as float64. ``tables`` points to the
    addresses of the range tables, one per ``ranges.stretches(graph)``.
    """
    if graph.mask is None:
        return ir.Constant(I1, 0), ir.Constant(I1, 1)
    algebra = _Scalars(builder, graph, intervals, constants, tables)
    truth = propagate(algebra, reachable(graph, [graph.mask]))[graph.mask]
    assert isinstance(truth, Truth)
    return truth.can_be_false.value, truth.can_be_true.value


class _Scalar:
    """An i64, a float of the accumulator's type, or an i1, with Python's operators."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, builder: Builder, value: ir.Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def is_float(self) -> bool:
        return bool(self.value.type == self.builder.real)

    def like(self, other: "_Scalar | float") -> ir.Value:
        """``other`` as a machine value; a Python number gets this one's type."""
        if isinstance(other, _Scalar):
            return other.value
        return ir.Constant(self.value.type, float(other) if self.is_float else int(other))

    def of(self, value: ir.Value) -> "_Scalar":
        return _Scalar(self.builder, value)

    def _compare(self, sign: str, other: Any) -> "_Scalar":
        b = self.builder.ir
        # a NaN compares false, and unequal
        of_floats = b.fcmp_unordered if sign == "!=" else b.fcmp_ordered
        compare = of_floats if self.is_float else b.icmp_signed
        return self.of(compare(sign, self.value, self.like(other)))

    def __lt__(self, other: Any) -> "_Scalar":
        return self._compare("<", other)

    def __le__(self, other: Any) -> "_Scalar":
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> "_Scalar":
        return self._compare(">", other)

    def __ge__(self, other: Any) -> "_Scalar":
        return self._compare(">=", other)

    def __eq__(self, other: object) -> "_Scalar":  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: object) -> "_Scalar":  # type: ignore[override]
        return self._compare("!=", other)

    def _compute(self, name: str, other: "_Scalar | float") -> "_Scalar":
        return self.of(getattr(self.builder.ir, name)(self.value, self.like(other)))

    def __add__(self, other: Any) -> "_Scalar":
        return self._compute("fadd" if self.is_float else "add", other)

    def __sub__(self, other: Any) -> "_Scalar":
        return self._compute("fsub" if self.is_float else "sub", other)

    def __rsub__(self, other: float) -> "_Scalar":
        return self.of(self.like(other)) - self

    def __mul__(self, other: Any) -> "_Scalar":
        return self._compute("fmul" if self.is_float else "mul", other)

    def __truediv__(self, other: Any) -> "_Scalar":
        return self._compute("fdiv", other)

    def __and__(self, other: Any) -> "_Scalar":
        return self._compute("and_", other)

    def __or__(self, other: Any) -> "_Scalar":
        return self._compute("or_", other)

    def __xor__(self, other: Any) -> "_Scalar":
        return self._compute("xor", other)

    def __lshift__(self, other: Any) -> "_Scalar":
        return self._compute("shl", other)

    def __rshift__(self, other: Any) -> "_Scalar":
        return self._compute("ashr", other)

    def __neg__(self) -> "_Scalar":
        return self.of((self.builder.ir.fneg if self.is_float else self.builder.ir.neg)(self.value))

    def __invert__(self) -> "_Scalar":
        return self.of(self.builder.ir.not_(self.value))


class _Scalars(Algebra):
    """The algebra of machine values."""

    def __init__(
        self,
        builder: Builder,
        graph: Graph,
        intervals: Mapping[str, tuple[ir.Value, ir.Value]],
        constants: ir.Value,
        tables: ir.Value,
    ) -> None:
        indices = {
            name: IntRange(_Scalar(builder, low), _Scalar(builder, high)) for name, (low, high) in intervals.items()
        }
        super().__init__(graph, indices, builder.accumulator)
        self._builder = builder
        self._constants = constants
        self._tables = tables

    def _of(self, value: ir.Value) -> _Scalar:
        return _Scalar(self._builder, value)

    def literal(self, kind: Kind, value: float) -> _Scalar:
        if kind is Kind.FLOAT:
            return self._of(self._builder.scalar(value))
        return self._of(ir.Constant(I64 if kind is Kind.INT else I1, int(value)))

    def constant(self, slot: int, kind: Kind) -> _Scalar:
        word = self._builder.load(I64, self._constants, 8 * slot, align=8)
        if kind is Kind.FLOAT:
            return self.from_bits(self._of(word))
        found = self._of(word)
        return found if kind is Kind.INT else found != 0

    def table(self, position: int) -> _Scalar:
        return self._of(self._builder.load(POINTER, self._tables, 8 * position, align=8))

    def load(self, table: _Scalar, offset: _Scalar) -> _Scalar:
        where = self._builder.ir.gep(table.value, [offset.value], source_etype=I64)
        return self._of(self._builder.ir.load(where, align=8, typ=I64))

    def select(self, condition: _Scalar, a: Any, b: Any) -> _Scalar:
        like = a if isinstance(a, _Scalar) else b
        return self._of(self._builder.ir.select(condition.value, like.like(a), like.like(b)))

    def _checked(self, function: str, a: _Scalar, b: _Scalar) -> Checked:
        pair = getattr(self._builder.ir, f"{function}_with_overflow")(a.value, b.value)
        take = self._builder.ir.extract_value
        return self._of(take(pair, 0)), self._of(take(pair, 1))

    def add(self, a: _Scalar, b: _Scalar) -> Checked:
        return self._checked("sadd", a, b)

    def subtract(self, a: _Scalar, b: _Scalar) -> Checked:
        return self._checked("ssub", a, b)

    def multiply(self, a: _Scalar, b: _Scalar) -> Checked:
        return self._checked("smul", a, b)

    def quotient(self, a: _Scalar, b: _Scalar) -> _Scalar:
        truncated = self._of(self._builder.ir.sdiv(a.value, b.value))
        return self.select(a - truncated * b < 0, truncated - 1, truncated)

    def log2(self, a: _Scalar) -> _Scalar:
        zeros = self._of(self._builder.ir.ctlz(a.value, ir.Constant(I1, 1)))
        return 63 - zeros

    def to_float(self, a: _Scalar) -> _Scalar:
        return self._of(self._builder.ir.sitofp(a.value, self._builder.real))

    def to_int(self, a: _Scalar) -> _Scalar:
        return self._of(self._builder.ir.fptosi(a.value, I64))

    def from_bits(self, word: _Scalar) -> _Scalar:
        double = self._builder.ir.bitcast(word.value, ir.DoubleType())
        if double.type == self._builder.real:
            return self._of(double)
        return self._of(self._builder.ir.fptrunc(double, self._builder.real))

    def floor(self, a: _Scalar) -> _Scalar:
        # not llvm.floor: without SSE 4.1 it calls libm, which kernels can't
        small = (a > -(2.0**53)) & (a < 2.0**53)
        truncated = self.to_float(self.to_int(self.select(small, a, 0.0)))
        return self.select(small, self.select(truncated > a, truncated - 1.0, truncated), a)

    def sqrt(self, a: _Scalar) -> _Scalar:
        kind = a.value.type
        return self._of(self._builder.intrinsic(f"llvm.sqrt.{self._builder.suffix(kind)}", kind, [a.value]))

    def lowest(self, count: _Scalar, words: Callable[[_Scalar], tuple[_Scalar, ...]]) -> tuple[_Scalar, ...]:
        b = self._builder
        slots = [b.slot(word.value) for word in words(self._of(b.index(0)))]
        with b.loop(1, count.value) as number:
            for slot, word in zip(slots, words(self._of(number)), strict=True):
                slot.value = b.lower_of(slot.value, word.value)
        return tuple(self._of(slot.value) for slot in slots)
