"""Which gathers have range tables: those whose values decide the mask, as far as tiles can tell.

A mask that compares gathered values (document ids, lengths, padding, a table of blocks) skips tiles by what the array
holds under each tile. Code depends only on which gathers have a table; what is in them is read at each call.
"""

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from rootdk.mods.expr import Graph, Node
from rootdk.mods.range_tables import ELEMENTS, POSITIONS, WHOLE, build, finite_below

__all__ = ["MOST_VARYING", "Stretch", "build_all", "reachable", "stretches", "varying", "varying_dimensions"]

MOST_VARYING = 2
"""Indices of a gather that may vary within a tile for it to have a range table."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A gather that has a range table."""

    node: int
    slot: int
    dimensions: tuple[int, ...]
    """Those whose index varies within a tile, (rows, columns) or (columns,); the last if none does, () for rank 0."""
    grain: tuple[int, ...]
    """How far elements need telling apart along each of them."""
    hides: bool
    """Of its elements only -inf matters: it is a bias, and is compared with nothing else."""


def varying(graph: Graph, leaves: Collection[str] = ("score", "q", "kv")) -> list[bool]:
    """Which nodes depend on ``leaves``; by default, on what differs within a tile."""
    found: list[bool] = []
    for node in graph.nodes:
        leaf = node.op in leaves or (node.op == "index" and node.attr in leaves)
        found.append(leaf or any(found[arg] for arg in node.args))
    return found


def varying_dimensions(node: Node, varies: Sequence[bool]) -> list[int]:
    """The dimensions of a gather whose index is among the nodes that vary."""
    return [dimension for dimension, arg in enumerate(node.args) if varies[arg]]


def reachable(graph: Graph, roots: Collection[int]) -> set[int]:
    """The nodes that ``roots`` depend on, themselves included."""
    found = set(roots)
    for number in reversed(range(len(graph.nodes))):
        if number in found:
            found.update(graph.nodes[number].args)
    return found


@functools.lru_cache(maxsize=256)
def stretches(graph: Graph) -> tuple[Stretch, ...]:
    """The gathers of ``graph`` that get a range table: those that decide the mask, or index another gather."""
    deciding = reachable(graph, () if graph.mask is None else (graph.mask,))
    indexing = reachable(graph, {arg for node in graph.nodes if node.op == "gather" for arg in node.args})
    varies, by_key = varying(graph), varying(graph, ("kv",))
    found = []
    for number in sorted(deciding | indexing):
        node = graph.nodes[number]
        moving = varying_dimensions(node, varies)
        if node.op != "gather" or len(moving) > MOST_VARYING:
            continue
        assert isinstance(node.attr, int)
        # columns are the cheaper dimension to look along, and a tile has more keys than queries
        moving.sort(key=lambda dimension: by_key[node.args[dimension]])
        dimensions = tuple(moving or range(len(node.args))[-1:])
        # what does not decide the mask is looked at over the whole problem only
        grain = (_grain(graph, varies, node.args[at]) if number in deciding else WHOLE for at in dimensions)
        hides = number not in indexing and _hides(graph, deciding, number)
        found.append(Stretch(number, node.attr, dimensions, tuple(grain), hides))
    return tuple(found)


def _hides(graph: Graph, deciding: Collection[int], number: int) -> bool:
    """Whether gather ``number`` decides the mask by being -inf alone."""
    users = [node for place in deciding if number in (node := graph.nodes[place]).args]
    others = [[graph.nodes[arg] for arg in node.args if arg != number] for node in users]
    return bool(users) and all(
        node.op == "equal" and [(other.op, other.attr) for other in rest] == [("literal", -math.inf)]
        for node, rest in zip(users, others, strict=True)
    )


def _grain(graph: Graph, varies: Sequence[bool], number: int) -> int:
    """Coarse for q or kv, also when moved by what is fixed within a tile."""
    node = graph.nodes[number]
    if node.op in ("add", "subtract"):
        return min((_grain(graph, varies, arg) for arg in node.args if varies[arg]), default=ELEMENTS)
    return POSITIONS if node.op == "index" and varies[number] else ELEMENTS


def build_all(graph: Graph, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The range tables of a call, one per stretch of ``graph``; gathers that read alike share one."""
    made: dict[tuple[int, tuple[int, ...], tuple[int, ...], bool], np.ndarray] = {}
    found = []
    for stretch in stretches(graph):
        array, key = arrays[stretch.slot], (stretch.slot, stretch.dimensions, stretch.grain, stretch.hides)
        if key not in made:
            # most biases hide nothing; to see that takes an eighth of the time that a table takes
            simple = finite_below(array) if stretch.hides else None
            made[key] = build(array, stretch.dimensions, stretch.grain) if simple is None else simple
        found.append(made[key])
    return tuple(found)
