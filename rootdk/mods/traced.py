"""What a trace records, and the graph that comes of it: only what is needed, with slots in order of first use."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rootdk.dtypes import DType, Kind
from rootdk.mods.expr import ArraySpec, Graph, GraphBuilder, Node

__all__ = ["Captured", "Recording", "Traced", "needed"]


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A graph, and the values that its slots have in this call."""

    graph: Graph
    constants: tuple[int | float, ...]
    arrays: tuple[np.ndarray, ...]
    """Views of the captured arrays, in order of first read."""
    names: tuple[str, ...]
    """What the user's function calls each array; no two are equal."""
    sites: dict[int, str]
    """file:line of each gather in the user's source, by node."""
    sources: tuple[Any, ...] = ()
    """The captured arrays as the user holds them, whatever their library."""


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A captured array, as it is read."""

    view: np.ndarray
    dtype: DType
    name: str
    source: Any


@dataclass(slots=True, eq=False)
class Recording:
    """All that was traced so far, needed or not; slots and nodes are numbered as they came."""

    builder: GraphBuilder = field(default_factory=GraphBuilder)
    constants: list[int | float] = field(default_factory=list)
    arrays: list[Captured] = field(default_factory=list)
    sites: dict[int, str] = field(default_factory=dict)

    def finished(self, score: int | None, mask: int | None) -> Traced:
        """The graph of the nodes ``score`` and ``mask``, where given, renumbered to hold nothing else."""
        numbers: dict[int, int] = {}
        nodes: list[Node] = []
        slots: dict[str, dict[Any, int]] = {"gather": {}, "constant": {}}
        for number in needed(self.builder.nodes, [root for root in (score, mask) if root is not None]):
            node = self.builder.nodes[number]
            own = slots.get(node.op)
            attr = node.attr if own is None else own.setdefault(node.attr, len(own))
            numbers[number] = len(nodes)
            nodes.append(Node(node.op, tuple(numbers[arg] for arg in node.args), node.kind, attr))
        arrays = [self.arrays[slot] for slot in slots["gather"]]
        constants = tuple(self.constants[slot] for slot in slots["constant"])
        graph = Graph(
            nodes=tuple(nodes),
            score=None if score is None else numbers[score],
            mask=None if mask is None else numbers[mask],
            arrays=tuple(ArraySpec(array.dtype, array.view.ndim) for array in arrays),
            constants=tuple(Kind.INT if isinstance(value, int) else Kind.FLOAT for value in constants),
        )
        return Traced(
            graph,
            constants,
            arrays=tuple(array.view for array in arrays),
            names=tuple(array.name for array in arrays),
            sites={numbers[number]: site for number, site in self.sites.items() if number in numbers},
            sources=tuple(array.source for array in arrays),
        )


def needed(nodes: list[Node], roots: list[int]) -> list[int]:
    """The nodes that ``roots`` depend on, themselves included, in order."""
    found = set(roots)
    for number in range(max(roots, default=-1), -1, -1):
        if number in found:
            found.update(nodes[number].args)
    return sorted(found)
