"""The running softmax of one panel: a maximum, a sum and a weighted sum of values per lane, merged block by block.

With m the maximum so far, l the sum of exp(s - m) and O the sum of exp(s - m) v, a block of new scores gives

    m' = max(m, max s)      a = exp(m - m')      l' = a l + sum exp(s - m')      O' = a O + sum exp(s - m') v

(Milakov and Gimelshein 2018; Rabe and Staats 2021). Everything is vertical: lanes are rows, nothing crosses lanes, so a
row never learns what stands beside it. The maximum is always that of scores already seen, hence every exponent is <= 0.
A lane that has seen nothing holds m = -inf; shifting by 0 instead keeps -inf - -inf out of the arithmetic.
"""

from dataclasses import dataclass, replace

from llvmlite import ir

from rootdk.codegen.builder import POINTER, Builder
from rootdk.codegen.vector_math import exp2_nonpositive, log2

__all__ = ["HIDDEN_WEIGHT", "LN_2", "LOG2_E", "Denominator", "LaneStats", "Softmax", "is_hidden_weight"]

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
HIDDEN_WEIGHT = -0.0
"""The weight stored for a hidden pair. It adds nothing, and its sign tells it from a weight that underflowed."""


def is_hidden_weight(b: Builder, weight: ir.Value) -> ir.Value:
    bits = ir.VectorType(b.bits, b.lanes)
    sign = 1 << (8 * b.size - 1)
    return b.ir.icmp_signed("==", b.ir.bitcast(weight, bits), ir.Constant(bits, [sign] * b.lanes))


@dataclass(frozen=True)
class Softmax:
    """The softmax of scores in one unit: natural, or already multiplied by log2 e."""

    b: Builder
    log2_scores: bool | ir.Value
    """Known where the scores' code is emitted, at run time in code that is shared."""

    def exponential(self, difference: ir.Value) -> ir.Value:
        """exp of a difference of scores that is <= 0."""
        # Not folded into one fma with the shift: s = m must give exactly 0, also for scores of 1e30.
        return exp2_nonpositive(self.b, self._times(difference, log2=1.0, natural=LOG2_E))

    def _times(self, value: ir.Value, *, log2: float, natural: float) -> ir.Value:
        """``value`` times what goes with the unit of the scores; times 1, it stays what it is to the bit."""
        b, unit = self.b, self.log2_scores
        if isinstance(unit, bool):
            factor = b.scalar(log2 if unit else natural)
        else:
            factor = b.ir.select(unit, b.scalar(log2), b.scalar(natural))
        return b.ir.fmul(value, factor if value.type == b.real else b.splat(factor))

    def shift(self, maximum: ir.Value) -> ir.Value:
        empty = self.b.ir.fcmp_ordered("==", maximum, self.b.splat(float("-inf")))
        return self.b.ir.select(empty, self.b.splat(0.0), maximum)

    def merged(self, total: "LaneStats", chunk: "LaneStats") -> tuple[ir.Value, ir.Value]:
        """Add a chunk's statistics to the total's; what the total's and the chunk's outputs are to be multiplied by.

        Into a total that has seen nothing this is an exact copy, from a chunk that has seen nothing exactly no change.
        """
        b = self.b
        maximum = b.maximum(total.maximum, chunk.maximum)
        shift = self.shift(maximum)
        old = self.exponential(b.ir.fsub(total.maximum, shift))
        new = self.exponential(b.ir.fsub(chunk.maximum, shift))
        total.store(maximum, b.fma(total.sum, old, b.ir.fmul(chunk.sum, new)))
        return old, new

    def normalised(self, total: "LaneStats", sink: ir.Value) -> tuple["Denominator", ir.Value]:
        """What outputs are to be divided by, and the natural LSE; ``sink`` is one more logit, -inf for none.

        A row that has seen nothing gets 0, and its sink, or -inf, as LSE.
        """
        b = self.b
        shift = self.shift(b.maximum(total.maximum, sink))
        rescale = self.exponential(b.ir.fsub(total.maximum, shift))
        denominator = b.fma(total.sum, rescale, self.exponential(b.ir.fsub(sink, shift)))
        empty = b.ir.fcmp_ordered("==", denominator, b.splat(0.0))
        reciprocal = b.ir.select(empty, b.splat(0.0), b.ir.fdiv(b.splat(1.0), denominator))
        lse = b.fma(log2(b, denominator), b.splat(LN_2), self._times(shift, log2=LN_2, natural=1.0))
        return Denominator(b, rescale, denominator, reciprocal), lse

    def sink(self, sinks: ir.Value, head: ir.Value) -> ir.Value:
        """The head's sink logit in the unit of the scores; -inf, which adds nothing, where ``sinks`` is null."""
        b = self.b
        sink = b.slot(b.scalar(float("-inf")))
        with b.when(b.ir.icmp_unsigned("!=", sinks, ir.Constant(POINTER, None))):
            sink.value = self._times(b.load(b.real, sinks, b.mul(head, b.size)), log2=LOG2_E, natural=1.0)
        return b.splat(sink.value)


@dataclass(frozen=True)
class Denominator:
    """What a row's outputs are divided by; lanes, or scalars for one row."""

    b: Builder
    rescale: ir.Value
    """exp of the row's maximum less the one that a sink may raise it to; 1 without a sink."""
    sum: ir.Value
    reciprocal: ir.Value

    def of_row(self) -> "Denominator":
        """The first lane's, as scalars."""
        first = ir.Constant(ir.IntType(32), 0)
        values = (self.b.ir.extract_element(value, first) for value in (self.rescale, self.sum, self.reciprocal))
        return Denominator(self.b, *values)

    def scaled(self, factor: ir.Value) -> "Denominator":
        """For outputs that are multiplied by ``factor`` too."""
        return replace(self, rescale=self.b.ir.fmul(self.rescale, factor))

    def divide(self, output: ir.Value) -> ir.Value:
        """A quotient as rounded as a division's, so that a row of equal values gives exactly that value.

        The product with the reciprocal can be one unit off; its remainder puts it right. An infinite output, whose
        remainder is NaN, is left as it is.
        """
        b = self.b
        output = b.ir.fmul(output, self.rescale)
        quotient = b.ir.fmul(output, self.reciprocal)
        remainder = b.fma(b.ir.fneg(quotient), self.sum, output)
        corrected = b.fma(remainder, self.reciprocal, quotient)
        return b.ir.select(b.ir.fcmp_ordered("ord", remainder, remainder), corrected, quotient)


class LaneStats:
    """The maximum and sum of one lane vector, in memory."""

    def __init__(self, b: Builder, pointer: ir.Value) -> None:
        self._b, self._pointer = b, pointer
        self.maximum = b.load_lanes(pointer)
        self.sum = b.load_lanes(pointer, b.lanes * b.size)

    def store(self, maximum: ir.Value, total: ir.Value) -> None:
        self._b.store_lanes(maximum, self._pointer)
        self._b.store_lanes(total, self._pointer, self._b.lanes * self._b.size)
