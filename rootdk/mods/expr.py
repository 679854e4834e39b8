"""Score and mask functions as data: the closed table of operations, and the graph that holds one function.

A graph is a straight line of nodes, each naming earlier ones by number, so every pass over it is one loop and its key
is one tuple. It holds no values: a number that the user's function captured is a ``constant`` slot, an array a
``gather`` of an array slot. Two functions that differ only in captured values are the same graph, hence the same
compiled kernel.

An operation has one meaning per file: its NumPy value (evaluate), its range over intervals (bounds), its derivative
(derivative) and its machine code (codegen.lower_expr). ``tests/mods/test_tables.py`` holds the tables complete.
"""

from dataclasses import dataclass, field

from rootdk.dtypes import DType, Kind

__all__ = ["INDICES", "OPS", "ArraySpec", "Graph", "GraphBuilder", "Node", "Op"]

INDICES = ("b", "h", "q", "kv")
"""The index leaves: flat batch, query head, query row, key row; all 64-bit integers."""


@dataclass(frozen=True, slots=True)
class Op:
    """One row of the operation table."""

    name: str
    arity: int | None
    """How many arguments; None where it varies (gather: one per array dimension)."""
    result: str
    """bool, int or float; or "promote": the widest kind among the value arguments, at least int."""


def _rows(result: str, arity: int, names: str) -> list[Op]:
    return [Op(name, arity, result) for name in names.split()]


OPS: dict[str, Op] = {
    op.name: op
    for op in [
        # leaves: the score; an index named by attr; a structural literal (True, False, inf, -inf, nan) in attr;
        # a captured number: slot attr of the constants
        Op("score", 0, "float"),
        Op("index", 0, "int"),
        Op("literal", 0, "attr"),
        Op("constant", 0, "attr"),
        # element of array slot attr; one integer argument per dimension; negative counts from the end
        Op("gather", None, "array"),
        # arithmetic on int or float; floor_divide and remainder floor as Python does
        *_rows("promote", 2, "add subtract multiply floor_divide remainder minimum maximum"),
        *_rows("promote", 1, "negative absolute"),
        *_rows("int", 2, "shift_left shift_right bit_and bit_or bit_xor"),
        *_rows("int", 1, "bit_not"),
        *_rows("float", 2, "divide power"),
        # comparisons promote their arguments first; a NaN compares false, and unequal
        *_rows("bool", 2, "equal not_equal less less_equal"),
        *_rows("bool", 2, "logical_and logical_or logical_xor"),
        *_rows("bool", 1, "logical_not is_nan"),
        # where(condition, a, b) selects: the branch not taken can hold anything
        Op("where", 3, "promote"),
        *_rows("float", 1, "to_float"),
        *_rows("int", 1, "to_int"),  # truncates a float
        *_rows("bool", 1, "to_bool"),  # != 0
        *_rows("float", 1, "exp exp2 expm1 log log2 log1p sqrt tanh sigmoid sin cos erf"),
        *_rows("float", 1, "floor ceil round trunc"),  # round: halves to even
    ]
}


@dataclass(frozen=True, slots=True)
class Node:
    """One operation applied to earlier nodes."""

    op: str
    args: tuple[int, ...]
    kind: Kind
    attr: bool | int | float | str | None = None


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What the code of a gather depends on; shape, strides and pointer come at call time."""

    dtype: DType
    rank: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A score function, a mask, or both, over shared nodes; hashable, and the mods' part of a kernel's key."""

    nodes: tuple[Node, ...] = ()
    score: int | None = None
    """Node of the modified score, a float; None leaves the score as it is."""
    mask: int | None = None
    """Node that is True where the pair is visible; None shows every pair."""
    arrays: tuple[ArraySpec, ...] = ()
    constants: tuple[Kind, ...] = ()

    @property
    def may_hide(self) -> bool:
        """Some score can become -inf: by the mask, or by what the score function returns."""
        return self.mask is not None or self.score is not None


@dataclass
class GraphBuilder:
    """Grows the nodes of one graph; equal nodes are one node."""

    nodes: list[Node] = field(default_factory=list)
    _numbers: dict[Node, int] = field(default_factory=dict)

    def add(self, op: str, *args: int, attr: bool | int | float | str | None = None, kind: Kind | None = None) -> int:
        """The number of the node ``op(*args)``; ``kind`` only for constant and gather, as nothing else tells theirs."""
        node = Node(op, args, kind or self._kind(op, args, attr), attr)
        if node not in self._numbers:
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[node]

    def kind(self, number: int) -> Kind:
        return self.nodes[number].kind

    def _kind(self, op: str, args: tuple[int, ...], attr: object) -> Kind:
        result = OPS[op].result
        if result == "attr":
            return Kind.BOOL if isinstance(attr, bool) else Kind.INT if isinstance(attr, int) else Kind.FLOAT
        if result != "promote":
            return Kind(result)
        kinds = {self.kind(arg) for arg in (args[1:] if op == "where" else args)}
        if kinds == {Kind.BOOL} and op == "where":
            return Kind.BOOL
        return Kind.FLOAT if Kind.FLOAT in kinds else Kind.INT
