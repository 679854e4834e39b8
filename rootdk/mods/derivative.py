"""The derivative of every operation, and of a score function: backward (cotangents) and forward (tangents).

Derivatives are more nodes of the same graph, so kernels compute them as they compute the function, and may be
differentiated again. Where a function has no derivative the answer is torch's: that of ``abs`` at 0 is 0, minimum and
maximum of equal numbers share alike, rounding and whole division have none. Integers and truth values stop it.

One thing is better than torch's: what a ``where`` did not take never reaches a gradient, not even as 0 * inf. The
condition travels with the cotangent, as its gate, and selects after the products of the branch are made.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from rootdk.dtypes import Kind
from rootdk.mods.expr import OPS, GraphBuilder

__all__ = ["RULES", "Partial", "differentiate", "push_forward"]


@dataclass(frozen=True, slots=True)
class Partial:
    """The partial derivative of an operation by one argument: what to do with a cotangent or tangent."""

    op: str = "keep"
    """keep, negative, multiply or divide."""
    by: int | None = None
    """The factor or divisor, a node."""
    gate: int | None = None
    """A truth value, a node: where it is False the derivative is zero whatever the rest says."""


KEEP, NEGATE = Partial(), Partial("negative")

Rule = Callable[["_Nodes", tuple[int, ...], int], tuple[Partial | None, ...]]
"""rule(nodes, arguments, result) -> the partial by each argument; None is zero."""


class _Nodes:
    """Writes derivative nodes."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.one = self.real(1.0)

    def real(self, value: float) -> int:
        return self.builder.add("literal", attr=value)

    def __call__(self, op: str, *args: int) -> int:
        return self.builder.add(op, *args)

    def apply(self, partial: Partial, value: int) -> int:
        """``value`` through a partial, its gate left open."""
        if partial.by is None:
            return value if partial.op == "keep" else self(partial.op, value)
        if partial.op == "multiply" and value == self.one:
            return partial.by
        return self(partial.op, value, partial.by)

    def gated(self, gate: int | None, value: int) -> int:
        return value if gate is None else self("where", gate, value, self.real(0.0))


def _times(factor: Callable[[_Nodes, int, int], int]) -> Rule:
    """The rule of a function of one argument, by factor(nodes, argument, result)."""
    return lambda n, args, y: (Partial("multiply", factor(n, args[0], y)),)


def _over(divisor: Callable[[_Nodes, int, int], int]) -> Rule:
    return lambda n, args, y: (Partial("divide", divisor(n, args[0], y)),)


def _none(n: _Nodes, args: tuple[int, ...], y: int) -> tuple[None, ...]:
    return (None,) * len(args)


def _divide(n: _Nodes, args: tuple[int, ...], y: int) -> tuple[Partial, ...]:
    return Partial("divide", args[1]), Partial("multiply", n("negative", n("divide", y, args[1])))


def _remainder(n: _Nodes, args: tuple[int, ...], y: int) -> tuple[Partial, ...]:
    return KEEP, Partial("multiply", n("negative", n("floor_divide", *args)))


def _extreme(n: _Nodes, loses: tuple[int, int]) -> tuple[Partial, ...]:
    """The partials of minimum and maximum; ``loses``: where the first and the second argument has no share."""
    equal = n("equal", *n.builder.nodes[loses[0]].args)
    share = n("where", equal, n.real(0.5), n.one)
    return tuple(Partial("multiply", share, n("logical_not", lost)) for lost in loses)


def _minimum(n: _Nodes, args: tuple[int, ...], y: int) -> tuple[Partial, ...]:
    return _extreme(n, (n("less", args[1], args[0]), n("less", args[0], args[1])))


def _maximum(n: _Nodes, args: tuple[int, ...], y: int) -> tuple[Partial, ...]:
    return _extreme(n, (n("less", args[0], args[1]), n("less", args[1], args[0])))


def _absolute(n: _Nodes, args: tuple[int, ...], y: int) -> tuple[Partial, ...]:
    zero = n.real(0.0)
    sign = n("where", n("less", args[0], zero), n.real(-1.0), n.one)
    return (Partial("multiply", sign, n("not_equal", args[0], zero)),)


def _power(n: _Nodes, args: tuple[int, ...], y: int) -> tuple[Partial, ...]:
    base, exponent = args
    zero = n.real(0.0)
    by_base = n("multiply", exponent, n("power", base, n("subtract", exponent, n.one)))
    flat = n("logical_and", n("equal", base, zero), n("less_equal", zero, exponent))
    return (
        Partial("multiply", by_base, n("not_equal", exponent, zero)),
        Partial("multiply", n("multiply", y, n("log", base)), n("logical_not", flat)),
    )


def _where(n: _Nodes, args: tuple[int, ...], y: int) -> tuple[Partial | None, ...]:
    return None, Partial(gate=args[0]), Partial(gate=n("logical_not", args[0]))


_LN2, _ERF_SLOPE = math.log(2), 2 / math.sqrt(math.pi)

_SMOOTH: dict[str, Rule] = {
    "add": lambda n, args, y: (KEEP, KEEP),
    "subtract": lambda n, args, y: (KEEP, NEGATE),
    "multiply": lambda n, args, y: (Partial("multiply", args[1]), Partial("multiply", args[0])),
    "divide": _divide,
    "remainder": _remainder,
    "power": _power,
    "minimum": _minimum,
    "maximum": _maximum,
    "negative": lambda n, args, y: (NEGATE,),
    "absolute": _absolute,
    "where": _where,
    "to_float": lambda n, args, y: (KEEP,),
    "exp": _times(lambda n, x, y: y),
    "exp2": _times(lambda n, x, y: n("multiply", y, n.real(_LN2))),
    "expm1": _times(lambda n, x, y: n("add", y, n.one)),
    "log": _over(lambda n, x, y: x),
    "log2": _over(lambda n, x, y: n("multiply", x, n.real(_LN2))),
    "log1p": _over(lambda n, x, y: n("add", x, n.one)),
    "sqrt": _over(lambda n, x, y: n("add", y, y)),
    "tanh": _times(lambda n, x, y: n("subtract", n.one, n("multiply", y, y))),
    "sigmoid": _times(lambda n, x, y: n("multiply", y, n("subtract", n.one, y))),
    "sin": _times(lambda n, x, y: n("cos", x)),
    "cos": _times(lambda n, x, y: n("negative", n("sin", x))),
    "erf": _times(lambda n, x, y: n("multiply", n.real(_ERF_SLOPE), n("exp", n("negative", n("multiply", x, x))))),
}

RULES: dict[str, Rule] = {op: _SMOOTH.get(op, _none) for op in OPS}
"""Operation name -> its partial derivatives; all zero for leaves, and where the result does not move smoothly."""


def differentiate(
    builder: GraphBuilder, output: int, cotangent: int, leaves: Collection[int] | None = None
) -> dict[int, int]:
    """Add to ``builder`` the cotangents of the leaves that the float node ``output`` depends on.

    ``cotangent`` is the node of the output's own; a literal 1.0 gives plain derivatives. ``leaves`` are the score,
    gather and constant nodes wanted, by default every float one. A gather's cotangent is that of the one element that
    it reads: the caller adds it there. Returns leaf -> node of its cotangent; a leaf without one has gradient zero.
    """
    moving = _moving(builder, output, _float_leaves(builder, output) if leaves is None else leaves)
    n = _Nodes(builder)
    # per node, the parts of its cotangent: gate (None is open) -> value
    parts: dict[int, dict[int | None, int]] = {output: {None: cotangent}}
    found = {}
    for number in range(output, -1, -1):
        if number not in moving or number not in parts:
            continue
        gate, value = _merge(n, parts.pop(number))
        node = builder.nodes[number]
        if OPS[node.op].arity == 0 or node.op == "gather":
            found[number] = n.gated(gate, value)
            continue
        wanted = [arg if arg in moving else None for arg in node.args]
        for arg, partial in zip(wanted, RULES[node.op](n, node.args, number), strict=True):
            if arg is None or partial is None:
                continue
            through = _both(n, gate, partial.gate)
            mine = parts.setdefault(arg, {})
            part = n.apply(partial, value)
            mine[through] = n("add", mine[through], part) if through in mine else part
    return found


def push_forward(builder: GraphBuilder, output: int, tangents: Mapping[int, int]) -> int | None:
    """Add to ``builder`` the tangent of node ``output``, given the tangents of leaves (node -> node); None is zero."""
    moving = _moving(builder, output, tangents)
    n = _Nodes(builder)
    found = dict(tangents)
    for number in range(output + 1):
        node = builder.nodes[number]
        if number not in moving or number in found:
            continue
        total: int | None = None
        for arg, partial in zip(node.args, RULES[node.op](n, node.args, number), strict=True):
            if arg not in found or partial is None:
                continue
            part = n.gated(partial.gate, n.apply(partial, found[arg]))
            total = part if total is None else n("add", total, part)
        if total is not None:
            found[number] = total
    return found.get(output)


def _float_leaves(builder: GraphBuilder, output: int) -> list[int]:
    return [
        number
        for number, node in enumerate(builder.nodes[: output + 1])
        if node.kind is Kind.FLOAT and node.op in ("score", "gather", "constant")
    ]


def _moving(builder: GraphBuilder, output: int, leaves: Collection[int]) -> set[int]:
    """The float nodes up to ``output`` that depend on ``leaves`` through floats."""
    moving = set(leaves)
    for number, node in enumerate(builder.nodes[: output + 1]):
        if node.kind is Kind.FLOAT and node.op != "gather" and moving.intersection(node.args):
            moving.add(number)
    return moving


def _both(n: _Nodes, a: int | None, b: int | None) -> int | None:
    if a is None or b is None or a == b:
        return b if a is None else a
    return n("logical_and", a, b)


def _merge(n: _Nodes, parts: dict[int | None, int]) -> tuple[int | None, int]:
    """Parts of a cotangent as one: the gates select before the sum, and any of them opens what follows."""
    if len(parts) == 1:
        return next(iter(parts.items()))
    gates, total = [], None
    for gate, value in parts.items():
        gates.append(gate)
        part = n.gated(gate, value)
        total = part if total is None else n("add", total, part)
    assert total is not None
    if None in gates:
        return None, total
    opened = gates[0]
    for gate in gates[1:]:
        assert opened is not None and gate is not None
        opened = n("logical_or", opened, gate)
    return opened, total
