"""Sine and cosine: quarter turns are taken off in double, for floats too, then a polynomial on an eighth of a turn."""

import math

from llvmlite import ir

from rootdk.codegen.builder import BYTE, I1, I32, I64, Builder
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

# Above, quarter turns are too many for that. The digits of 2 / pi that a double can need, as a whole number.
_LARGE = 2.0**20
_DIGITS = 1168
_TWO_OVER_PI = int(
    "A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E006492EEA09D1921CFE1D"
    "EB1CB129A73EE88235F52EBB4484E99C7026B45F7E413991D639835339F49C845F8BBDF9283B1FF897FFDE05980FEF2F118B"
    "5A0A6D1F6D367ECF27CB09B74F463F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D085603",
    16,
)


def sin(builder: Builder, x: ir.Value) -> ir.Value:
    """Sine; NaN at infinities. Error: 1.5, 2.3 ulp."""
    r = Reals(builder, x)
    return r.select(r.compare("==", x, 0.0), x, _wave(builder, x, 0))  # keeps the sign of zero


def cos(builder: Builder, x: ir.Value) -> ir.Value:
    """Cosine; NaN at infinities. Error: 1.5, 2.3 ulp."""
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
    remainder, turns = _replaced(d, wide, remainder, d.bits(shifted))
    if r.format is FORMAT64:
        return remainder, turns
    return r.ir.fptrunc(remainder, r.type), r.ir.trunc(turns, r.integers)


# Large arguments ------------------------------------------------------------------------------------------------------


def _replaced(d: Reals, x: ir.Value, remainder: ir.Value, turns: ir.Value) -> tuple[ir.Value, ir.Value]:
    """``remainder`` and ``turns``, with those of large arguments from all the digits of 2 / pi that they need."""
    b = d.builder
    magnitude = d.absolute(x)
    large = d.ir.and_(d.compare(">", magnitude, _LARGE), d.compare("<", magnitude, math.inf))
    result, count = b.slot(remainder), b.slot(turns)
    several = isinstance(x.type, ir.VectorType)
    with b.when(b.any(large) if several else large, likely=False):
        reduce = _reducer(b)
        for lane in range(x.type.count if several else 1):
            place = ir.Constant(I32, lane)
            pair = b.ir.call(reduce, [b.ir.extract_element(x, place) if several else x])
            for slot, part in ((result, 0), (count, 1)):
                value = b.ir.extract_value(pair, part)
                value = b.ir.insert_element(slot.value, value, place) if several else value
                slot.value = value
        result.value = b.ir.select(large, result.value, remainder)
        count.value = b.ir.select(large, count.value, turns)
    return result.value, count.value


def _reducer(builder: Builder) -> ir.Function:
    """The module's function from a double above ``_LARGE`` to (remainder, quarter turns), after Payne and Hanek.

    x = m 2^s with a whole m, so of the digits of 2 / pi only some matter: those before are whole turns of x, those
    after are too small. 192 bits of them leave 75 right bits of the remainder even for the worst double.
    """
    module = builder.function.module
    found = module.globals.get("reduce_turns")
    if found is not None:
        return found
    double, wide, window = FORMAT64.real, ir.IntType(192), ir.IntType(256)
    b = Builder.define(module, "reduce_turns", [double], builder, returns=ir.LiteralStructType([double, I64]))
    i, (x,) = b.ir, b.function.args
    bits = i.bitcast(x, I64)
    exponent = i.and_(i.lshr(bits, b.index(52)), b.index(0x7FF))
    mantissa = i.or_(i.and_(bits, b.index((1 << 52) - 1)), b.index(1 << 52))
    start = i.sub(b.index(_DIGITS - 190 + 1075), exponent)
    digits = b.load(window, _two_over_pi(module), i.lshr(start, b.index(3)))
    digits = i.lshr(digits, i.zext(i.and_(start, b.index(7)), window))
    # modulo 4 quarter turns: two bits before the point, 190 after
    product = i.mul(i.zext(mantissa, wide), i.trunc(digits, wide))
    fraction = i.shl(product, ir.Constant(wide, 2))
    above = i.icmp_signed("<", fraction, ir.Constant(wide, 0))
    turns = i.trunc(i.lshr(product, ir.Constant(wide, 190)), I64)
    turns = i.add(turns, i.zext(above, I64))
    magnitude = i.select(above, i.neg(fraction), fraction)
    zeros = i.ctlz(magnitude, ir.Constant(I1, 0))
    top = i.trunc(i.lshr(i.shl(magnitude, zeros), ir.Constant(wide, 129)), I64)
    scale = i.bitcast(i.shl(i.sub(b.index(1023 - 63), i.trunc(zeros, I64)), b.index(52)), double)
    remainder = i.fmul(i.fmul(i.sitofp(top, double), ir.Constant(double, math.pi / 2)), scale)
    negative = i.icmp_signed("<", bits, b.index(0))
    remainder = i.select(i.xor(above, negative), i.fneg(remainder), remainder)
    turns = i.select(negative, i.neg(turns), turns)
    pair = i.insert_value(ir.Constant(ir.LiteralStructType([double, I64]), ir.Undefined), remainder, 0)
    i.ret(i.insert_value(pair, turns, 1))
    return b.function


def _two_over_pi(module: ir.Module) -> ir.GlobalVariable:
    """The digits, little-endian, with room for a window that starts at the first one."""
    data = bytearray(_TWO_OVER_PI.to_bytes(_DIGITS // 8 + 32, "little"))
    table = ir.GlobalVariable(module, ir.ArrayType(BYTE, len(data)), "two_over_pi")
    table.linkage, table.global_constant = "internal", True
    table.initializer = ir.Constant(table.value_type, data)
    return table
