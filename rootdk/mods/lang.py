"""The functions that a mod may call, on values of a pair: the operation table, and what is composed of it.

They take what the user's function gets, captured arrays and plain numbers alike. ``spellings.py`` gives each its names
in NumPy and torch.
"""

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from rootdk.dtypes import Kind
from rootdk.errors import ArgumentError
from rootdk.mods.foreign import is_array
from rootdk.mods.promotion import kind_of
from rootdk.mods.symbols import apply, first_symbol

__all__ = [
    "Align",
    "Sizes",
    "absolute",
    "array",
    "check_align",
    "clip",
    "cos",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "is_array",
    "is_nan",
    "log",
    "log1p",
    "log2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "position",
    "power",
    "sigmoid",
    "sin",
    "sizes",
    "sqrt",
    "tanh",
    "where",
]

Align = str | int | None
"""Where query 0 stands among the keys: "start" at 0, "end" at kv_len - q_len, an integer at that offset."""


class Sizes(NamedTuple):
    """The sizes of the call that is being traced."""

    batch: int
    heads: int
    q_len: int
    kv_len: int


def sizes(index: Any) -> Sizes:
    """The sizes of the call that the index symbol belongs to."""
    tracer = index.tracer
    return Sizes(math.prod(tracer.batch_shape), tracer.heads, tracer.q_len, tracer.kv_len)


def array(index: Any, values: Any, name: str) -> Any:
    """``values``, an array that the function makes itself, as one that symbols can index; ``name`` is for messages."""
    return index.tracer.array(values, name)


def check_align(align: Any) -> Align:
    """``align`` itself, if it is None, "start", "end" or an integer. Raises ArgumentError."""
    if align is None or (isinstance(align, str) and align in ("start", "end")):
        return align
    if isinstance(align, bool) or not hasattr(align, "__index__"):
        raise ArgumentError(f'align: expected "start", "end", an integer offset or None, got {align!r}')
    return operator.index(align)


def position(q_idx: Any, align: Align = None) -> Any:
    """Where query ``q_idx`` stands among the keys: q_idx + offset.

    Raises ArgumentError where ``align`` is None and q_len differs from kv_len, as the offset is then anyone's guess.
    """
    _, _, q_len, kv_len = sizes(q_idx)
    if align is None and q_len != kv_len:
        raise ArgumentError(
            f"align: q_len = {q_len} differs from kv_len = {kv_len}, so say where the queries stand among the keys: "
            '"start" (query 0 at key 0), "end" (the last query at the last key, as in decoding) or an integer offset'
        )
    if isinstance(align, int):
        return q_idx + align
    return q_idx + (kv_len - q_len if align == "end" else 0)


def _unary(op: str, meaning: str) -> Callable[[Any], Any]:
    def function(input: Any) -> Any:
        return apply(op, input)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = meaning
    return function


def _binary(op: str, meaning: str) -> Callable[[Any, Any], Any]:
    def function(input: Any, other: Any) -> Any:
        return apply(op, input, other)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = meaning
    return function


exp = _unary("exp", "e to the power x.")
exp2 = _unary("exp2", "2 to the power x.")
expm1 = _unary("expm1", "exp(x) - 1, exact near 0.")
log = _unary("log", "Natural logarithm.")
log2 = _unary("log2", "Logarithm to base 2.")
log1p = _unary("log1p", "log(1 + x), exact near 0.")
sqrt = _unary("sqrt", "Square root; NaN below 0.")
tanh = _unary("tanh", "Hyperbolic tangent.")
sigmoid = _unary("sigmoid", "1 / (1 + exp(-x)).")
sin = _unary("sin", "Sine of x in radians.")
cos = _unary("cos", "Cosine of x in radians.")
erf = _unary("erf", "Error function.")
absolute = _unary("absolute", "Distance from 0.")
negative = _unary("negative", "-x.")
is_nan = _unary("is_nan", "Whether x is NaN.")
logical_not = _unary("logical_not", "True where x is 0 or False.")
bit_not = _unary("bit_not", "~x: not of booleans, complement of integers.")

add = _binary("add", "x + y.")
subtract = _binary("subtract", "x - y.")
multiply = _binary("multiply", "x * y.")
divide = _binary("divide", "x / y, always a float.")
floor_divide = _binary("floor_divide", "x // y, rounded towards minus infinity.")
remainder = _binary("remainder", "x - x // y * y: it has the sign of y.")
minimum = _binary("minimum", "The lesser of two; NaN if either is.")
maximum = _binary("maximum", "The greater of two; NaN if either is.")
equal = _binary("equal", "x == y.")
not_equal = _binary("not_equal", "x != y.")
less = _binary("less", "x < y.")
less_equal = _binary("less_equal", "x <= y.")
logical_and = _binary("logical_and", "Whether both are true.")
logical_or = _binary("logical_or", "Whether at least one is true.")
logical_xor = _binary("logical_xor", "Whether exactly one is true.")
bit_and = _binary("bit_and", "x & y, of booleans or of integers.")
bit_or = _binary("bit_or", "x | y, of booleans or of integers.")
bit_xor = _binary("bit_xor", "x ^ y, of booleans or of integers.")
shift_left = _binary("shift_left", "x << y.")
shift_right = _binary("shift_right", "x >> y, filling with the sign.")


def greater(input: Any, other: Any) -> Any:
    """x > y."""
    return apply("less", other, input)


def greater_equal(input: Any, other: Any) -> Any:
    """x >= y."""
    return apply("less_equal", other, input)


def where(condition: Any, input: Any, other: Any) -> Any:
    """``input`` where ``condition`` is True, else ``other``, which may then hold anything, NaN included."""
    return apply("where", condition, input, other)


def clip(input: Any, min: Any = None, max: Any = None) -> Any:
    """``input`` moved into [min, max]; None leaves a side open."""
    if min is not None:
        input = maximum(input, min)
    return input if max is None else minimum(input, max)


def _whole(op: str, meaning: str) -> Callable[[Any], Any]:
    def function(input: Any) -> Any:
        # integers are whole already, and stay integers
        return apply(op, input) if kind_of(input) is Kind.FLOAT else input

    function.__name__ = function.__qualname__ = op
    function.__doc__ = meaning
    return function


floor = _whole("floor", "The greatest whole number that is not greater.")
ceil = _whole("ceil", "The least whole number that is not less.")
trunc = _whole("trunc", "The whole number next to x, towards 0.")
nearest = _whole("round", "The nearest whole number; halves go to the even one.")

UNROLLED_POWER = 8


def power(input: Any, exponent: Any) -> Any:
    """``input`` to the power ``exponent``: exact between integers, by multiplications for a small whole number."""
    if isinstance(exponent, int) and not isinstance(exponent, bool) and 0 <= exponent <= UNROLLED_POWER:
        return _repeated(input, exponent)
    whole = kind_of(input) is not Kind.FLOAT and kind_of(exponent) is not Kind.FLOAT
    if whole and not (isinstance(exponent, int) and exponent < 0):
        return _integer_power(input, exponent)
    return apply("power", input, exponent)


def _repeated(base: Any, exponent: int) -> Any:
    if exponent == 0:
        return where(True, 1, base)
    if exponent == 1:
        return base
    half = _repeated(base, exponent // 2)
    return half * half * base if exponent % 2 else half * half


def _integer_power(base: Any, exponent: Any) -> Any:
    """Square and multiply, over the six bits of an exponent below 64."""
    symbol = first_symbol((base, exponent))
    assert symbol is not None
    power, result = symbol.tracer.symbol(base, Kind.INT), symbol.tracer.symbol(1, Kind.INT)
    for bit in range(6):
        result = where((exponent >> bit) & 1, result * power, result)
        power = power * power
    return result
