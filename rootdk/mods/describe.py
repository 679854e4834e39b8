"""Expressions as text that a person can read: ``kv <= q``, ``ids[q] == ids[kv]``."""

from collections.abc import Sequence

from rootdk.mods.expr import Graph, Node

__all__ = ["describe"]

# operation -> (symbol, how tightly it binds), as in Python
_INFIX = {
    "logical_or": ("|", 1), "logical_xor": ("^", 2), "logical_and": ("&", 3),
    "equal": ("==", 4), "not_equal": ("!=", 4), "less": ("<", 4), "less_equal": ("<=", 4),
    "bit_or": ("|", 5), "bit_xor": ("^", 6), "bit_and": ("&", 7), "shift_left": ("<<", 8), "shift_right": (">>", 8),
    "add": ("+", 9), "subtract": ("-", 9),
    "multiply": ("*", 10), "divide": ("/", 10), "floor_divide": ("//", 10), "remainder": ("%", 10),
    "power": ("**", 12),
}  # fmt: skip
_PREFIX = {"negative": "-", "bit_not": "~", "logical_not": "~"}
_PREFIX_BINDS, _ATOM = 11, 13
_NOT_ASSOCIATIVE = {"subtract", "divide", "floor_divide", "remainder", "shift_left", "shift_right"}


def describe(graph: Graph, number: int, constants: Sequence[float] = (), names: Sequence[str] = ()) -> str:
    """Node ``number`` of ``graph`` in Python's notation; ``constants`` by value, arrays by ``names``, where given.

    Truth values combine with ``& | ~`` and comparisons stand in brackets inside them, as in a mask function. Casts,
    which the tracer adds, are left out, and so is a zero that is added, as of queries that start at the first key.
    """
    # text and binding strength of each node; a straight line of nodes needs no recursion, however deep it nests
    found: list[tuple[str, int]] = []
    for node in graph.nodes[: number + 1]:
        found.append(_text(node, [found[arg] for arg in node.args], constants, names))
    return found[number][0]


def _text(node: Node, args: list[tuple[str, int]], constants: Sequence[float], names: Sequence[str]) -> tuple[str, int]:
    if node.op in ("add", "subtract") and args[1][0] == "0":
        return args[0]
    if node.op in _INFIX:
        symbol, binds = _INFIX[node.op]
        # chained comparisons mean something else in Python, and & binds tighter than they do
        inner = _ATOM if binds <= 4 and _of_truths(node) else binds + (binds == 4)
        left = _bracketed(args[0], inner if node.op != "power" else binds + 1)
        right = _bracketed(args[1], inner + (node.op in _NOT_ASSOCIATIVE))
        return f"{left} {symbol} {right}", binds
    if node.op in _PREFIX:
        return _PREFIX[node.op] + _bracketed(args[0], _PREFIX_BINDS), _PREFIX_BINDS
    if node.op.startswith("to_"):
        return args[0]
    plain = ", ".join(text for text, _ in args)
    if node.op == "gather":
        return (f"{_named(node, names, 'array')}[{plain}]" if args else _named(node, names, "array")), _ATOM
    if node.op == "constant":
        text = _named(node, [f"{value:g}" if isinstance(value, float) else str(value) for value in constants], "c")
        return text, _PREFIX_BINDS if text.startswith("-") else _ATOM
    if node.op in ("index", "literal"):
        return str(node.attr), _ATOM
    name = "abs" if node.op == "absolute" else node.op
    return (f"{name}({plain})" if args else name), _ATOM


def _of_truths(node: Node) -> bool:
    return node.op.startswith("logical_")


def _bracketed(text: tuple[str, int], binds: int) -> str:
    return text[0] if text[1] >= binds else f"({text[0]})"


def _named(node: Node, names: Sequence[str], fallback: str) -> str:
    assert isinstance(node.attr, int)
    return names[node.attr] if node.attr < len(names) else f"{fallback}{node.attr}"
