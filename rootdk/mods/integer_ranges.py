"""Range rules of integers: 64-bit, wrapping; one end that wraps around makes every integer possible."""

from functools import reduce

from rootdk.dtypes import Kind
from rootdk.mods.intervals import INT_MAX, INT_MIN, Algebra, Checked, IntRange, Rule, Value, corners

__all__ = ["INTEGERS", "unless"]


def unless(a: Algebra, lost: Value, low: Value, high: Value) -> IntRange:
    """The range, or every integer where it is ``lost``: one end wrapping around means anything is possible."""
    return IntRange(a.select(lost, INT_MIN, low), a.select(lost, INT_MAX, high))


def _checked(a: Algebra, low: Checked, high: Checked) -> IntRange:
    return unless(a, low[1] | high[1], low[0], high[0])


def _add(a: Algebra, x: IntRange, y: IntRange) -> IntRange:
    return _checked(a, a.add(x.low, y.low), a.add(x.high, y.high))


def _subtract(a: Algebra, x: IntRange, y: IntRange) -> IntRange:
    return _checked(a, a.subtract(x.low, y.high), a.subtract(x.high, y.low))


def _multiply(a: Algebra, x: IntRange, y: IntRange) -> IntRange:
    values, overflowed = zip(*corners(a, a.multiply, x, y), strict=True)
    lost = reduce(lambda p, q: p | q, overflowed)
    return unless(a, lost, reduce(a.lower, values), reduce(a.higher, values))


def _negative(a: Algebra, x: IntRange) -> IntRange:
    return unless(a, x.low == INT_MIN, -x.high, -x.low)


def _absolute(a: Algebra, x: IntRange) -> IntRange:
    low = a.higher(a.higher(x.low, -x.high), a.literal(Kind.INT, 0))
    return unless(a, x.low == INT_MIN, low, a.higher(-x.low, x.high))


def _floor_divide(a: Algebra, x: IntRange, y: IntRange) -> IntRange:
    # Divide by positive numbers only: x // y == -x // -y. Each end is then one division, by the divisor that is
    # nearest to or farthest from zero.
    flip = y.high < 0
    lost = (y.low <= 0) & (y.high >= 0) | flip & ((x.low == INT_MIN) | (y.low == INT_MIN))
    low, high = a.select(flip, -x.high, x.low), a.select(flip, -x.low, x.high)
    least = a.select(lost, 1, a.select(flip, -y.high, y.low))
    most = a.select(lost, 1, a.select(flip, -y.low, y.high))
    return unless(
        a, lost, a.quotient(low, a.select(low >= 0, most, least)), a.quotient(high, a.select(high >= 0, least, most))
    )


def _remainder(a: Algebra, x: IntRange, y: IntRange) -> IntRange:
    zero = a.literal(Kind.INT, 0)
    positive = y.low > 0
    low = a.lower(a.select(positive, 0, y.low + 1), zero)
    high = a.higher(a.select(y.high > 0, y.high - 1, 0), zero)
    high = a.select(positive & (x.low >= 0), a.lower(high, x.high), high)
    divisor = a.select(positive, y.low, 1)
    first, last = a.quotient(x.low, divisor), a.quotient(x.high, divisor)
    exact = positive & (y.low == y.high) & (first == last)
    start = first * divisor
    return IntRange(a.select(exact, x.low - start, low), a.select(exact, x.high - start, high))


def _shift_left(a: Algebra, x: IntRange, y: IntRange) -> IntRange:
    usual = (y.low >= 0) & (y.high <= 62)
    one = a.literal(Kind.INT, 1)
    power = IntRange(one << a.select(usual, y.low, 0), one << a.select(usual, y.high, 0))
    scaled = _multiply(a, x, power)
    return unless(a, ~usual, scaled.low, scaled.high)


def _shift_right(a: Algebra, x: IntRange, y: IntRange) -> IntRange:
    # a count outside 0..63 fills with the sign, as 63 does
    most = a.select((y.low < 0) | (y.high > 63), 63, y.high)
    least = a.select((y.low > 63) | (y.high < 0), 63, a.select(y.low < 0, 0, y.low))
    return IntRange(x.low >> a.select(x.low >= 0, most, least), x.high >> a.select(x.high >= 0, least, most))


def _known_bits(x: IntRange) -> tuple[Value, Value]:
    """Bits that are one in every number of a range, and bits that differ: those below the first where the ends do."""
    varying = x.low ^ x.high
    for distance in (1, 2, 4, 8, 16, 32):
        varying = varying | (varying >> distance)  # of a negative: all ones, as wanted when the signs differ
    return x.low & ~varying, varying


def _signed(a: Algebra, least: Value, most: Value) -> IntRange:
    """The range of bit patterns from ``least`` (unknown bits zero) to ``most`` (one); lost where the sign varies."""
    return unless(a, (least >= 0) & (most < 0), least, most)


def _bit_and(a: Algebra, x: IntRange, y: IntRange) -> IntRange:
    (x_ones, x_varying), (y_ones, y_varying) = _known_bits(x), _known_bits(y)
    found = _signed(a, x_ones & y_ones, (x_ones | x_varying) & (y_ones | y_varying))
    high = a.select(x.low >= 0, a.lower(found.high, x.high), found.high)
    return IntRange(found.low, a.select(y.low >= 0, a.lower(high, y.high), high))


def _bit_or(a: Algebra, x: IntRange, y: IntRange) -> IntRange:
    (x_ones, x_varying), (y_ones, y_varying) = _known_bits(x), _known_bits(y)
    return _signed(a, x_ones | y_ones, x_ones | x_varying | y_ones | y_varying)


def _bit_xor(a: Algebra, x: IntRange, y: IntRange) -> IntRange:
    (x_ones, x_varying), (y_ones, y_varying) = _known_bits(x), _known_bits(y)
    varying = x_varying | y_varying
    least = (x_ones ^ y_ones) & ~varying
    return _signed(a, least, least | varying)


def _bit_not(a: Algebra, x: IntRange) -> IntRange:
    return IntRange(~x.high, ~x.low)


INTEGERS: dict[str, Rule] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "negative": _negative,
    "absolute": _absolute,
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "bit_and": _bit_and,
    "bit_or": _bit_or,
    "bit_xor": _bit_xor,
    "bit_not": _bit_not,
}
