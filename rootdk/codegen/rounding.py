"""Rounding to whole numbers from additions alone: baseline x86-64 has no rounding instruction, and LLVM would call libm.

Results are exact, keep the sign of zero, and pass infinities and NaN through.
"""

from llvmlite import ir

from rootdk.codegen.builder import Builder
from rootdk.codegen.reals import Reals

__all__ = ["ceil", "floor", "nearest", "trunc"]


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
