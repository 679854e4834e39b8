"""Derivatives against torch's autograd and against finite differences."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from expressions import Draft, Term, argument_kinds, where
from hypothesis import given, settings
from hypothesis import strategies as st

from rootdk.dtypes import Kind
from rootdk.mods.derivative import RULES, differentiate, push_forward
from rootdk.mods.evaluate import Values, evaluate
from rootdk.mods.expr import OPS

POINTS = 24
POSITIONS = np.arange(POINTS)

FLOAT_OPS = [name for name, op in OPS.items() if op.arity and (op.result == "float" or op.result == "promote")]

WILD = ["exp", "exp2", "expm1", "power", "remainder", "to_float"]
"""Left out of random expressions: in them a difference in rounding grows to any size."""

TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "floor_divide": lambda x, y: (x / y).detach().floor(),
    "power": torch.pow,
    "to_float": lambda x: x,
}


def value(draft: Draft, score: np.ndarray) -> Values:
    """Every node of a draft at the points, q being the point's number."""
    graph, constants, arrays = draft.graph(), tuple(draft.constants), tuple(draft.arrays)
    return evaluate(graph, constants, arrays, score=score, b=0, h=0, q=POSITIONS, kv=3)


class Pinned(torch.autograd.Function):
    """A value in place of one that differs by rounding, so that both sides see the same ties and steps."""

    @staticmethod
    def forward(context: object, computed: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def torch_gradients(
    draft: Draft, output: int, values: Values, leaves: list[int], seed: np.ndarray
) -> dict[int, np.ndarray]:
    """Cotangents of ``leaves`` by autograd; nodes that do not move with them are taken from ``values``."""
    tensors: dict[int, torch.Tensor] = {}
    for number, node in enumerate(draft.builder.nodes[: output + 1]):
        given = torch.tensor(np.broadcast_to(values[number], POINTS).copy())
        if number in leaves or node.kind is not Kind.FLOAT or not node.args or node.op == "gather":
            tensors[number] = given.requires_grad_(number in leaves)
        else:
            function = TORCH.get(node.op) or getattr(torch, node.op)
            tensors[number] = Pinned.apply(function(*(tensors[arg] for arg in node.args)), given)
    if not tensors[output].requires_grad:
        return {number: np.zeros(POINTS) for number in leaves}
    wanted = [tensors[number] for number in leaves]
    found = torch.autograd.grad(tensors[output], wanted, torch.tensor(seed), allow_unused=True)
    return {
        number: np.zeros(POINTS) if gradient is None else gradient.numpy()
        for number, gradient in zip(leaves, found, strict=True)
    }


def check(draft: Draft, output: Term, score: np.ndarray, largest: float = np.inf) -> None:
    """Cotangents of every float leaf are torch's, and the tangent is their sum.

    Points are left out where the function is NaN, or where a number beyond ``largest`` lets rounding decide.
    """
    leaves = [
        number
        for number, node in enumerate(draft.builder.nodes)
        if node.op in ("score", "gather", "constant") and node.kind is Kind.FLOAT
    ]
    seed = np.linspace(0.5, 1.5, POINTS)
    expected = torch_gradients(draft, output.number, value(draft, score), leaves, seed)
    cotangent = draft.array(seed)[draft.node("index", attr="q")].number
    found = differentiate(draft.builder, output.number, cotangent)
    tangent = push_forward(draft.builder, output.number, dict.fromkeys(leaves, cotangent))
    values = value(draft, score)
    inner = [np.broadcast_to(array, POINTS) for array in values.nodes[: output.number + 1]]
    counts = ~np.isnan(inner[-1]) & (np.nanmax(abs(np.array(inner, float)), axis=0) <= largest)
    total, scale, clean = np.zeros(POINTS), np.ones(POINTS), counts.copy()
    for number in leaves:
        mine = np.broadcast_to(values[found[number]], POINTS) if number in found else np.zeros(POINTS)
        # torch makes NaN of a branch that is not taken and has an infinite slope; we don't, see below
        finite = np.isfinite(expected[number]) & counts
        np.testing.assert_allclose(mine[finite], expected[number][finite], rtol=1e-4, atol=1e-6)
        clean &= finite
        with np.errstate(all="ignore"):
            total, scale = total + mine, scale + abs(mine)
    forward = np.zeros(POINTS) if tangent is None else np.broadcast_to(values[tangent], POINTS)
    clean &= np.isfinite(forward)  # inf - inf may cancel in one direction only
    np.testing.assert_array_less(abs(forward[clean] - total[clean]), 1e-4 * scale[clean])


def float_draft(rng: np.random.Generator, size: int, ops: list[str]) -> Draft:
    """Moderate numbers through float operations: comparisons and selections among them, some equal."""
    draft = Draft()
    q = draft.node("index", attr="q")
    tables = [rng.normal(size=POINTS), rng.integers(-2, 3, POINTS).astype(float), np.array([0.5])]
    floats = [draft.score(), draft.constant(0.5), draft.constant(-1.5), draft.node("to_float", q - 12)]
    floats += [draft.array(tables[0])[q], draft.array(tables[1])[q], draft.array(tables[2])[q - q]]
    bools = [draft.node("less", floats[0], floats[1])]

    def pick(kind: Kind) -> Term:
        among = bools if kind is Kind.BOOL else floats
        return among[-1 - min(int(rng.exponential(4)), len(among) - 1)]

    while len(floats) < size:
        op = str(rng.choice([*ops, "less", "equal"]))
        kinds = [Kind.FLOAT if kind is Kind.INT else kind for kind in argument_kinds(op, rng)]
        if op == "where":
            kinds = [Kind.BOOL, Kind.FLOAT, Kind.FLOAT]
        if op == "to_float":
            continue
        term = draft.node(op, *map(pick, kinds))
        (bools if term.kind is Kind.BOOL else floats).append(term)
    return draft


def test_every_operation_has_a_rule() -> None:
    assert set(RULES) == set(OPS)


@pytest.mark.parametrize("op", [op for op in FLOAT_OPS if op != "to_float"])
def test_each_operation(op: str) -> None:
    draft = Draft()
    q = draft.node("index", attr="q")
    x = np.tile([-2.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0], 3)
    y = np.repeat([-1.0, 0.0, 2.0], 8)
    terms = [draft.score(), draft.array(y)[q]][: OPS[op].arity]
    if op == "where":
        terms = [draft.score() < 0.7, draft.score(), draft.array(y)[q]]
    check(draft, draft.node(op, *terms), x)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_expressions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tame = [op for op in FLOAT_OPS if op not in WILD]
    draft = float_draft(rng, 22, tame)
    output = [number for number, node in enumerate(draft.builder.nodes) if node.kind is Kind.FLOAT][-1]
    check(draft, Term(draft, output), rng.normal(size=POINTS), largest=50.0)


@pytest.mark.parametrize("score", [-1.3, 0.2, 0.9, 2.2])
def test_finite_differences(score: float) -> None:
    draft = Draft()
    s = draft.score()
    inner = draft.node("tanh", s / 2.0) * 3.0 + draft.node("exp", s * 0.3)
    output = draft.node("erf", inner) * draft.node("sin", s) - draft.node("log1p", abs(s)) + (s % 0.7)
    slope = differentiate(draft.builder, output.number, draft.node("literal", attr=1.0).number, [s.number])[s.number]
    step = 1e-6
    above, below = (value(draft, np.full(POINTS, score + d))[output.number][0] for d in (step, -step))
    np.testing.assert_allclose(value(draft, np.full(POINTS, score))[slope][0], (above - below) / (2 * step), 1e-7)


def test_second_derivative() -> None:
    draft = Draft()
    s, one = draft.score(), draft.node("literal", attr=1.0).number
    output = draft.node("tanh", s) * s
    first = differentiate(draft.builder, output.number, one, [s.number])[s.number]
    second = differentiate(draft.builder, first, one, [s.number])[s.number]
    x = np.linspace(-2, 2, POINTS)
    t = np.tanh(x)
    np.testing.assert_allclose(value(draft, x)[second], (1 - t * t) * (2 - 2 * t * x), 1e-12)


@pytest.mark.parametrize("function", ["log", "sqrt", "divide", "power"])
def test_a_branch_not_taken_never_leaks(function: str) -> None:
    draft = Draft()
    s, one = draft.score(), draft.node("literal", attr=1.0).number
    zero = draft.constant(0.0)
    steep = {
        "log": lambda: draft.node("log", s), "sqrt": lambda: draft.node("sqrt", s),
        "divide": lambda: draft.node("divide", draft.constant(1.0), s),
        "power": lambda: draft.node("power", s, draft.constant(-2.0)),
    }[function]()  # fmt: skip
    output = where(zero < s, steep * 2.0, s * 3.0)
    slope = differentiate(draft.builder, output.number, one, [s.number])[s.number]
    values = value(draft, np.resize([0.0, -1.0, -np.inf, np.nan], POINTS))
    np.testing.assert_array_equal(values[slope], np.full(POINTS, 3.0))


def test_a_leaf_that_does_not_matter_is_absent() -> None:
    draft = Draft()
    s, unused = draft.score(), draft.constant(2.0)
    output = draft.node("floor", s) + draft.node("to_float", draft.node("to_int", s))
    one = draft.node("literal", attr=1.0).number
    assert differentiate(draft.builder, output.number, one) == {}
    assert differentiate(draft.builder, s.number, one) == {s.number: one}
    assert push_forward(draft.builder, output.number, {s.number: one}) is None
    assert push_forward(draft.builder, s.number, {unused.number: one}) is None


def test_a_table_read_twice_has_a_cotangent_for_each_reading() -> None:
    draft = Draft()
    q, kv = draft.node("index", attr="q"), draft.node("index", attr="kv")
    table = draft.array(np.arange(30.0))
    first, second = table[q], table[kv]
    one = draft.node("literal", attr=1.0).number
    found = differentiate(draft.builder, (first * second).number, one)
    assert found == {first.number: second.number, second.number: first.number}
