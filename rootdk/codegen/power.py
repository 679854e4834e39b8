"""Powers: a base-2 exponential of a base-2 logarithm that has more digits than the result."""

import math

from llvmlite import ir

from rootdk.codegen import rounding
from rootdk.codegen.builder import Builder
from rootdk.codegen.reals import FORMAT64, Reals, shaped
from rootdk.codegen.vector_math import exp2, exponent_and_fraction, log2

__all__ = ["power"]

Pair = tuple[ir.Value | float, ir.Value | float]
"""A number to twice the precision: the sum of the two, the second less than the last place of the first."""

# log(1 + f) = 2 s (1 + z (1 / 3 + z * this polynomial in z)) with s = f / (2 + f), z = s^2 <= 0.0295. Error relative to
# the logarithm: degree 7 7.6e-23.
LOG_TAIL = (
    0.1999999999999999, 0.1428571428572192, 0.11111111108894876, 0.090909094219943448, 0.076922792145058913,
    0.066681322370563414, 0.058378906698486166, 0.059908736403502631,
)  # fmt: skip
_THIRD = (0.3333333333333333, 1.850371707708594e-17)
_TWICE_LOG2_E = (2.8853900817779268, 4.0710547481862066e-17)


def power(builder: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x^y as C's pow: 1 for y = 0 and for x = 1, a negative x needs a whole y. Error: 1, 1 ulp."""
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
        return _double_magnitude(r, x, y)
    wide = shaped(FORMAT64.real, x.type)
    d = Reals(r.builder, r.ir.fpext(x, wide))
    product = d.mul(r.ir.fpext(y, wide), log2(r.builder, r.ir.fpext(x, wide)))
    return r.ir.fptrunc(exp2(r.builder, product), r.type)


def _double_magnitude(r: Reals, x: ir.Value, y: ir.Value) -> ir.Value:
    high, low = _log2_pair(r, x)
    high = r.select(r.compare("<", x, math.inf), high, x)
    high = r.select(r.compare("==", x, 0.0), -math.inf, high)
    product, lost = r.product(y, high)
    lost = r.fma(y, low, lost)
    # beyond the range of exponents the product alone decides, and what it lost may be NaN
    lost = r.select(r.compare("<", r.absolute(product), 2.0 * r.format.bias), lost, 0.0)
    return exp2(r.builder, product, lost)


def _log2_pair(r: Reals, x: ir.Value) -> Pair:
    """log2(x) for finite x > 0, with a relative error of 2^-63."""
    exponent, f = exponent_and_fraction(r, x)
    denominator, missing = r.exact_sum(2.0, f)
    quotient = r.div(f, denominator)
    product, lost = r.product(quotient, denominator)
    rest = r.sub(r.sub(r.sub(f, product), lost), r.mul(quotient, missing))
    s = quotient, r.div(rest, denominator)
    z = _times(r, s, s)
    series = _plus(r, _THIRD, r.mul(z[0], r.polynomial(z[0], LOG_TAIL)))
    series = _times(r, z, series)
    series = _times(r, s, _plus(r, (1.0, 0.0), *series))
    high, low = _times(r, series, _TWICE_LOG2_E)
    return _plus(r, (exponent, 0.0), high, low)


def _times(r: Reals, a: Pair, b: Pair) -> Pair:
    product, lost = r.product(a[0], b[0])
    return product, r.add(lost, r.fma(a[0], b[1], r.mul(a[1], b[0])))


def _plus(r: Reals, a: Pair, high: ir.Value, low: ir.Value | float = 0.0) -> Pair:
    """The sum of a pair and of one that is not larger, or whose partner is 0."""
    total, lost = r.exact_sum(a[0], high)
    return total, r.add(lost, r.add(a[1], low))
