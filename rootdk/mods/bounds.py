"""Interval analysis of mods over tiles, in NumPy: which tiles a mask empties or fills, and what stays in range.

The kernels hold the same analysis as machine code (``codegen.lower_bounds``); this one serves ``plan()``, the proofs
that are made once per call, and tests.

Example: for a graph of the mask ``kv <= q``, ``analyse(graph, (), (), 0, 127, 128, 255, 0, 0)`` gives
``(array([True]), array([False]))``: no pair of that tile is visible.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from rootdk.dtypes import FLOAT32, FLOAT64, DType, Kind
from rootdk.mods.expr import Graph
from rootdk.mods.intervals import Algebra, Checked, FloatRange, IntRange, Range, Truth, Value
from rootdk.mods.range_rules import RANGE, propagate
from rootdk.mods.ranges import reachable

__all__ = [
    "RANGE", "FloatRange", "IntRange", "Range", "Truth", "analyse", "blockers", "fits_32_bits", "in_range_gathers",
    "node_ranges", "tile", "whole_problem",
]  # fmt: skip


def analyse(
    graph: Graph, constants: Sequence[float], tables: Sequence[np.ndarray],
    q0: np.ndarray | int, q1: np.ndarray | int, k0: np.ndarray | int, k1: np.ndarray | int,
    b: np.ndarray | int = 0, h: np.ndarray | int = 0, accumulator: DType = FLOAT32,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Whether any pair of each tile [q0, q1] x [k0, k1] (ends included) can be hidden, and whether any can be visible.

    The six bounds broadcast; so do the two boolean results. ``tables`` are ``ranges.build_all``'s, or empty.
    """
    indices = tile(q0, q1, k0, k1, b, h)
    if graph.mask is None:
        shape = np.broadcast_shapes(*(end.shape for index in indices.values() for end in (index.low, index.high)))
        return np.zeros(shape, bool), np.ones(shape, bool)
    with np.errstate(all="ignore"):
        algebra = _Arrays(graph, indices, accumulator, constants, tables)
        found = propagate(algebra, reachable(graph, [graph.mask]))[graph.mask]
    assert isinstance(found, Truth)
    shape = np.broadcast_shapes(found.can_be_false.shape, *(index.low.shape for index in indices.values()))
    return np.broadcast_to(found.can_be_false, shape), np.broadcast_to(found.can_be_true, shape)


def tile(
    q0: np.ndarray | int, q1: np.ndarray | int, k0: np.ndarray | int, k1: np.ndarray | int,
    b: np.ndarray | int = 0, h: np.ndarray | int = 0,
) -> dict[str, IntRange]:  # fmt: skip
    """The ranges of the indices in tiles."""
    b, h, q0, q1, k0, k1 = (np.atleast_1d(np.asarray(end, np.int64)) for end in (b, h, q0, q1, k0, k1))
    return {"b": IntRange(b, b), "h": IntRange(h, h), "q": IntRange(q0, q1), "kv": IntRange(k0, k1)}


def whole_problem(batch: int, heads: int, q_len: int, kv_len: int) -> dict[str, IntRange]:
    """The ranges of the indices over a whole problem, none of whose dimensions is empty."""
    sizes = {"b": batch, "h": heads, "q": q_len, "kv": kv_len}
    return {name: IntRange(np.array([0]), np.array([size - 1])) for name, size in sizes.items()}


def node_ranges(
    graph: Graph, constants: Sequence[float], tables: Sequence[np.ndarray], indices: Mapping[str, IntRange],
    accumulator: DType = FLOAT32,
) -> list[Range]:  # fmt: skip
    """The range of every node of ``graph``, in order, each end an array that broadcasts with the indices' ends."""
    with np.errstate(all="ignore"):
        return list(propagate(_Arrays(graph, indices, accumulator, constants, tables)).values())


def fits_32_bits(graph: Graph, found: Sequence[Range]) -> bool:
    """Whether every integer of the graph fits in 32 bits, given the ranges of its nodes."""
    return all(
        bool(np.all(node.low >= -(2**31)) and np.all(node.high < 2**31)) for node in found if isinstance(node, IntRange)
    )


def in_range_gathers(graph: Graph, found: Sequence[Range], shapes: Sequence[tuple[int, ...]]) -> frozenset[int]:
    """The gathers proven to stay inside their arrays, whose ``shapes`` are given by slot."""
    proven = set()
    for number, node in enumerate(graph.nodes):
        if node.op != "gather":
            continue
        assert isinstance(node.attr, int)
        index = [found[arg] for arg in node.args]
        if all(
            isinstance(at, IntRange) and np.all(at.low >= -size) and np.all(at.high < size)
            for at, size in zip(index, shapes[node.attr], strict=True)
        ):
            proven.add(number)
    return frozenset(proven)


def blockers(graph: Graph, found: Sequence[Range]) -> list[tuple[int, int]]:
    """The conditions of the mask that keep tiles from being skipped or taken whole: (node, tiles), most tiles first.

    A tile counts for each condition of the mask's tree of and, or and not that is undecided in it, where the mask is.
    """
    if graph.mask is None:
        return []
    undecided = _undecided(found[graph.mask])
    counts: dict[int, int] = {}
    waiting = [graph.mask]
    while waiting:
        number = waiting.pop()
        node = graph.nodes[number]
        if node.op.startswith("logical_"):
            waiting += node.args
        elif number not in counts:
            counts[number] = int(np.count_nonzero(_undecided(found[number]) & undecided))
    return sorted(((number, count) for number, count in counts.items() if count), key=lambda item: -item[1])


def _undecided(truth: Range) -> np.ndarray:
    assert isinstance(truth, Truth)
    return np.asarray(truth.can_be_false & truth.can_be_true)


@lru_cache(maxsize=256)
def _literal(dtype: type, value: float) -> np.ndarray:
    # one-dimensional: NumPy 1 would compute a 0-d float32 with a Python number in float64
    found: np.ndarray = np.array([value]).astype(dtype)
    found.setflags(write=False)
    return found


class _Arrays(Algebra):
    """The algebra of NumPy arrays, one element per tile."""

    def __init__(
        self, graph: Graph, indices: Mapping[str, IntRange], accumulator: DType,
        constants: Sequence[float], tables: Sequence[np.ndarray],
    ) -> None:  # fmt: skip
        super().__init__(graph, indices, accumulator)
        self._types = {Kind.BOOL: np.bool_, Kind.INT: np.int64, Kind.FLOAT: np.float32}
        if accumulator is FLOAT64:
            self._types[Kind.FLOAT] = np.float64
        self._constants = constants
        self._tables = tables
        if not tables:
            self.stretches = {}

    def literal(self, kind: Kind, value: float) -> Value:
        return _literal(self._types[kind], value)

    def constant(self, slot: int, kind: Kind) -> Value:
        return np.array([self._constants[slot]]).astype(self._types[kind])

    def table(self, position: int) -> Value:
        return self._tables[position]

    def load(self, table: Value, offset: Value) -> Value:
        return table[offset]

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        if not isinstance(a, np.ndarray):
            a = _literal(b.dtype.type, a)
        elif not isinstance(b, np.ndarray):
            b = _literal(a.dtype.type, b)
        return np.where(condition, a, b)

    def add(self, a: Value, b: Value) -> Checked:
        total = a + b
        return total, ((a ^ total) & (b ^ total)) < 0

    def subtract(self, a: Value, b: Value) -> Checked:
        difference = a - b
        return difference, ((a ^ b) & (a ^ difference)) < 0

    def multiply(self, a: Value, b: Value) -> Checked:
        # wrapping moves a product by a multiple of 2**64, far more than rounding moves the float64 one
        wrapped, close = a * b, a.astype(np.float64) * b.astype(np.float64)
        return wrapped, abs(close - wrapped.astype(np.float64)) > 2.0**62

    def quotient(self, a: Value, b: Value) -> Value:
        return a // b

    def log2(self, a: Value) -> Value:
        return np.frexp(a.astype(np.float64))[1].astype(np.int64) - 1

    def to_float(self, a: Value) -> Value:
        return a.astype(self._types[Kind.FLOAT])

    def to_int(self, a: Value) -> Value:
        return a.astype(np.int64)

    def from_bits(self, word: Value) -> Value:
        return word.view(np.float64).astype(self._types[Kind.FLOAT])

    def floor(self, a: Value) -> Value:
        return np.floor(a)

    def sqrt(self, a: Value) -> Value:
        return np.sqrt(a)

    def lowest(self, count: Value, words: Callable[[Value], tuple[Value, ...]]) -> tuple[Value, ...]:
        found = words(np.array([0]))
        for number in range(1, int(np.max(count, initial=1))):
            # where there are fewer, the last again
            found = tuple(map(np.minimum, found, words(np.minimum(count - 1, number))))
        return found
