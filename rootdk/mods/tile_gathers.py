"""Gathers that read a tile of an array as it lies: element (q, kv), times whatever is fixed within a tile.

A bias and a dense mask are read so. Lane by lane they would cost as many loads as there are scores; a kernel that knows
copies their tile at once, whole vectors at a time.
"""

from rootdk.dtypes import Kind
from rootdk.mods.expr import Graph
from rootdk.mods.ranges import varying

__all__ = ["tile_gathers"]


def tile_gathers(graph: Graph, proven: frozenset[int]) -> tuple[int, ...]:
    """The gathers of ``graph`` with one index that is q, one that is kv and the rest fixed, none out of range."""
    varies = varying(graph)

    def leaf(number: int) -> str | None:
        node = graph.nodes[number]
        return str(node.attr) if node.op == "index" else None

    found = []
    for number in sorted(proven):
        node = graph.nodes[number]
        moving = [leaf(arg) for arg in node.args if varies[arg]]
        if node.kind is not Kind.INT and sorted(map(str, moving)) == ["kv", "q"]:
            found.append(number)
    return tuple(found)
