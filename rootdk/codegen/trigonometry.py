"""Sine and cosine: quarter turns are taken off in double, for floats too, then a polynomial on an eighth of a turn."""

import math

from llvmlite import ir

from rootdk.codegen.builder import Builder
from rootdk.codegen.reals import FORMAT64, Reals, shaped

__all__ = ["cos", "sin"]

# sin(x) / x and cos(x) as polynomials in x^2 for |x| <= pi / 4. Relative error: degree 3 4.0e-09, degree 6 3.7e-18.
SIN = {
    32: (1.0, -0.166666552, 0.00833218917, -0.000195182874),
    64: (
        1.0, -0.1666666666666663, 0.0083333333333218407, -0.00019841269829358512, 2.7557313538500609e-06,
        -2.5050734385792586e-08, 1.5895433013067071e-10,
    ),
}  # fmt: skip
# Relative error: degree 4 1.2e-10, degree 7 5.7e-20.
COS = {
    32: (1.0, -0.5, 0.0416666456, -0.00138873095, 2.44323273e-05),
    64: (
        1.0, -0.5, 0.041666666666666595, -0.001388888888887334, 2.4801587288999779e-05, -2.7557314216167317e-07,
        2.0875705255061636e-09, -1.135874097161353e-11,
    ),
}  # fmt: skip

# pi / 2 in three parts; the first two are short, so that their products with up to 2^20 quarter turns are exact.
_QUARTER_TURN = (1.5707963267341256, 6.0771005063039658e-11, 2.0222662487959506e-21)


def sin(builder: Builder, x: ir.Value) -> ir.Value:
    """Sine; NaN at infinities. Error: 1.4, 2 ulp up to |x| = 10^6."""
    r = Reals(builder, x)
    return r.select(r.compare("==", x, 0.0), x, _wave(builder, x, 0))  # keeps the sign of zero


def cos(builder: Builder, x: ir.Value) -> ir.Value:
    """Cosine; NaN at infinities. Error: 1.5, 2 ulp up to |x| = 10^6."""
    return _wave(builder, x, 1)


def _wave(builder: Builder, x: ir.Value, lead: int) -> ir.Value:
    """The sine of ``x`` and ``lead`` quarter turns."""
    r = Reals(builder, x)
    remainder, turns = _reduced(r, x)
    turns = r.ir.add(turns, r.whole(lead))
    square = r.mul(remainder, remainder)
    sine_tail = r.polynomial(square, SIN[r.format.width][1:])
    sine = r.fma(r.mul(remainder, square), sine_tail, remainder)
    cosine = r.polynomial(square, COS[r.format.width])
    odd = r.ir.icmp_unsigned("!=", r.ir.and_(turns, r.whole(1)), r.whole(0))
    sign = r.ir.shl(r.ir.and_(turns, r.whole(2)), r.whole(r.format.width - 2))
    return r.real(r.ir.xor(r.bits(r.select(odd, cosine, sine)), sign))


def _reduced(r: Reals, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """What is left of ``x`` after the nearest number of quarter turns, and that number in the low bits of integers."""
    wide = x if r.format is FORMAT64 else r.ir.fpext(x, shaped(FORMAT64.real, x.type))
    d = Reals(r.builder, wide)
    shifted = d.fma(wide, 2 / math.pi, d.format.magic)
    count = d.sub(shifted, d.format.magic)
    remainder = wide
    for part in _QUARTER_TURN:
        remainder = d.fma(count, -part, remainder)
    if r.format is FORMAT64:
        return remainder, d.bits(shifted)
    return r.ir.fptrunc(remainder, r.type), r.ir.trunc(d.bits(shifted), r.integers)
