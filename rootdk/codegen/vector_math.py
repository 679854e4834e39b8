"""Elementary functions as straight-line vector code: no call, no table in memory, the same bits for one lane as for many.

Each takes a Builder and a float or double, scalar or vector, and states its largest error in ulp (float, double), which
``tests/codegen/test_vector_math.py`` measures. Errors are for targets with fused multiply-add; without, an ulp
more. NaN gives NaN, denormal numbers are kept. Coefficients come from ``tools/minimax.py``.
"""

import math

from llvmlite import ir

from rootdk.codegen.builder import Builder
from rootdk.codegen.reals import Reals

__all__ = ["exp2_nonpositive", "log2"]

# 2^x on [-1/2, 1/2], exactly 1 at 0. Relative error: degree 5 9.3e-08, degree 11 4.1e-18.
EXP2 = {
    32: (1.0, 0.693147004, 0.240222469, 0.0555071086, 0.00967129134, 0.00132695213),
    64: (
        1.0, 0.69314718055994529, 0.24022650695910108, 0.055504108664821722, 0.009618129107601606,
        0.0013333558146546359, 0.00015403530449033598, 1.5252733633948471e-05, 1.3215438837495369e-06,
        1.0178160047458912e-07, 7.0732327394074729e-09, 4.4388636465256914e-10,
    ),
}  # fmt: skip

# log(1 + f) = s (2 + s^2 * this polynomial in s^2), where s = f / (2 + f) and s^2 <= 0.0295. Error relative to the
# logarithm: degree 2 8.1e-10, degree 6 1.2e-18.
LOG = {
    32: (0.666667759, 0.399775833, 0.298707962),
    64: (
        0.6666666666666734, 0.39999999999416636, 0.28571428742030108, 0.22222198604816107, 0.1818356286477818,
        0.15314084484355117, 0.14795636941759677,
    ),
}  # fmt: skip


# log2(e) as a sum of two, and the bits of sqrt(1/2).
_LOG2_E = {32: (1.44269502, 1.92596303e-08), 64: (1.4426950408889634, 2.0355273740931033e-17)}
_SQRT_HALF_BITS = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}


def exp2_nonpositive(builder: Builder, x: ir.Value) -> ir.Value:
    """2^x for x <= 0, the softmax's: -inf gives exactly 0, 0 exactly 1, NaN stays NaN.

    Error: 2 ulp (float), 0.8 ulp (double). Results below the smallest normal number are 0 or wrong by at most that
    number. Right up to x = 127 (1023) too; beyond, the result means nothing, except that +inf gives NaN.
    """
    r = Reals(builder, x)
    bias = r.format.bias
    x = r.at_least(-bias, x)
    # The sum's low bits are the rounded x plus the bias: the result's exponent field, one shift away from its place.
    magic = r.format.magic + bias
    shifted = r.add(x, magic)
    fraction = r.sub(x, r.sub(shifted, magic))
    scale = r.real(r.ir.shl(r.bits(shifted), r.whole(r.format.mantissa)))
    return r.mul(r.polynomial(fraction, EXP2[r.format.width]), scale)


def log2(builder: Builder, x: ir.Value) -> ir.Value:
    """Logarithm to base 2: -inf at 0, NaN below. Error: 1 ulp (both)."""
    r = Reals(builder, x)
    exponent, f, correction = _log_parts(r, x)
    high, low = _LOG2_E[r.format.width]
    rest = r.fma(f, low, r.mul(correction, high))
    return _log_edges(r, x, r.add(exponent, r.fma(f, high, rest)))


def _log_parts(r: Reals, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(e, f, c) with log(x) = e log(2) + f + c: e whole, f exact in [sqrt(1/2) - 1, sqrt(2) - 1], c small beside f."""
    form = r.format
    tiny = r.compare("<", x, form.smallest_normal)
    x = r.select(tiny, r.mul(x, 2.0 ** (form.mantissa + 1)), x)
    # Moving sqrt(1/2) to a power of two makes the exponent field step there; unsigned, as x has no sign here.
    below = r.whole((form.bias << form.mantissa) - _SQRT_HALF_BITS[form.width])
    biased = r.ir.lshr(r.ir.add(r.bits(x), below), r.whole(form.mantissa))
    power = r.ir.shl(r.ir.sub(biased, r.whole(form.bias)), r.whole(form.mantissa))
    f = r.sub(r.real(r.ir.sub(r.bits(x), power)), 1.0)
    exponent = r.sub(r.real(r.ir.add(biased, r.whole(form.magic_bits))), form.magic + form.bias)
    exponent = r.sub(exponent, r.select(tiny, form.mantissa + 1, 0.0))
    s = r.div(f, r.add(f, 2.0))
    z = r.mul(s, s)
    half_square = r.mul(r.mul(f, 0.5), f)
    tail = r.mul(z, r.polynomial(z, LOG[form.width]))
    return exponent, f, r.sub(r.mul(s, r.add(half_square, tail)), half_square)


def _log_edges(r: Reals, x: ir.Value, result: ir.Value) -> ir.Value:
    """``result`` with the values of a logarithm at 0, at inf, at NaN and below 0."""
    result = r.select(r.compare("<", x, math.inf), result, x)
    result = r.select(r.compare("==", x, 0.0), -math.inf, result)
    return r.select(r.compare("<", x, 0.0), math.nan, result)
