"""Traced functions as text: nothing is lost on the way there and back."""

import math
from typing import Any

import numpy as np
import pytest

import rootdk
from rootdk.dtypes import FLOAT32, Kind
from rootdk.mods import graph_text
from rootdk.mods.evaluate import evaluate
from rootdk.mods.expr import OPS, ArraySpec, Graph, Node
from rootdk.mods.trace import Traced
from rootdk.score_graph import ScoreMods, trace_mods


def traced(graph: Graph, constants: tuple[Any, ...] = (), names: tuple[str, ...] = ()) -> Traced:
    return Traced(graph, constants, (), names, {})


@pytest.mark.parametrize("op", OPS)
def test_every_operation(op: str):
    node = Node(op, tuple(range(OPS[op].arity or 2)), Kind.FLOAT, 0 if op in ("gather", "constant") else None)
    original = traced(Graph((node,), score=0, arrays=(ArraySpec(FLOAT32, 2),)), names=("table",))
    found = graph_text.read(graph_text.write(original))
    assert found.graph == original.graph
    assert found.names == ("table",)


@pytest.mark.parametrize("literal", [True, False, math.inf, -math.inf, math.nan])
def test_literals(literal: Any):
    graph = Graph((Node("literal", (), Kind.BOOL if isinstance(literal, bool) else Kind.FLOAT, literal),), mask=0)
    found = graph_text.read(graph_text.write(traced(graph))).graph
    # equal, also where it is NaN: that is one object
    assert found == graph
    assert type(found.nodes[0].attr) is type(literal)


def test_captured_numbers_keep_type_and_bits():
    constants = (2**53 + 1, -(2**63), 0.1, 1.0, 1, -0.0, 5e-324)
    kinds = tuple(Kind.INT if isinstance(number, int) else Kind.FLOAT for number in constants)
    found = graph_text.read(graph_text.write(traced(Graph(constants=kinds), constants)))
    assert [repr(number) for number in found.constants] == [repr(number) for number in constants]
    assert found.graph.constants == kinds


def test_whole_functions():
    table = np.arange(12.0).reshape(4, 3)
    mods = ScoreMods(
        mask=rootdk.causal() | rootdk.mask(lambda b, h, q, kv: kv == b),
        score_mod=(rootdk.softcap(2.0), lambda score, b, h, q, kv: np.where(q > 1, score + table[h, kv % 3], -np.inf)),
    )
    original = trace_mods(mods, (2, 4, 5, 5)).traced
    found = graph_text.read(graph_text.write(original))
    assert (found.graph, found.constants, found.names) == (original.graph, original.constants, original.names)


@pytest.mark.parametrize("mapped", [(), (0,)])
def test_one_more_batch_dimension_in_front(mapped: tuple[int, ...]):
    batch, more = 3, 4
    table = np.random.default_rng(0).normal(size=(more, batch, 5))
    first = table[0]
    mods = trace_mods(ScoreMods(score_mod=lambda score, b, h, q, kv: score + first[b, kv]), (batch, 1, 5, 5))
    text = graph_text.with_batch_in_front(graph_text.write(mods.traced), batch, mapped)
    found = graph_text.read(text)
    array = table if mapped else table[0]
    for place in range(more):
        for b in range(batch):
            values = evaluate(
                found.graph, found.constants, (array,), score=1.0, b=place * batch + b, h=0, q=0, kv=np.arange(5)
            )
            np.testing.assert_allclose(values[found.graph.score], 1.0 + (table[place] if mapped else table[0])[b])
    assert found.graph.arrays[0].rank == array.ndim
