"""The mask inside a score function: many hide pairs by ``where(visible, score, -inf)``.

Such a pair is hidden either way. Said in the mask it is also skipped: whole tiles of it are never computed.
"""

import math
from dataclasses import replace

from rootdk.mods.expr import Graph, GraphBuilder
from rootdk.mods.ranges import MOST_VARYING, varying, varying_dimensions

__all__ = ["with_score_mask"]


def with_score_mask(graph: Graph) -> Graph:
    """``graph`` with the pairs that its score function hides hidden by its mask too, as far as tiles can tell.

    Nodes keep their numbers, new ones follow. Conditions on the score itself, or on gathers that have no range table,
    say nothing of a whole tile: in the mask they would cost and never gain.
    """
    if graph.score is None:
        return graph
    search = _Search(graph)
    hidden = search.hides.get(graph.score)
    if hidden is None:
        return graph
    builder = search.builder
    visible = builder.add("logical_not", hidden)
    mask = visible if graph.mask is None else builder.add("logical_and", graph.mask, visible)
    return replace(graph, nodes=tuple(builder.nodes), mask=mask)


class _Search:
    """Finds conditions for which a number is -inf; each is a node, or None where there is none to be found."""

    def __init__(self, graph: Graph) -> None:
        self.builder = GraphBuilder()
        for node in graph.nodes:
            self.builder.add(node.op, *node.args, attr=node.attr, kind=node.kind)
        assert self.builder.nodes == list(graph.nodes)
        self.decidable = _decidable(graph)
        self.hides: dict[int, int] = {}
        """Float node -> a condition under which it is -inf."""
        for number, node in enumerate(graph.nodes):
            if node.op == "where" and (hidden := self._hides(*node.args)) is not None:
                self.hides[number] = hidden

    def _hides(self, condition: int, taken: int, other: int) -> int | None:
        """A condition under which ``where(condition, taken, other)`` is -inf."""
        parts = []
        for wanted, branch, otherwise in ((True, taken, other), (False, other, taken)):
            certain = self.implying(condition, wanted)
            inner = self.hides.get(branch)
            if self._is_minus_inf(branch):
                parts.append(certain)
            elif self._is_minus_inf(otherwise):
                parts.append(inner)
            else:
                parts.append(self._both(certain, inner))
        return self._either(*parts)

    def implying(self, number: int, wanted: bool) -> int | None:
        """A decidable condition under which the truth value is ``wanted``."""
        node = self.builder.nodes[number]
        if self.decidable[number]:
            return number if wanted else self.builder.add("logical_not", number)
        if node.op == "logical_not":
            return self.implying(node.args[0], not wanted)
        if node.op in ("logical_and", "logical_or"):
            parts = [self.implying(arg, wanted) for arg in node.args]
            # either is enough for an or that holds, and for an and that does not
            return (self._either if (node.op == "logical_or") == wanted else self._both)(*parts)
        if node.op == "equal" and wanted:
            for score, infinity in (node.args, node.args[::-1]):
                if self._is_minus_inf(infinity):
                    return self.hides.get(score)
        return None

    def _either(self, a: int | None, b: int | None) -> int | None:
        if a is None or b is None:
            return b if a is None else a
        return self.builder.add("logical_or", a, b)

    def _both(self, a: int | None, b: int | None) -> int | None:
        return None if a is None or b is None else self.builder.add("logical_and", a, b)

    def _is_minus_inf(self, number: int) -> bool:
        node = self.builder.nodes[number]
        return node.op == "literal" and node.attr == -math.inf


def _decidable(graph: Graph) -> list[bool]:
    """Which nodes interval analysis may decide: free of the score, and of gathers without a range table."""
    varies, found = varying(graph), list[bool]()
    for node in graph.nodes:
        unknown = node.op == "gather" and len(varying_dimensions(node, varies)) > MOST_VARYING
        found.append(node.op != "score" and not unknown and all(found[arg] for arg in node.args))
    return found
