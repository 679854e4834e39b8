"""The NumPy meaning of operations, above all at the edges."""

import math
from typing import Any

import numpy as np
import pytest
from expressions import Draft, random_draft
from hypothesis import given, settings
from hypothesis import strategies as st
from tracing import over_pairs, trace_score

from rootdk.dtypes import BFLOAT16_BITS, Kind
from rootdk.mods.evaluate import NUMPY, evaluate
from rootdk.mods.expr import OPS

LEAVES = {"score", "index", "literal", "constant", "gather", "to_float", "to_int"}
SMALLEST, LARGEST = -(2**63), 2**63 - 1


def value(op: str, *args: float | int | bool) -> Any:
    """``op`` of numbers, by way of a graph."""
    draft = Draft()
    terms = [draft.node("literal", attr=arg) if isinstance(arg, bool) else draft.constant(arg) for arg in args]
    node = draft.node(op, *terms)
    found = evaluate(draft.graph(), tuple(draft.constants), (), b=0, h=0, q=0, kv=0)[node.number]
    return found.item()


def test_every_operation_has_a_value() -> None:
    assert set(NUMPY) == set(OPS) - LEAVES


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_values_have_the_kind_of_their_node(seed: int) -> None:
    draft = random_draft(np.random.default_rng(seed), 40)
    graph = draft.graph()
    types = {Kind.BOOL: np.bool_, Kind.INT: np.int64, Kind.FLOAT: np.float32}
    q, kv = np.ogrid[:3, :4]
    slots = tuple(draft.constants), tuple(draft.arrays)
    values = evaluate(graph, *slots, score=1.5, b=1, h=2, q=q, kv=kv, dtype=np.float32)
    for number, node in enumerate(graph.nodes):
        assert values[number].dtype == types[node.kind]
        assert np.broadcast_shapes(values[number].shape, (3, 4)) == (3, 4)


INTEGERS = [
    ("floor_divide", (-7, 3), -3),
    ("floor_divide", (7, -3), -3),
    ("floor_divide", (7, 0), 0),
    ("floor_divide", (SMALLEST, -1), SMALLEST),
    ("remainder", (-7, 3), 2),
    ("remainder", (7, -3), -2),
    ("remainder", (7, 0), 0),
    ("add", (LARGEST, 1), SMALLEST),
    ("multiply", (2**62, 4), 0),
    ("negative", (SMALLEST,), SMALLEST),
    ("absolute", (SMALLEST,), SMALLEST),
    ("shift_left", (3, 62), SMALLEST + 2**62),
    ("shift_left", (3, 64), 0),
    ("shift_left", (3, -1), 0),
    ("shift_right", (-8, 1), -4),
    ("shift_right", (-8, 64), -1),
    ("shift_right", (8, -1), 0),
    ("bit_not", (5,), -6),
    ("bit_xor", (6, 3), 5),
    ("to_int", (-2.9,), -2),
    ("to_bool", (-0.5,), True),
    ("to_bool", (0,), False),
]


@pytest.mark.parametrize(("op", "args", "expected"), INTEGERS)
def test_integers(op: str, args: tuple[Any, ...], expected: int | bool) -> None:
    assert value(op, *args) == expected


FLOATS = [
    ("floor_divide", (-7.0, 2.0), -4.0),
    ("remainder", (-7.0, 2.0), 1.0),
    ("minimum", (math.nan, 1.0), math.nan),
    ("maximum", (1.0, math.nan), math.nan),
    ("round", (2.5,), 2.0),
    ("round", (-3.5,), -4.0),
    ("trunc", (-1.5,), -1.0),
    ("sigmoid", (-1000.0,), 0.0),
    ("sigmoid", (1000.0,), 1.0),
    ("sigmoid", (math.nan,), math.nan),
    ("erf", (0.5,), math.erf(0.5)),
    ("log", (0.0,), -math.inf),
    ("log", (-1.0,), math.nan),
    ("power", (-8.0, 3.0), -512.0),
    ("power", (-8.0, 0.5), math.nan),
    ("divide", (1, 4), 0.25),
    ("tanh", (1e9,), 1.0),
]


@pytest.mark.parametrize(("op", "args", "expected"), FLOATS)
def test_floats(op: str, args: tuple[float, ...], expected: float) -> None:
    assert value(op, *args) == pytest.approx(expected, nan_ok=True)


def test_comparisons_with_nan() -> None:
    assert value("not_equal", math.nan, math.nan) is True
    assert not any(value(op, math.nan, 1.0) for op in ("equal", "less", "less_equal"))
    assert value("is_nan", math.nan) is True


def gathered(array: np.ndarray, *indices: Any) -> tuple[np.ndarray, np.ndarray]:
    """The elements of ``array`` at ``indices`` of the query's position, and where they were outside."""
    draft = Draft()
    _, _, q, _ = draft.indices()
    node = draft.array(array)[tuple(q if index == "q" else draft.constant(index) for index in indices)]
    values = evaluate(draft.graph(), tuple(draft.constants), tuple(draft.arrays), b=0, h=0, q=np.arange(-7, 8), kv=0)
    return values[node.number], values.outside.get(node.number, np.zeros(15, bool))


def test_gather_counts_from_the_end_and_never_reads_outside() -> None:
    array = np.arange(100.0)[20:25]
    values, outside = gathered(array, "q")
    q = np.arange(-7, 8)
    inside = (q >= -5) & (q < 5)
    np.testing.assert_array_equal(outside, ~inside)
    np.testing.assert_array_equal(values[inside], array[q[inside]])
    assert np.isin(values[~inside], array).all()


def test_gather_in_empty_and_small_arrays() -> None:
    values, outside = gathered(np.zeros((3, 0)), "q", 0)
    assert outside.all() and (values == 0).all()
    values, outside = gathered(np.eye(3), 1, "q")
    assert outside.sum() == 9 and values[7 + 1] == 1


def test_gather_reads_bfloat16_bits() -> None:
    bits = (np.array([1.0, -2.5, 3e38], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    values, _ = gathered(bits.view(BFLOAT16_BITS), "q")
    np.testing.assert_allclose(values[7:10], [1.0, -2.5, 3e38], rtol=1e-2)


def test_a_node_costs_only_what_it_depends_on() -> None:
    traced = trace_score(lambda s, b, h, q, k: s + (q * 2) + (k * 3))
    values = over_pairs(traced, (2, 2, 8, 8), np.zeros((2, 2, 8, 8)))
    shapes = {node.op: value.shape for node, value in zip(traced.graph.nodes, values.nodes, strict=True)}
    assert shapes["multiply"] == (1, 1, 1, 8) and shapes["add"] == (2, 2, 8, 8)
