"""Elementary functions as straight-line vector code: no call, no table in memory, one lane or many give the same bits.

Each takes a Builder and a float or double, scalar or vector, and states its largest error in ulp (float, double), which
``tests/codegen/test_vector_math.py`` measures. Errors are for targets with fused multiply-add; without, one and
a half more. NaN gives NaN, denormal numbers are kept. Coefficients come from ``tools/minimax.py``.
"""

import math

from llvmlite import ir

from rootdk.codegen.builder import Builder
from rootdk.codegen.reals import Reals

__all__ = [
    "erf",
    "exp",
    "exp2",
    "exp2_nonpositive",
    "expm1",
    "exponent_and_fraction",
    "log",
    "log1p",
    "log2",
    "sigmoid",
    "sqrt",
    "tanh",
]

# 2^x on [-1/2, 1/2], exactly 1 at 0. Relative error: degree 5 9.3e-08, degree 11 4.1e-18.
EXP2 = {
    32: (1.0, 0.693147004, 0.240222469, 0.0555071086, 0.00967129134, 0.00132695213),
    64: (
        1.0, 0.69314718055994529, 0.24022650695910108, 0.055504108664821722, 0.009618129107601606,
        0.0013333558146546359, 0.00015403530449033598, 1.5252733633948471e-05, 1.3215438837495369e-06,
        1.0178160047458912e-07, 7.0732327394074729e-09, 4.4388636465256914e-10,
    ),
}  # fmt: skip

# (e^x - 1) / x on [-log(2) / 2, log(2) / 2]. Relative error: degree 5 1.4e-08, degree 11 2.8e-19.
EXPM1 = {
    32: (1.0, 0.5, 0.166665494, 0.0416668579, 0.00836597104, 0.00138978753),
    64: (
        1.0, 0.5, 0.16666666666666677, 0.041666666666666692, 0.0083333333333217765, 0.0013888888888886879,
        0.00019841269885344069, 2.4801587294582312e-05, 2.7557245206394753e-06, 2.7557316066320705e-07,
        2.5108650993276591e-08, 2.0897906947171633e-09,
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

# erf(x) / x - 1 as a polynomial in x^2 on [0, 1]. Error relative to erf: degree 6 1.4e-09, degree 12 1.1e-17.
ERF = {
    32: (0.128379166, -0.37612626, 0.112835787, -0.0268533472, 0.0051871622, -0.00079978531, 7.80690389e-05),
    64: (
        0.12837916709551259, -0.37612638903184098, 0.11283791670971115, -0.026866170648037715, 0.0052239776527911105,
        -0.00085483285435186229, 0.00012055386553172992, -1.4926892088342673e-05, 1.6481262890161715e-06,
        -1.6559670233441581e-07, 1.6033009640397035e-08, -1.6552191872118646e-09, 1.4511006964920064e-10,
    ),
}  # fmt: skip

# log(1 - erf(x)) as a polynomial in x - 3, on x in [1, 4] and [1, 6]. Absolute error of erf: degree 5 1.6e-08,
# degree 17 6.6e-18.
LOG_ERFC = {
    32: (-10.721035, -6.30737782, -0.964790285, -0.0148334112, -0.00247773505, -0.00115035544),
    64: (
        -10.72036304198085, -6.3037536890030994, -0.95739421882078857, -0.0074118918770141621, 0.0013533104282520232,
        -0.00024569161706427915, 4.3082786149128704e-05, -7.1153634272287066e-06, 1.0676089615823764e-06,
        -1.3831457311471644e-07, 1.1160965350023702e-08, 1.9606995577658221e-09, 5.5480454605471036e-10,
        4.3103329990854596e-10, -2.4359278749039524e-10, -1.4723416004102799e-10, -4.6081974839320153e-11,
        -4.8647739424750357e-12,
    ),
}  # fmt: skip

# Pairs whose sum is the constant to twice the precision. log(2)'s first part is short, so that its product with a
# whole exponent is exact.
_LOG2_E = {32: (1.44269502, 1.92596303e-08), 64: (1.4426950408889634, 2.0355273740931033e-17)}
_LOG_2 = {32: (0.693359375, -2.12194440e-4), 64: (0.693147180369123816, 1.90821492927058770e-10)}
_SQRT_HALF_BITS = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}


# Exponentials --------------------------------------------------------------------------------------------------------


def exp2_nonpositive(builder: Builder, x: ir.Value) -> ir.Value:
    """2^x for x <= 0, the softmax's: -inf gives exactly 0, 0 exactly 1, NaN stays NaN.

    Error: 2, 0.8 ulp. Results below the smallest normal number are 0 or wrong by at most that
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


def exp2(builder: Builder, x: ir.Value, low: ir.Value | None = None) -> ir.Value:
    """2^x; overflows to inf, underflows gradually to 0. Error: 2, 1 ulp. ``low``: more digits of x, below its last."""
    r = Reals(builder, x)
    form = r.format
    x = r.at_most(form.bias + 2, r.at_least(-(form.bias + form.mantissa + 2), x))
    magic = form.magic + 2 * form.bias
    shifted = r.add(x, magic)
    fraction = r.sub(x, r.sub(shifted, magic))
    if low is not None:
        fraction = r.add(fraction, low)
    return _scaled(r, r.polynomial(fraction, EXP2[form.width]), shifted)


def exp(builder: Builder, x: ir.Value) -> ir.Value:
    """e^x; overflows to inf, underflows gradually to 0. Error: 1.1, 1.1 ulp."""
    r = Reals(builder, x)
    form = r.format
    x = r.at_most((form.bias + 2) * math.log(2), r.at_least(-(form.bias + form.mantissa + 2) * math.log(2), x))
    shifted, excess = _reduced(r, x, 2 * form.bias)
    return _scaled(r, r.add(excess, 1.0), shifted)


def expm1(builder: Builder, x: ir.Value) -> ir.Value:
    """e^x - 1, exact to the last bits near 0 too. Error: 1.6, 1.9 ulp."""
    r = Reals(builder, x)
    # Half the result, because 2^n overflows before the result does.
    within = r.at_most((r.format.bias + 1.25) * math.log(2), r.at_least(-40.0, x))
    scale, excess = _power_and_excess(r, within, -1)
    result = r.mul(r.fma(excess, scale, r.sub(scale, 0.5)), 2.0)
    return r.select(r.compare("<", r.absolute(x), r.format.epsilon), x, result)


def tanh(builder: Builder, x: ir.Value) -> ir.Value:
    """Hyperbolic tangent. Error: 2.6, 2.6 ulp."""
    r = Reals(builder, x)
    magnitude = r.at_most(20.0, r.absolute(x))
    scale, excess = _power_and_excess(r, r.add(magnitude, magnitude), 0)
    grown = r.fma(excess, scale, r.sub(scale, 1.0))  # e^2|x| - 1
    return r.with_sign_of(x, r.div(grown, r.add(grown, 2.0)))


def sigmoid(builder: Builder, x: ir.Value) -> ir.Value:
    """1 / (1 + e^-x); underflows gradually to 0. Error: 2.3, 2.3 ulp."""
    r = Reals(builder, x)
    decay = exp(builder, r.sub(-0.0, r.absolute(x)))
    return r.div(r.select(r.compare("<", x, 0.0), decay, 1.0), r.add(decay, 1.0))


def erf(builder: Builder, x: ir.Value) -> ir.Value:
    """The error function. Error: 2.4, 2.4 ulp."""
    r = Reals(builder, x)
    width = r.format.width
    magnitude = r.at_most(4.0 if width == 32 else 6.0, r.absolute(x))
    near = r.fma(magnitude, r.polynomial(r.mul(magnitude, magnitude), ERF[width]), magnitude)
    scale, excess = _power_and_excess(r, r.polynomial(r.sub(magnitude, 3.0), LOG_ERFC[width]), 0)
    far = r.fma(excess, r.sub(-0.0, scale), r.sub(1.0, scale))
    return r.with_sign_of(x, r.select(r.compare(">", magnitude, 1.0), far, near))


def _scaled(r: Reals, x: ir.Value, shifted: ir.Value) -> ir.Value:
    """x * 2^n, where the low bits of ``shifted`` hold n + twice the bias: in two steps, as 2^n alone may overflow."""
    both = r.ir.and_(r.bits(shifted), r.whole(0xFFF))
    first = r.ir.lshr(both, r.whole(1))
    second = r.ir.sub(both, first)
    place = r.whole(r.format.mantissa)
    return r.mul(r.mul(x, r.real(r.ir.shl(first, place))), r.real(r.ir.shl(second, place)))


def _power_and_excess(r: Reals, x: ir.Value, more: int) -> tuple[ir.Value, ir.Value]:
    """(2^(n + more), e^r - 1) for x = n log(2) + r, |r| <= log(2) / 2."""
    shifted, excess = _reduced(r, x, r.format.bias + more)
    return r.real(r.ir.shl(r.bits(shifted), r.whole(r.format.mantissa))), excess


def _reduced(r: Reals, x: ir.Value, bias: int) -> tuple[ir.Value, ir.Value]:
    """For x = n log(2) + r: a float whose low bits hold n + ``bias``, and e^r - 1."""
    magic = r.format.magic + bias
    shifted = r.fma(x, math.log2(math.e), magic)
    n = r.sub(shifted, magic)
    high, low = _LOG_2[r.format.width]
    remainder = r.fma(n, -low, r.fma(n, -high, x))
    square = r.mul(remainder, remainder)
    return shifted, r.fma(square, r.polynomial(remainder, EXPM1[r.format.width][1:]), remainder)


# Logarithms ----------------------------------------------------------------------------------------------------------


def log(builder: Builder, x: ir.Value) -> ir.Value:
    """Natural logarithm: -inf at 0, NaN below. Error: 1, 1 ulp."""
    r = Reals(builder, x)
    return _log_edges(r, x, _log_sum(r, _log_parts(r, x), 0.0))


def log1p(builder: Builder, x: ir.Value) -> ir.Value:
    """log(1 + x), exact to the last bits near 0 too: -inf at -1, NaN below. Error: 1, 1 ulp."""
    r = Reals(builder, x)
    total = r.add(x, 1.0)
    back = r.sub(total, 1.0)
    lost = r.add(r.sub(1.0, r.sub(total, back)), r.sub(x, back))
    result = _log_sum(r, _log_parts(r, total), r.div(lost, total))
    return r.select(r.compare("==", x, 0.0), x, _log_edges(r, total, result))


def log2(builder: Builder, x: ir.Value) -> ir.Value:
    """Logarithm to base 2: -inf at 0, NaN below. Error: 1.1, 1.1 ulp."""
    r = Reals(builder, x)
    exponent, f, correction = _log_parts(r, x)
    high, low = _LOG2_E[r.format.width]
    rest = r.fma(f, low, r.mul(correction, high))
    return _log_edges(r, x, r.add(exponent, r.fma(f, high, rest)))


def _log_sum(r: Reals, parts: tuple[ir.Value, ir.Value, ir.Value], more: ir.Value | float) -> ir.Value:
    """The natural logarithm from its parts, plus ``more``, which is small beside them; smallest first."""
    exponent, f, correction = parts
    high, low = _LOG_2[r.format.width]
    small = r.add(correction, r.fma(exponent, low, more))
    return r.fma(exponent, high, r.add(f, small))


def _log_parts(r: Reals, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(e, f, c) with log(x) = e log(2) + f + c: e and f as of ``exponent_and_fraction``, c small beside f."""
    exponent, f = exponent_and_fraction(r, x)
    s = r.div(f, r.add(f, 2.0))
    z = r.mul(s, s)
    half_square = r.mul(r.mul(f, 0.5), f)
    tail = r.mul(z, r.polynomial(z, LOG[r.format.width]))
    return exponent, f, r.sub(r.mul(s, r.add(half_square, tail)), half_square)


def exponent_and_fraction(r: Reals, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(e, f) with x = 2^e (1 + f) for finite x > 0: e whole, f exact in [sqrt(1/2) - 1, sqrt(2) - 1]."""
    form = r.format
    tiny = r.compare("<", x, form.smallest_normal)
    x = r.select(tiny, r.mul(x, 2.0 ** (form.mantissa + 1)), x)
    # Moving sqrt(1/2) to a power of two makes the exponent field step there; unsigned, as x has no sign here.
    below = r.whole((form.bias << form.mantissa) - _SQRT_HALF_BITS[form.width])
    biased = r.ir.lshr(r.ir.add(r.bits(x), below), r.whole(form.mantissa))
    power = r.ir.shl(r.ir.sub(biased, r.whole(form.bias)), r.whole(form.mantissa))
    f = r.sub(r.real(r.ir.sub(r.bits(x), power)), 1.0)
    exponent = r.sub(r.real(r.ir.add(biased, r.whole(form.magic_bits))), form.magic + form.bias)
    return r.sub(exponent, r.select(tiny, form.mantissa + 1, 0.0)), f


def _log_edges(r: Reals, x: ir.Value, result: ir.Value) -> ir.Value:
    """``result`` with the values of a logarithm at 0, at inf, at NaN and below 0."""
    result = r.select(r.compare("<", x, math.inf), result, x)
    result = r.select(r.compare("==", x, 0.0), -math.inf, result)
    return r.select(r.compare("<", x, 0.0), math.nan, result)


def sqrt(builder: Builder, x: ir.Value) -> ir.Value:
    """Square root, correctly rounded: NaN below 0."""
    return builder.intrinsic(f"llvm.sqrt.{builder.suffix(x.type)}", x.type, [x])
