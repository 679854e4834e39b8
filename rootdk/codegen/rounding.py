"""Rounding to whole numbers by additions alone: baseline x86-64 cannot round, and LLVM would call libm for it.

Results are exact, keep the sign of zero, and pass infinities and NaN through.
"""

import math

from llvmlite import ir

from rootdk.codegen.builder import Builder
from rootdk.codegen.reals import Reals

__all__ = ["ceil", "floor", "floor_divide", "nearest", "trunc"]


def nearest(builder: Builder, x: ir.Value) -> ir.Value:
    """The nearest whole number, halves to even."""
    r = Reals(builder, x)
    return _where_fractional(r, x, _nearest_magnitude(r, r.absolute(x)))


def floor(builder: Builder, x: ir.Value) -> ir.Value:
    """The largest whole number that is not larger."""
    r = Reals(builder, x)
    near = nearest(builder, x)
    return _signed(r, x, r.sub(near, r.select(r.compare(">", near, x), 1.0, 0.0)))


def ceil(builder: Builder, x: ir.Value) -> ir.Value:
    """The smallest whole number that is not smaller."""
    r = Reals(builder, x)
    near = nearest(builder, x)
    return _signed(r, x, r.add(near, r.select(r.compare("<", near, x), 1.0, 0.0)))


def trunc(builder: Builder, x: ir.Value) -> ir.Value:
    """The whole part."""
    r = Reals(builder, x)
    magnitude = r.absolute(x)
    near = _nearest_magnitude(r, magnitude)
    return _where_fractional(r, x, r.sub(near, r.select(r.compare(">", near, magnitude), 1.0, 0.0)))


def _nearest_magnitude(r: Reals, magnitude: ir.Value) -> ir.Value:
    # From 2^mantissa on, numbers are whole and the sum has no bits for a fraction.
    limit = 2.0**r.format.mantissa
    return r.sub(r.add(magnitude, limit), limit)


def _where_fractional(r: Reals, x: ir.Value, magnitude: ir.Value) -> ir.Value:
    """``magnitude`` with the sign of ``x``; ``x`` itself where it is whole by its size, or NaN."""
    small = r.compare("<", r.absolute(x), 2.0**r.format.mantissa)
    return r.select(small, r.with_sign_of(x, magnitude), x)


def _signed(r: Reals, x: ir.Value, whole: ir.Value) -> ir.Value:
    """``whole`` with the sign of ``x``, which it has unless it is zero."""
    return r.with_sign_of(x, r.absolute(whole))


def floor_divide(builder: Builder, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(a // b, a % b) as Python has them: the quotient rounded down, the remainder with the sign of ``b``.

    By zero they are a / b and NaN. Exact up to quotients of 2^mantissa, and of no meaning beyond.
    """
    r = Reals(builder, a)
    top, bottom = r.absolute(a), r.absolute(b)
    quotient = trunc(builder, r.div(top, bottom))
    product, low = r.product(quotient, bottom)
    rest = r.sub(r.sub(top, product), low)
    # the quotient's own rounding may have carried it to the next whole number
    over = r.compare("<", rest, 0.0)
    quotient, rest = r.select(over, r.sub(quotient, 1.0), quotient), r.select(over, r.add(rest, bottom), rest)
    rest = r.select(r.ir.and_(r.compare("==", bottom, math.inf), r.compare("<", top, math.inf)), top, rest)
    opposite = r.ir.icmp_signed("<", r.ir.xor(r.bits(a), r.bits(b)), r.whole(0))
    borrow = r.ir.and_(opposite, r.compare(">", rest, 0.0))
    rest = r.select(borrow, r.sub(bottom, rest), rest)
    quotient = r.select(borrow, r.add(quotient, 1.0), quotient)
    quotient = r.select(opposite, r.sub(-0.0, quotient), quotient)
    quotient = r.select(r.compare("==", top, math.inf), math.nan, quotient)
    by_zero = r.compare("==", b, 0.0)
    return r.select(by_zero, r.div(a, b), quotient), r.select(by_zero, math.nan, r.with_sign_of(b, rest))
