"""Range rules of floats: infinite ends, NaN, denormals that a kernel may flush, functions that it approximates."""

from dataclasses import dataclass
from functools import reduce
from math import inf

from rootdk.dtypes import Kind
from rootdk.mods.intervals import Algebra, FloatRange, Rule, Value, corners

__all__ = ["FLOATS", "any_float"]

SLACK = 2.0**-16
"""How far an approximated function may be off: far more than the few units in the last place that any lowering is."""


def any_float(a: Algebra) -> FloatRange:
    return FloatRange(a.literal(Kind.FLOAT, -inf), a.literal(Kind.FLOAT, inf), a.literal(Kind.BOOL, True))


def _float(a: Algebra, low: Value, high: Value, nan: Value) -> FloatRange:
    """A float range whose ends were computed: inf - inf says nothing, and a kernel may flush a denormal to zero."""
    low, high = a.select(low == low, low, -inf), a.select(high == high, high, inf)
    tiny = a.smallest_normal
    return FloatRange(
        a.select((low > 0.0) & (low < tiny), 0.0, low), a.select((high < 0.0) & (high > -tiny), 0.0, high), nan
    )


def _has_inf(x: FloatRange) -> Value:
    return (x.low == -inf) | (x.high == inf)


def _has_zero(x: FloatRange) -> Value:
    return (x.low <= 0.0) & (x.high >= 0.0)


def _near_zero(a: Algebra, x: FloatRange) -> Value:
    return (x.low < a.smallest_normal) & (x.high > -a.smallest_normal)


def _magnitude(a: Algebra, x: FloatRange) -> Value:
    return a.higher(-x.low, x.high)


def _add(a: Algebra, x: FloatRange, y: FloatRange) -> FloatRange:
    opposed = (x.low == -inf) & (y.high == inf) | (x.high == inf) & (y.low == -inf)
    return _float(a, x.low + y.low, x.high + y.high, x.nan | y.nan | opposed)


def _subtract(a: Algebra, x: FloatRange, y: FloatRange) -> FloatRange:
    return _add(a, x, _negative(a, y))


def _hull(a: Algebra, corners: list[Value], nan: Value) -> FloatRange:
    # 0 * inf and inf / inf at a corner: the products beside it are 0 or reach another corner
    corners = [a.select(corner == corner, corner, 0.0) for corner in corners]
    return _float(a, reduce(a.lower, corners), reduce(a.higher, corners), nan)


def _multiply(a: Algebra, x: FloatRange, y: FloatRange) -> FloatRange:
    undefined = _has_zero(x) & _has_inf(y) | _has_inf(x) & _has_zero(y)
    return _hull(a, corners(a, lambda p, q: p * q, x, y), x.nan | y.nan | undefined)


def _divide(a: Algebra, x: FloatRange, y: FloatRange) -> FloatRange:
    lost = _near_zero(a, y)
    found = _hull(a, corners(a, lambda p, q: p / q, x, y), x.nan | y.nan | lost | _has_inf(x) & _has_inf(y))
    return FloatRange(a.select(lost, -inf, found.low), a.select(lost, inf, found.high), found.nan)


def _floor_divide(a: Algebra, x: FloatRange, y: FloatRange) -> FloatRange:
    # not floor(x / y) but the quotient of an exact remainder, or so: one off at whole quotients
    ratio = _divide(a, x, y)
    slack = _magnitude(a, ratio) * 2.0**-20 + 1.0
    return _float(a, a.floor(ratio.low) - slack, a.floor(ratio.high) + slack, ratio.nan | _has_inf(x))


def _remainder(a: Algebra, x: FloatRange, y: FloatRange) -> FloatRange:
    # x - floor(x / y) * y may be off by the rounding of x, and far off where an intermediate result overflows
    ratio = _divide(a, x, y)
    slack = a.select(_has_inf(ratio), inf, (_magnitude(a, x) + _magnitude(a, y)) * 4.0 * 2.0**-22)
    zero = a.literal(Kind.FLOAT, 0.0)
    nan = ratio.nan | _has_inf(ratio) | _has_inf(x) | _has_inf(y)
    return _float(a, a.lower(y.low, zero) - slack, a.higher(y.high, zero) + slack, nan)


def _negative(a: Algebra, x: FloatRange) -> FloatRange:
    return FloatRange(-x.high, -x.low, x.nan)


def _absolute(a: Algebra, x: FloatRange) -> FloatRange:
    low = a.higher(a.higher(x.low, -x.high), a.literal(Kind.FLOAT, 0.0))
    return FloatRange(low, _magnitude(a, x), x.nan)


def _power(a: Algebra, x: FloatRange, y: FloatRange) -> FloatRange:
    low = a.select(x.low > 0.0, -SLACK, a.literal(Kind.FLOAT, -inf))  # the power of -0 may be -inf
    return FloatRange(low, a.literal(Kind.FLOAT, inf), a.literal(Kind.BOOL, True))


def _sqrt(a: Algebra, x: FloatRange) -> FloatRange:
    zero = a.literal(Kind.FLOAT, 0.0)
    return FloatRange(a.sqrt(a.higher(x.low, zero)), a.sqrt(a.higher(x.high, zero)), x.nan | (x.low < 0.0))


def _wave(a: Algebra, x: FloatRange) -> FloatRange:
    return FloatRange(a.literal(Kind.FLOAT, -1.0 - SLACK), a.literal(Kind.FLOAT, 1.0 + SLACK), x.nan | _has_inf(x))


@dataclass(frozen=True, slots=True)
class _Rising:
    """A function that only rises: ``bottom``, then ``middle`` at ``split``, then ``top``; NaN below ``domain``."""

    split: float
    bottom: float
    middle: float
    top: float
    domain: float = -inf

    def __call__(self, a: Algebra, x: FloatRange) -> FloatRange:
        return FloatRange(
            a.select(x.low >= self.split, self.middle - SLACK, a.literal(Kind.FLOAT, self.bottom - SLACK)),
            a.select(x.high <= self.split, self.middle + SLACK, a.literal(Kind.FLOAT, self.top + SLACK)),
            x.nan | (x.low < self.domain),
        )


def _floor(a: Algebra, x: FloatRange) -> FloatRange:
    return FloatRange(a.floor(x.low), a.floor(x.high), x.nan)


def _ceil(a: Algebra, x: FloatRange) -> FloatRange:
    return FloatRange(-a.floor(-x.low), -a.floor(-x.high), x.nan)


def _trunc(a: Algebra, x: FloatRange) -> FloatRange:
    down, up = _floor(a, x), _ceil(a, x)
    return FloatRange(a.select(x.low < 0.0, up.low, down.low), a.select(x.high < 0.0, up.high, down.high), x.nan)


def _round(a: Algebra, x: FloatRange) -> FloatRange:
    return FloatRange(-a.floor(0.5 - x.low), a.floor(x.high + 0.5), x.nan)


FLOATS: dict[str, Rule] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "negative": _negative,
    "absolute": _absolute,
    "divide": _divide,
    "power": _power,
    "exp": _Rising(0.0, 0.0, 1.0, inf),
    "exp2": _Rising(0.0, 0.0, 1.0, inf),
    "expm1": _Rising(0.0, -1.0, 0.0, inf),
    "log": _Rising(1.0, -inf, 0.0, inf, domain=0.0),
    "log2": _Rising(1.0, -inf, 0.0, inf, domain=0.0),
    "log1p": _Rising(0.0, -inf, 0.0, inf, domain=-1.0),
    "tanh": _Rising(0.0, -1.0, 0.0, 1.0),
    "sigmoid": _Rising(0.0, 0.0, 0.5, 1.0),
    "erf": _Rising(0.0, -1.0, 0.0, 1.0),
    "sqrt": _sqrt,
    "sin": _wave,
    "cos": _wave,
    "floor": _floor,
    "ceil": _ceil,
    "round": _round,
    "trunc": _trunc,
}
