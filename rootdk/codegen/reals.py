"""Bit-level arithmetic on IEEE floats, scalar or vector: what the functions of vector_math are made of.

Everything is chosen by the type of the value at hand, not by the kernel's accumulator: the same source computes float
and double, one number or a vector, and a function on floats may do a part of its work in double.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.builder import I32, I64, Builder

__all__ = ["FORMAT32", "FORMAT64", "Format", "Reals", "shaped"]


@dataclass(frozen=True, slots=True)
class Format:
    """The layout of an IEEE float."""

    width: int
    """Bits in all; also the key of coefficient tables."""
    mantissa: int
    """Bits of the stored mantissa, and the place of the exponent's lowest bit."""
    bias: int
    real: ir.Type
    integer: ir.IntType

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def epsilon(self) -> float:
        """Half the distance from 1 to the next number."""
        return 2.0 ** -(self.mantissa + 1)

    @property
    def magic(self) -> float:
        """1.5 * 2^mantissa: added to a small number it rounds it (half to even) to the sum's low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def magic_bits(self) -> int:
        return (self.bias + self.mantissa << self.mantissa) | (1 << self.mantissa - 1)


FORMAT32 = Format(32, 23, 127, ir.FloatType(), I32)
FORMAT64 = Format(64, 52, 1023, ir.DoubleType(), I64)


def shaped(element: ir.Type, like: ir.Type) -> ir.Type:
    """``element``, or a vector of it where ``like`` is a vector."""
    return ir.VectorType(element, like.count) if isinstance(like, ir.VectorType) else element


class Reals:
    """Emits arithmetic on values of one type, that of ``like``: float or double, scalar or vector."""

    def __init__(self, builder: Builder, like: ir.Value) -> None:
        self.builder = builder
        self.ir = builder.ir
        self.type = like.type
        element = like.type.element if isinstance(like.type, ir.VectorType) else like.type
        self.format = FORMAT64 if element == FORMAT64.real else FORMAT32
        self.integers = shaped(self.format.integer, self.type)

    # Constants and bits ------------------------------------------------------------------------------------------

    def constant(self, value: float, kind: ir.Type | None = None) -> ir.Constant:
        """``value`` in every lane, of this type or another of the same shape."""
        kind = self.type if kind is None else kind
        return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)

    def whole(self, value: int) -> ir.Constant:
        """An integer as wide as the float."""
        return self.constant(value, self.integers)

    def bits(self, x: ir.Value) -> ir.Value:
        return self.ir.bitcast(x, self.integers)

    def real(self, bits: ir.Value) -> ir.Value:
        return self.ir.bitcast(bits, self.type)

    # Arithmetic: operands are values or Python numbers -------------------------------------------------------------

    def value(self, x: ir.Value | float) -> ir.Value:
        return self.constant(float(x)) if isinstance(x, int | float) else x

    def add(self, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
        return self.ir.fadd(self.value(a), self.value(b))

    def sub(self, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
        return self.ir.fsub(self.value(a), self.value(b))

    def mul(self, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
        return self.ir.fmul(self.value(a), self.value(b))

    def div(self, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
        return self.ir.fdiv(self.value(a), self.value(b))

    def fma(self, a: ir.Value | float, b: ir.Value | float, c: ir.Value | float) -> ir.Value:
        return self.builder.fma(self.value(a), self.value(b), self.value(c))

    def polynomial(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """Horner's sum of coefficients[i] x^i."""
        total = self.constant(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = self.fma(total, x, coefficient)
        return total

    # Comparison and choice -----------------------------------------------------------------------------------------

    def compare(self, operator: str, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
        """An i1 per lane, False where either is NaN."""
        return self.ir.fcmp_ordered(operator, self.value(a), self.value(b))

    def select(self, condition: ir.Value, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
        return self.ir.select(condition, self.value(a), self.value(b))

    def at_least(self, low: float, x: ir.Value) -> ir.Value:
        """The larger, and NaN where ``x`` is NaN."""
        return self.builder.maximum(self.value(low), x)

    def at_most(self, high: float, x: ir.Value) -> ir.Value:
        """The smaller, and NaN where ``x`` is NaN."""
        return self.select(self.compare("<", high, x), high, x)

    # Signs -----------------------------------------------------------------------------------------------------------

    def absolute(self, x: ir.Value) -> ir.Value:
        return self.real(self.ir.and_(self.bits(x), self.whole((1 << self.format.width - 1) - 1)))

    def with_sign_of(self, sign: ir.Value, x: ir.Value) -> ir.Value:
        """``x``, which is not negative, with the sign of ``sign``."""
        negative = self.ir.and_(self.bits(sign), self.whole(1 << self.format.width - 1))
        return self.real(self.ir.or_(self.bits(x), negative))

    # Twice the precision ---------------------------------------------------------------------------------------------

    def product(self, a: ir.Value | float, b: ir.Value | float) -> tuple[ir.Value, ir.Value]:
        """(p, e) with p = a * b rounded, and p + e = a * b to twice the precision, less a bit where nothing fuses."""
        a, b = self.value(a), self.value(b)
        rounded = self.mul(a, b)
        if self.builder.target.fma:
            return rounded, self.fma(a, b, self.ir.fneg(rounded))
        (a_high, a_low), (b_high, b_low) = self._halves(a), self._halves(b)
        cross = self.add(self.sub(self.mul(a_high, b_high), rounded), self.mul(a_high, b_low))
        return rounded, self.add(self.add(cross, self.mul(a_low, b_high)), self.mul(a_low, b_low))

    def _halves(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The upper and the lower half of the digits."""
        low_bits = (1 << (self.format.mantissa + 2) // 2) - 1
        high = self.real(self.ir.and_(self.bits(x), self.whole((1 << self.format.width) - 1 - low_bits)))
        return high, self.sub(x, high)

    def exact_sum(self, large: ir.Value | float, small: ir.Value | float) -> tuple[ir.Value, ir.Value]:
        """(s, e) with s = large + small rounded, and s + e exact; ``small`` is not the larger."""
        total = self.add(large, small)
        return total, self.sub(small, self.sub(total, large))
