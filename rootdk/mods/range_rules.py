"""The range rule of every operation: leaves, selection, truth values and casts here, arithmetic by kind.

``RANGE`` is the table; ``propagate`` applies it to a graph.
"""

from collections.abc import Collection
from math import inf
from typing import Any

from rootdk.dtypes import Kind
from rootdk.mods import range_tables
from rootdk.mods.expr import OPS, Node
from rootdk.mods.float_ranges import FLOATS, any_float
from rootdk.mods.integer_ranges import INTEGERS, unless
from rootdk.mods.intervals import Algebra, FloatRange, IntRange, Range, Rule, Truth, Value

__all__ = ["RANGE", "propagate"]


def propagate(algebra: Algebra, needed: Collection[int] | None = None) -> dict[int, Range]:
    """The ranges of the algebra's graph by node, in order; of ``needed``, closed under arguments, or of all."""
    found: dict[int, Range] = {}
    for number, node in enumerate(algebra.graph.nodes):
        if needed is None or number in needed:
            found[number] = RANGE[node.op](algebra, node, *(found[arg] for arg in node.args))
    return found


def _literal(a: Algebra, node: Node) -> Range:
    return _point(a, node.kind, a.literal(node.kind, node.attr))  # type: ignore[arg-type]


def _constant(a: Algebra, node: Node) -> Range:
    assert isinstance(node.attr, int)
    return _point(a, node.kind, a.constant(node.attr, node.kind))


def _point(a: Algebra, kind: Kind, value: Value) -> Range:
    if kind is Kind.BOOL:
        return Truth(~value, value)
    if kind is Kind.INT:
        return IntRange(value, value)
    number = value == value
    return FloatRange(a.select(number, value, -inf), a.select(number, value, inf), ~number)


def _gather(a: Algebra, node: Node, *index: IntRange) -> Range:
    assert isinstance(node.attr, int)
    whole_low, whole_high = range_tables.whole(a.graph.arrays[node.attr].dtype)
    stretch = a.stretches.get(node)
    if stretch is None:
        low, high, nan = a.literal(Kind.INT, whole_low), a.literal(Kind.INT, whole_high), a.literal(Kind.BOOL, True)
    else:
        position, dimensions = stretch
        low, high, nan, known = range_tables.look_up(a, a.table(position), dimensions, index)
        low, high, nan = a.select(known, low, whole_low), a.select(known, high, whole_high), ~known | nan
    if node.kind is Kind.INT:
        return IntRange(low, high)
    if node.kind is Kind.BOOL:
        return Truth(low == 0, high == 1)
    low, high = (a.from_bits(range_tables.from_ordered(end)) for end in (low, high))
    return FloatRange(low, high, nan)


def _nan(a: Algebra, x: Range, y: Range) -> Value:
    return x.nan | y.nan if isinstance(x, FloatRange) and isinstance(y, FloatRange) else a.literal(Kind.BOOL, False)


def _equal(a: Algebra, x: Any, y: Any) -> Truth:
    same_point = (x.low == x.high) & (y.low == y.high) & (x.low == y.low)
    return Truth(~same_point | _nan(a, x, y), (x.low <= y.high) & (y.low <= x.high))


def _less(a: Algebra, x: Any, y: Any) -> Truth:
    return Truth((x.high >= y.low) | _nan(a, x, y), x.low < y.high)


def _less_equal(a: Algebra, x: Any, y: Any) -> Truth:
    return Truth((x.high > y.low) | _nan(a, x, y), x.low <= y.high)


def _not(a: Algebra, x: Truth) -> Truth:
    return Truth(x.can_be_true, x.can_be_false)


def _and(a: Algebra, x: Truth, y: Truth) -> Truth:
    return Truth(x.can_be_false | y.can_be_false, x.can_be_true & y.can_be_true)


def _or(a: Algebra, x: Truth, y: Truth) -> Truth:
    return Truth(x.can_be_false & y.can_be_false, x.can_be_true | y.can_be_true)


def _xor(a: Algebra, x: Truth, y: Truth) -> Truth:
    return Truth(
        x.can_be_true & y.can_be_true | x.can_be_false & y.can_be_false,
        x.can_be_true & y.can_be_false | x.can_be_false & y.can_be_true,
    )


def _where(a: Algebra, condition: Truth, x: Range, y: Range) -> Range:
    true, false = condition.can_be_true, condition.can_be_false
    if isinstance(x, Truth) and isinstance(y, Truth):
        return Truth(true & x.can_be_false | false & y.can_be_false, true & x.can_be_true | false & y.can_be_true)
    assert not isinstance(x, Truth) and not isinstance(y, Truth)
    low = a.select(false, a.select(true, a.lower(x.low, y.low), y.low), x.low)
    high = a.select(false, a.select(true, a.higher(x.high, y.high), y.high), x.high)
    if isinstance(x, FloatRange) and isinstance(y, FloatRange):
        return FloatRange(low, high, true & x.nan | false & y.nan)
    return IntRange(low, high)


def _to_float(a: Algebra, x: Range) -> FloatRange:
    if isinstance(x, FloatRange):
        return x
    ints = _to_int(a, x)
    return FloatRange(a.to_float(ints.low), a.to_float(ints.high), a.literal(Kind.BOOL, False))


def _to_int(a: Algebra, x: Range) -> IntRange:
    if isinstance(x, IntRange):
        return x
    if isinstance(x, Truth):
        one = a.literal(Kind.INT, 1)
        return IntRange(a.select(x.can_be_false, 0, one), a.select(x.can_be_true, one, 0))
    lost = x.nan | (x.low < -(2.0**62)) | (x.high > 2.0**62)
    return unless(a, lost, a.to_int(a.select(lost, 0.0, x.low)), a.to_int(a.select(lost, 0.0, x.high)))


def _to_bool(a: Algebra, x: Range) -> Truth:
    if isinstance(x, Truth):
        return x
    zero = a.literal(Kind.INT if isinstance(x, IntRange) else Kind.FLOAT, 0)
    always = (x.low == zero) & (x.high == zero)
    return Truth((x.low <= zero) & (x.high >= zero), ~always | _nan(a, x, x))


def _minimum(a: Algebra, x: Any, y: Any) -> Range:
    low, high = a.lower(x.low, y.low), a.lower(x.high, y.high)
    return IntRange(low, high) if isinstance(x, IntRange) else FloatRange(low, high, x.nan | y.nan)


def _maximum(a: Algebra, x: Any, y: Any) -> Range:
    low, high = a.higher(x.low, y.low), a.higher(x.high, y.high)
    return IntRange(low, high) if isinstance(x, IntRange) else FloatRange(low, high, x.nan | y.nan)


_LEAVES: dict[str, Rule] = {
    "score": lambda a, node: any_float(a),
    "index": lambda a, node: a.indices[node.attr],
    "literal": _literal,
    "constant": _constant,
    "gather": _gather,
}

_EITHER: dict[str, Rule] = {
    "minimum": _minimum,
    "maximum": _maximum,
    "equal": _equal,
    "not_equal": lambda a, x, y: _not(a, _equal(a, x, y)),
    "less": _less,
    "less_equal": _less_equal,
    "logical_and": _and,
    "logical_or": _or,
    "logical_xor": _xor,
    "logical_not": _not,
    "is_nan": lambda a, x: Truth(a.literal(Kind.BOOL, True), x.nan),
    "where": _where,
    "to_float": _to_float,
    "to_int": _to_int,
    "to_bool": _to_bool,
}


def _inner(op: str) -> Rule:
    """The rule of an operation on values, which needs no more of its node than the arguments."""
    if op in _EITHER:
        rule = _EITHER[op]
        return lambda a, node, *args: rule(a, *args)
    return lambda a, node, *args: (INTEGERS if isinstance(args[0], IntRange) else FLOATS)[op](a, *args)


RANGE: dict[str, Rule] = {op: _LEAVES[op] if op in _LEAVES else _inner(op) for op in OPS}
"""Operation name -> rule(algebra, node, *ranges of the arguments) -> range of the result."""
