"""Expressions written by hand, and at random, for the tests of what is computed from graphs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rootdk import dtypes
from rootdk.dtypes import Kind
from rootdk.mods.evaluate import element_kind
from rootdk.mods.expr import OPS, ArraySpec, Graph, GraphBuilder


@dataclass
class Draft:
    """A graph in the making, with the values of its constants and arrays."""

    builder: GraphBuilder = field(default_factory=GraphBuilder)
    constants: list[float] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    arrays: list[np.ndarray] = field(default_factory=list)

    def node(self, op: str, *args: "Term", attr: Any = None, kind: Kind | None = None) -> "Term":
        return Term(self, self.builder.add(op, *(arg.number for arg in args), attr=attr, kind=kind))

    def indices(self) -> tuple["Term", "Term", "Term", "Term"]:
        b, h, q, kv = (self.node("index", attr=name) for name in ("b", "h", "q", "kv"))
        return b, h, q, kv

    def score(self) -> "Term":
        return self.node("score")

    def constant(self, value: float) -> "Term":
        kind = Kind.FLOAT if isinstance(value, float) else Kind.INT
        self.constants.append(value)
        self.kinds.append(kind)
        return self.node("constant", attr=len(self.kinds) - 1, kind=kind)

    def array(self, array: np.ndarray) -> "Gatherer":
        self.arrays.append(array)
        return Gatherer(self, len(self.arrays) - 1)

    def term(self, value: Any) -> "Term":
        return value if isinstance(value, Term) else self.constant(value)

    def graph(self, *, score: "Term | None" = None, mask: "Term | None" = None) -> Graph:
        specs = tuple(ArraySpec(dtypes.of(array), array.ndim) for array in self.arrays)
        return Graph(
            tuple(self.builder.nodes),
            None if score is None else score.number,
            None if mask is None else mask.number,
            specs,
            tuple(self.kinds),
        )


@dataclass(frozen=True)
class Gatherer:
    draft: Draft
    slot: int

    def __getitem__(self, index: Any) -> "Term":
        index = index if isinstance(index, tuple) else (index,)
        kind = element_kind(self.draft.arrays[self.slot])
        return self.draft.node("gather", *map(self.draft.term, index), attr=self.slot, kind=kind)


@dataclass(frozen=True, eq=False)
class Term:
    """A node that takes Python's operators."""

    draft: Draft
    number: int

    @property
    def kind(self) -> Kind:
        return self.draft.builder.kind(self.number)

    def _with(self, op: str, other: Any, swap: bool = False) -> "Term":
        x, y = self, self.draft.term(other)
        if op.startswith("bit_") and x.kind is Kind.BOOL:
            op = op.replace("bit_", "logical_")
        if {x.kind, y.kind} == {Kind.INT, Kind.FLOAT}:
            x, y = (term if term.kind is Kind.FLOAT else self.draft.node("to_float", term) for term in (x, y))
        return self.draft.node(op, *((y, x) if swap else (x, y)))

    def __add__(self, other: Any) -> "Term":
        return self._with("add", other)

    def __sub__(self, other: Any) -> "Term":
        return self._with("subtract", other)

    def __rsub__(self, other: Any) -> "Term":
        return self._with("subtract", other, swap=True)

    def __mul__(self, other: Any) -> "Term":
        return self._with("multiply", other)

    def __truediv__(self, other: Any) -> "Term":
        return self._with("divide", other)

    def __floordiv__(self, other: Any) -> "Term":
        return self._with("floor_divide", other)

    def __mod__(self, other: Any) -> "Term":
        return self._with("remainder", other)

    def __lt__(self, other: Any) -> "Term":
        return self._with("less", other)

    def __le__(self, other: Any) -> "Term":
        return self._with("less_equal", other)

    def __gt__(self, other: Any) -> "Term":
        return self._with("less", other, swap=True)

    def __ge__(self, other: Any) -> "Term":
        return self._with("less_equal", other, swap=True)

    def same(self, other: Any) -> "Term":
        return self._with("equal", other)

    def __and__(self, other: Any) -> "Term":
        return self._with("bit_and", other)

    def __or__(self, other: Any) -> "Term":
        return self._with("bit_or", other)

    def __invert__(self) -> "Term":
        return self.draft.node("logical_not" if self.kind is Kind.BOOL else "bit_not", self)

    def __abs__(self) -> "Term":
        return self.draft.node("absolute", self)

    def clip(self, low: Any, high: Any) -> "Term":
        return self._with("maximum", low)._with("minimum", high)


def where(condition: Term, x: Any, y: Any) -> Term:
    draft = condition.draft
    return draft.node("where", condition, draft.term(x), draft.term(y))


INTEGERS = (0, 1, 2, 3, 5, 16, 63, 64, -1, -2, -7, 100, 2**31, 2**62, -(2**63), 2**63 - 1)
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.75, 1e-40, 1e30, 3e38, float("inf"), float("-inf"), float("nan"))


def random_draft(
    rng: np.random.Generator, size: int, *, ops: Sequence[str] = tuple(OPS), defined: bool = False
) -> Draft:
    """A draft of about ``size`` nodes over the whole table, the last ones the deepest; every kind is present.

    In one that is ``defined``, gathers stay inside their arrays, and only floats below 2**30 are cast to integers.
    """
    draft = Draft()
    leaves = [*list(draft.indices()), draft.score()]
    arrays = [
        rng.integers(-3, 9, 7), rng.integers(0, 2, (5, 4)).astype(bool), rng.integers(0, 200, 6).astype(np.uint8),
        np.sort(rng.integers(0, 5, 40)), rng.choice(REALS[:12], 5).astype(np.float32), np.array(3),
        rng.normal(size=(2, 9)), np.add.outer(np.arange(50), np.arange(60)) // 16,
    ]  # fmt: skip
    gatherers = [draft.array(array) for array in arrays]
    terms: dict[Kind, list[Term]] = {kind: [leaf for leaf in leaves if leaf.kind is kind] for kind in Kind}
    terms[Kind.BOOL] += [draft.node("literal", attr=value) for value in (True, False)]
    terms[Kind.FLOAT] += [draft.constant(float(value)) for value in rng.choice(REALS, 2)]
    terms[Kind.INT] += [draft.constant(int(value)) for value in rng.choice(np.array(INTEGERS), 3)]
    inner = [op for op in ops if OPS[op].arity != 0]

    def pick(kind: Kind) -> Term:
        # recent ones first, so that expressions grow deep
        among = terms[kind]
        return among[-1 - min(int(rng.exponential(4)), len(among) - 1)]

    for _ in range(size):
        op = str(rng.choice(inner))
        if op == "gather":
            gatherer = gatherers[rng.integers(len(gatherers))]
            index = [pick(Kind.INT) for _ in range(arrays[gatherer.slot].ndim)]
            if defined:
                index = [at % size for at, size in zip(index, arrays[gatherer.slot].shape, strict=True)]
            term = gatherer[tuple(index)]
        else:
            arguments = [pick(kind) for kind in argument_kinds(op, rng)]
            if defined and op == "to_int" and arguments[0].kind is Kind.FLOAT:
                arguments = [where(abs(arguments[0]) < 2.0**30, arguments[0], 0.0)]
            term = draft.node(op, *arguments)
        terms[term.kind].append(term)
    return draft


def argument_kinds(op: str, rng: np.random.Generator) -> list[Kind]:
    """Kinds that the arguments of ``op`` may have together."""
    number = Kind.INT if rng.random() < 0.6 else Kind.FLOAT
    if op == "where":
        value = Kind(rng.choice(["bool", "int", "float"]))
        return [Kind.BOOL, value, value]
    if op.startswith("logical_"):
        return [Kind.BOOL] * (OPS[op].arity or 0)
    if op.startswith(("bit_", "shift_")):
        return [Kind.INT] * (OPS[op].arity or 0)
    if op.startswith("to_"):
        return [Kind(rng.choice([kind.value for kind in Kind if kind.value != OPS[op].result]))]
    if OPS[op].result == "float" or op == "is_nan":
        return [Kind.FLOAT] * (OPS[op].arity or 0)
    return [number] * (OPS[op].arity or 0)
