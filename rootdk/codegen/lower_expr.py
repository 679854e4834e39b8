"""Machine code of score and mask functions: each operation of the mods' table as LLVM instructions.

A value is a scalar where it is the same in all lanes, and a vector where it is not. Nothing decides which: a node is
as its arguments are, and the leaves tell (the lanes' own index and the score are vectors, the others scalars).
Scalar integers have 64 bits; lanes have 32 where the caller knows that everything fits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from llvmlite import ir

from rootdk.codegen import integer_math, rounding, trigonometry, vector_math
from rootdk.codegen.builder import I1, I64, Builder
from rootdk.codegen.gather import Miss, gather, record, table_offset
from rootdk.codegen.integer_math import element, number
from rootdk.codegen.power import power as float_power
from rootdk.codegen.reals import Reals, shaped
from rootdk.dtypes import Kind
from rootdk.mods.expr import Graph, Node

__all__ = ["LOWER", "Environment", "lower", "runs_along"]


@dataclass(frozen=True)
class Environment:
    """What a graph's code finds around it."""

    leaves: Mapping[str, ir.Value]
    """score: accumulators; b, h, q, kv: a 64-bit scalar, or a vector of ``index_type``."""
    constants: ir.Value
    """Points at 8-byte slots: an int64, or a float64."""
    arrays: ir.Value
    """Points at int64 words, for each array slot its address, shape and strides in bytes."""
    index_type: ir.IntType = I64
    """I64, or I32 where every integer of the graph and every length of its arrays is known to fit."""
    visible: ir.Value | None = None
    """Pairs whose faults count, i1 or a vector of it. None: those that the graph's mask shows, where it is among the
    outputs, else all."""
    fault: ir.Value | None = None
    """Points at ``gather.FAULT_WORDS`` int64 words that take the first fault, the first of them 0; None: no record."""
    proven: frozenset[int] = frozenset()
    """Gathers whose indices are all known to be in range."""
    consecutive: tuple[str, ir.Value] | None = None
    """The index that the lanes count up, and whether they do: lanes past the end repeat the last."""
    given: Mapping[int, ir.Value] = field(default_factory=dict)
    """Values of nodes that need not be computed."""


def lower(builder: Builder, graph: Graph, outputs: Sequence[int], environment: Environment) -> list[ir.Value]:
    """Emit the nodes that ``outputs`` need, and return their values; faults are recorded at the end."""
    needed = set(outputs)
    for node_number in range(len(graph.nodes) - 1, -1, -1):
        if node_number in needed and node_number not in environment.given:
            needed.update(graph.nodes[node_number].args)
    lowering = _Lowering(builder, graph, environment, dict(environment.given))
    for node_number in sorted(needed - environment.given.keys()):
        node = graph.nodes[node_number]
        arguments = lowering.alike([lowering.values[arg] for arg in node.args], node)
        lowering.values[node_number] = LOWER[node.op](lowering, node_number, arguments)
    lowering.record_misses(outputs)
    return [lowering.values[output] for output in outputs]


@dataclass
class _Lowering:
    """One run of ``lower``."""

    builder: Builder
    graph: Graph
    environment: Environment
    values: dict[int, ir.Value] = field(default_factory=dict)
    misses: list[tuple[int, Miss]] = field(default_factory=list)

    def alike(self, arguments: list[ir.Value], node: Node) -> list[ir.Value]:
        """``arguments`` as vectors if any of them is; a gather takes its indices as they are."""
        if node.op == "gather" or not any(isinstance(argument.type, ir.VectorType) for argument in arguments):
            return arguments
        return [self.lanes(argument) for argument in arguments]

    def lanes(self, value: ir.Value) -> ir.Value:
        if value.type == I64 and self.environment.index_type != I64:
            value = self.builder.ir.trunc(value, self.environment.index_type)
        return self.builder.splat(value)

    def integer(self, like: ir.Value) -> ir.Type:
        """The type of integers shaped as ``like``."""
        return shaped(self.environment.index_type if isinstance(like.type, ir.VectorType) else I64, like.type)

    def real(self, like: ir.Value) -> ir.Type:
        return shaped(self.builder.real, like.type)

    def record_misses(self, outputs: Sequence[int]) -> None:
        fault, visible = self.environment.fault, self.environment.visible
        if fault is None:
            return
        mask = self.graph.mask
        if visible is None and mask is not None and mask in outputs:
            visible = self.values[mask]
        for node_number, miss in self.misses:
            record(self.builder, fault, node_number, miss, visible)


Emitter = Callable[[_Lowering, int, list[ir.Value]], ir.Value]


def _is_float(value: ir.Value) -> bool:
    return not isinstance(element(value.type), ir.IntType)


# Leaves --------------------------------------------------------------------------------------------------------------


def _score(lowering: _Lowering, node: int, _: list[ir.Value]) -> ir.Value:
    return lowering.environment.leaves["score"]


def _index(lowering: _Lowering, node: int, _: list[ir.Value]) -> ir.Value:
    return lowering.environment.leaves[str(lowering.graph.nodes[node].attr)]


def _literal(lowering: _Lowering, node: int, _: list[ir.Value]) -> ir.Value:
    value = lowering.graph.nodes[node].attr
    if isinstance(value, bool):
        return ir.Constant(I1, value)
    assert isinstance(value, int | float)
    return ir.Constant(I64, value) if isinstance(value, int) else lowering.builder.scalar(value)


def _constant(lowering: _Lowering, node: int, _: list[ir.Value]) -> ir.Value:
    b, slot, kind = lowering.builder, lowering.graph.nodes[node].attr, lowering.graph.nodes[node].kind
    assert isinstance(slot, int)
    value = b.load(ir.DoubleType() if kind is Kind.FLOAT else I64, lowering.environment.constants, 8 * slot, 8)
    value.set_metadata("invariant.load", b.function.module.add_metadata([]))
    if kind is Kind.BOOL:
        return b.ir.icmp_unsigned("!=", value, b.index(0))
    return value if value.type in (I64, b.real) else b.ir.fptrunc(value, b.real)


def _gather(lowering: _Lowering, node: int, indices: list[ir.Value]) -> ir.Value:
    b, environment, arrays = lowering.builder, lowering.environment, lowering.graph.arrays
    slot = lowering.graph.nodes[node].attr
    assert isinstance(slot, int)
    table = b.at(environment.arrays, table_offset(arrays, slot))
    proven = node in environment.proven
    along = runs_along(lowering.graph, node, indices, environment)
    value, misses = gather(b, arrays[slot], table, indices, environment.index_type, proven=proven, consecutive=along)
    lowering.misses += [(node, miss) for miss in misses]
    return value


def runs_along(graph: Graph, node: int, indices: Sequence[ir.Value], environment: Environment) -> ir.Value | None:
    """When gather ``node`` reads consecutive elements: its one index that varies by lane is the lanes' own; or None."""
    if environment.consecutive is None:
        return None
    leaf, when = environment.consecutive
    varying = [
        graph.nodes[arg]
        for arg, index in zip(graph.nodes[node].args, indices, strict=True)
        if isinstance(index.type, ir.VectorType)
    ]
    return when if len(varying) == 1 and varying[0].op == "index" and varying[0].attr == leaf else None


# Arithmetic ----------------------------------------------------------------------------------------------------------


def _instruction(name: str, float_name: str | None = None) -> Emitter:
    """One instruction of IRBuilder, another for floats."""

    def emit(lowering: _Lowering, _: int, arguments: list[ir.Value]) -> ir.Value:
        chosen = float_name if float_name and _is_float(arguments[0]) else name
        return getattr(lowering.builder.ir, chosen)(*arguments)

    return emit


def _function(function: Callable[..., ir.Value]) -> Emitter:
    return lambda lowering, _, arguments: function(lowering.builder, *arguments)


def _division(part: int) -> Emitter:
    """Of (quotient, remainder)."""

    def emit(lowering: _Lowering, _: int, arguments: list[ir.Value]) -> ir.Value:
        divide = rounding.floor_divide if _is_float(arguments[0]) else integer_math.divide
        return divide(lowering.builder, *arguments)[part]

    return emit


def _extremum(operator: str) -> Emitter:
    """The argument that compares so with the other, or the NaN."""

    def emit(lowering: _Lowering, _: int, arguments: list[ir.Value]) -> ir.Value:
        i, (a, b) = lowering.builder.ir, arguments
        if not _is_float(a):
            return i.select(i.icmp_signed(operator, a, b), a, b)
        chosen = i.select(i.fcmp_ordered(operator, a, b), a, b)  # b where either is NaN
        return i.select(i.fcmp_unordered("uno", a, a), a, chosen)

    return emit


def _negative(lowering: _Lowering, _: int, arguments: list[ir.Value]) -> ir.Value:
    i, (x,) = lowering.builder.ir, arguments
    return i.fneg(x) if _is_float(x) else i.sub(number(0, x), x)


def _absolute(lowering: _Lowering, _: int, arguments: list[ir.Value]) -> ir.Value:
    i, (x,) = lowering.builder.ir, arguments
    if _is_float(x):
        return Reals(lowering.builder, x).absolute(x)
    return i.select(i.icmp_signed("<", x, number(0, x)), i.sub(number(0, x), x), x)


# Comparison and choice -----------------------------------------------------------------------------------------------


def _comparison(operator: str) -> Emitter:
    def emit(lowering: _Lowering, _: int, arguments: list[ir.Value]) -> ir.Value:
        i = lowering.builder.ir
        if not _is_float(arguments[0]):
            return i.icmp_signed(operator, *arguments)
        return (i.fcmp_unordered if operator == "!=" else i.fcmp_ordered)(operator, *arguments)

    return emit


def _is_nan(lowering: _Lowering, _: int, arguments: list[ir.Value]) -> ir.Value:
    return lowering.builder.ir.fcmp_unordered("uno", arguments[0], arguments[0])


# Casts ---------------------------------------------------------------------------------------------------------------


def _to_float(lowering: _Lowering, _: int, arguments: list[ir.Value]) -> ir.Value:
    i, (x,) = lowering.builder.ir, arguments
    if _is_float(x):
        return x
    return (i.uitofp if element(x.type) == I1 else i.sitofp)(x, lowering.real(x))


def _to_int(lowering: _Lowering, _: int, arguments: list[ir.Value]) -> ir.Value:
    b, (x,) = lowering.builder, arguments
    whole = lowering.integer(x)
    if _is_float(x):
        # a plain conversion would be poison out of range: LLVM could then assume that it never happens
        return b.intrinsic(f"llvm.fptosi.sat.{b.suffix(whole)}.{b.suffix(x.type)}", whole, [x])
    return b.ir.zext(x, whole) if element(x.type) == I1 else x


def _to_bool(lowering: _Lowering, _: int, arguments: list[ir.Value]) -> ir.Value:
    i, (x,) = lowering.builder.ir, arguments
    if _is_float(x):
        return i.fcmp_unordered("!=", x, Reals(lowering.builder, x).constant(0.0))
    return x if element(x.type) == I1 else i.icmp_signed("!=", x, number(0, x))


LOWER: dict[str, Emitter] = {
    "score": _score,
    "index": _index,
    "literal": _literal,
    "constant": _constant,
    "gather": _gather,
    "add": _instruction("add", "fadd"),
    "subtract": _instruction("sub", "fsub"),
    "multiply": _instruction("mul", "fmul"),
    "floor_divide": _division(0),
    "remainder": _division(1),
    "minimum": _extremum("<"),
    "maximum": _extremum(">"),
    "negative": _negative,
    "absolute": _absolute,
    "shift_left": _function(integer_math.shift_left),
    "shift_right": _function(integer_math.shift_right),
    "bit_and": _instruction("and_"),
    "bit_or": _instruction("or_"),
    "bit_xor": _instruction("xor"),
    "bit_not": _instruction("not_"),
    "divide": _instruction("fdiv"),
    "power": _function(float_power),
    "equal": _comparison("=="),
    "not_equal": _comparison("!="),
    "less": _comparison("<"),
    "less_equal": _comparison("<="),
    "logical_and": _instruction("and_"),
    "logical_or": _instruction("or_"),
    "logical_xor": _instruction("xor"),
    "logical_not": _instruction("not_"),
    "is_nan": _is_nan,
    "where": _instruction("select"),
    "to_float": _to_float,
    "to_int": _to_int,
    "to_bool": _to_bool,
    **{
        name: _function(getattr(vector_math, name))
        for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "tanh", "sigmoid", "erf")
    },
    "sin": _function(trigonometry.sin),
    "cos": _function(trigonometry.cos),
    "floor": _function(rounding.floor),
    "ceil": _function(rounding.ceil),
    "round": _function(rounding.nearest),
    "trunc": _function(rounding.trunc),
}
"""The emitter of each operation: (lowering, node number, arguments) -> value."""
