"""A traced function as text and back: for those who pass it on as a string, such as operators of torch.

The text is JSON. Lines of the user's source are left out: it may be read where that source is not.
"""

import functools
import json
import math
from dataclasses import replace
from typing import Any

from rootdk import dtypes
from rootdk.dtypes import Kind
from rootdk.mods.expr import ArraySpec, Graph, GraphBuilder, Node
from rootdk.mods.traced import Traced

__all__ = ["read", "with_batch_in_front", "write"]


def write(traced: Traced) -> str:
    """``traced`` as text: its graph, the captured numbers and the arrays' names, but not the arrays."""
    graph = traced.graph
    return json.dumps(
        {
            "nodes": [[node.op, node.args, node.kind.value, node.attr] for node in graph.nodes],
            "score": graph.score,
            "mask": graph.mask,
            "arrays": [[spec.dtype.name, spec.rank] for spec in graph.arrays],
            "constants": traced.constants,
            "names": traced.names,
        },
        separators=(",", ":"),
    )


@functools.lru_cache(maxsize=256)
def read(text: str) -> Traced:
    """What ``write`` wrote, without arrays."""
    # one NaN object, as equal nodes are one node and NaN equals only itself by identity
    found = json.loads(text, parse_constant={"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get)
    constants = tuple(found["constants"])
    graph = Graph(
        nodes=tuple(Node(op, tuple(args), Kind(kind), attr) for op, args, kind, attr in found["nodes"]),
        score=found["score"],
        mask=found["mask"],
        arrays=tuple(ArraySpec(dtypes.named(name), rank) for name, rank in found["arrays"]),
        constants=_kinds(constants),
    )
    return Traced(graph, constants, arrays=(), names=tuple(found["names"]), sites={})


def _kinds(constants: tuple[Any, ...]) -> tuple[Kind, ...]:
    return tuple(Kind.INT if isinstance(value, int) else Kind.FLOAT for value in constants)


@functools.lru_cache(maxsize=256)
def with_batch_in_front(text: str, batch: int, mapped: tuple[int, ...]) -> str:
    """The function for calls with one more batch dimension in front of those that ``text`` was traced for.

    ``batch`` is how many batch elements there were, and ``mapped`` are the array slots that get the new dimension too.
    """
    traced = read(text)
    graph, constants = traced.graph, (*traced.constants, max(batch, 1))
    builder = GraphBuilder()
    flat = builder.add("index", attr="b", kind=Kind.INT)
    size = builder.add("constant", attr=len(constants) - 1, kind=Kind.INT)
    outer, inner = builder.add("floor_divide", flat, size), builder.add("remainder", flat, size)
    numbers: list[int] = []
    for node in graph.nodes:
        args = tuple(numbers[arg] for arg in node.args)
        if node.op == "gather" and node.attr in mapped:
            args = outer, *args
        of_batch = node.op == "index" and node.attr == "b"
        numbers.append(inner if of_batch else builder.add(node.op, *args, attr=node.attr, kind=node.kind))
    specs = tuple(
        replace(spec, rank=spec.rank + 1) if slot in mapped else spec for slot, spec in enumerate(graph.arrays)
    )
    score, mask = (None if root is None else numbers[root] for root in (graph.score, graph.mask))
    batched = Graph(tuple(builder.nodes), score, mask, specs, _kinds(constants))
    return write(replace(traced, graph=batched, constants=constants))
