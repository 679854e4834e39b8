"""Powers: a base-2 exponential of a base-2 logarithm that has more digits than the result."""

import math

from llvmlite import ir

from rootdk.codegen import rounding
from rootdk.codegen.builder import Builder
from rootdk.codegen.reals import FORMAT64, Reals, shaped
from rootdk.codegen.vector_math import exp2, log2

__all__ = ["power"]


def power(builder: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x^y as C's pow: 1 for y = 0 and for x = 1, a negative x needs a whole y. Error: 1 ulp (float)."""
    r = Reals(builder, x)
    magnitude = r.absolute(x)
    result = r.select(r.compare("==", magnitude, 1.0), 1.0, _magnitude(r, magnitude, y))
    whole = r.compare("==", rounding.trunc(builder, y), y)
    half = r.mul(y, 0.5)
    even = r.compare("==", rounding.trunc(builder, half), half)
    odd = r.ir.and_(whole, r.ir.not_(even))
    result = r.select(odd, r.with_sign_of(x, result), result)
    undefined = r.ir.and_(r.compare("<", x, 0.0), r.compare(">", x, -math.inf))
    undefined = r.ir.and_(undefined, r.ir.not_(whole))
    undefined = r.ir.or_(undefined, r.ir.fcmp_unordered("uno", x, y))
    result = r.select(undefined, math.nan, result)
    return r.select(r.ir.or_(r.compare("==", x, 1.0), r.compare("==", y, 0.0)), 1.0, result)


def _magnitude(r: Reals, x: ir.Value, y: ir.Value) -> ir.Value:
    """x^y for x >= 0; through double for floats, whose 29 spare bits are what the exponent's size takes away."""
    if r.format is FORMAT64:
        return exp2(r.builder, r.mul(y, log2(r.builder, x)))
    wide = shaped(FORMAT64.real, x.type)
    d = Reals(r.builder, r.ir.fpext(x, wide))
    product = d.mul(r.ir.fpext(y, wide), log2(r.builder, r.ir.fpext(x, wide)))
    return r.ir.fptrunc(exp2(r.builder, product), r.type)
