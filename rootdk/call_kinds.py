"""Kinds of calls whose masks, biases and functions read arrays: known but for what these hold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rootdk.dtypes import Kind as ElementKind
from rootdk.mods import ranges
from rootdk.mods.expr import Graph
from rootdk.mods.foreign import as_ndarray
from rootdk.problem import Bound

__all__ = ["CallKind"]


@dataclass(frozen=True, slots=True, eq=False)
class CallKind:
    """A bound call without its arrays."""

    bound: Bound
    places: tuple[int, ...]
    """Which of the arrays that the call's signature counts each array slot reads."""
    tables: tuple[np.ndarray, ...] | None
    """The range tables that its kernel was chosen by; None where that does not depend on them."""

    @classmethod
    def of(cls, bound: Bound, tables: tuple[np.ndarray, ...], arrays: Sequence[Any], bias: Any) -> "CallKind | None":
        """The kind of a call, whose signature counts ``arrays``, its ``bias`` among them.

        None where what they hold shaped the graph, or where the graph reads another: a function may have made that of
        what they hold.
        """
        operands = bound.operands
        origins = list(operands.origins)
        if operands.bias is not None:
            origins[operands.bias] = bias
        found = {id(array): place for place, array in enumerate(arrays)}
        places = tuple(found[id(origin)] for origin in origins if id(origin) in found)
        if operands.asked or len(places) < len(origins):
            return None
        bare = replace(bound, operands=replace(operands, arrays=(), sources=(), origins=()))
        return cls(bare, places, tables if _integers_gathered(bound.problem.graph) else None)

    def filled(self, arrays: Sequence[Any]) -> tuple[Bound, tuple[np.ndarray, ...]] | None:
        """The call with other ``arrays``, and their range tables; None where these may need another kernel."""
        graph = self.bound.problem.graph
        sources = tuple(arrays[place] for place in self.places)
        views = tuple(_read(source, spec.rank) for source, spec in zip(sources, graph.arrays, strict=True))
        tables = ranges.build_all(graph, views)
        if self.tables is not None and not all(map(np.array_equal, tables, self.tables)):
            return None
        return replace(self.bound, operands=replace(self.bound.operands, arrays=views, sources=sources)), tables


def _integers_gathered(graph: Graph) -> bool:
    """Whether what arrays hold decides which indices are in range, and which integers fit 32 bits."""
    return any(node.op == "to_int" or (node.op == "gather" and node.kind is ElementKind.INT) for node in graph.nodes)


def _read(source: Any, rank: int) -> np.ndarray:
    """A captured array as its graph reads it: masks and biases without dimensions of size 1."""
    view = as_ndarray(source, "array")
    return view if view.ndim == rank else view.squeeze()
