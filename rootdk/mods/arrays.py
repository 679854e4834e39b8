"""Captured arrays and gathered rows: several numbers of one pair, read only where something asks for one of them.

An ``Array`` is a shape and a way to read the element at an index. Indexing, slicing and element-wise functions give
another Array around it, so ``table.exp()[h]`` reads and exponentiates one element, and a learned table keeps its
gradient whatever is done to it before it is indexed.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rootdk.dtypes import Kind
from rootdk.mods.promotion import kind_of, rule
from rootdk.mods.refusals import refuse
from rootdk.mods.symbols import Sym, Symbolic, apply

if TYPE_CHECKING:
    from rootdk.mods.trace import Tracer

__all__ = ["Array", "Element", "Index", "Written", "fold", "stack"]

UNROLLED = 4096
"""Elements that a sum over a row may have: each is compiled on its own."""

Index = tuple[Sym | int, ...]


class Element(int):
    """An index that unrolling a row made: part of the graph's shape, so two that are equal are one constant."""


class Written(int):
    """An index that the user wrote: it equals only itself, as the graph must not depend on which numbers are equal."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Array(Symbolic):
    """Elements of a captured array, or computed from them, for one pair."""

    __slots__ = ("_elements", "_read", "kind", "shape")

    def __init__(self, tracer: "Tracer", shape: Sequence[int], kind: Kind, read: Callable[[Index], Any]) -> None:
        self.tracer = tracer
        self.shape = tuple(shape)
        self.kind = kind
        self._read = read
        self._elements: dict[tuple[Any, ...], Any] = {}

    def read(self, at: Index) -> Any:
        """The element at ``at``, made once: x = x * x, ten times over, would otherwise read 1024."""
        if any(type(position) is int for position in at):  # computed of an index that the user wrote
            return self._read(at)
        key = tuple((position.node,) if isinstance(position, Sym) else position for position in at)
        if key not in self._elements:
            self._elements[key] = self._read(at)
        return self._elements[key]

    def __repr__(self) -> str:
        return f"<{self.kind.value} array {list(self.shape)} of a pair>"

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[Element(position)] for position in range(len(self)))

    def __bool__(self) -> bool:
        raise refuse("a captured array has no single truth value", "index it, or ask for .any() or .all()")

    def __getitem__(self, index: Any) -> Any:
        items = _expand(index if isinstance(index, tuple) else (index,), len(self.shape))
        shape: list[int] = []
        picks: list[Callable[[Index], Sym | int]] = []
        gathers = 0
        for item in items:
            if item is None:
                shape.append(1)
                continue
            size = self.shape[len(picks)]
            if isinstance(item, slice):
                steps = range(size)[item]
                picks.append(_sliced(len(shape), steps, size))
                shape.append(len(steps))
                continue
            position = _position(self.tracer.operand(item), size)
            if isinstance(position, Array):
                gathers += 1
                picks.append(_gathered(position, len(shape)))
                shape.extend(position.shape)
            else:
                picks.append(_constant(position))
        if gathers > 1:
            raise refuse("an array was indexed by several rows of indices", "index by one row, or by numbers")
        read = self.read
        return _array(self.tracer, shape, self.kind, lambda at: read(tuple(pick(at) for pick in picks)))

    def elementwise(self, op: str, values: Sequence[Any]) -> "Array":
        """``op`` element by element over ``values``, of which ``self`` is one, broadcast as NumPy does."""
        shape: tuple[int, ...] = ()
        for value in values:
            shape = _broadcast(shape, getattr(value, "shape", ()))
        _, kinds, kind = rule(op, tuple(kind_of(value) for value in values))
        pairs = zip(values, kinds, strict=True)
        # a number becomes one constant here, not one for each element that is read
        operands = [value if isinstance(value, Symbolic) else self.tracer.symbol(value, kind) for value, kind in pairs]
        return Array(self.tracer, shape, kind, lambda at: apply_at(op, operands, at))

    def permuted(self, order: Sequence[int]) -> "Array":
        """The array with its dimensions in another order."""
        read = self.read
        inverse = [order.index(axis) for axis in range(len(order))]
        return Array(self.tracer, [self.shape[axis] for axis in order], self.kind, lambda at: read(_pick(at, inverse)))

    def reshaped(self, shape: Sequence[int]) -> Any:
        """The same elements, in row-major order, under another shape; one size may be -1."""
        known = math.prod(size for size in shape if size != -1)
        shape = [len_ if len_ != -1 else math.prod(self.shape) // max(known, 1) for len_ in shape]
        if math.prod(shape) != math.prod(self.shape):
            raise refuse(f"an array of shape {self.shape} cannot become {tuple(shape)}", "their sizes must agree")
        read, old = self.read, self.shape

        def element(at: Index) -> Any:
            flat: Any = 0
            for position, size in zip(at, shape, strict=True):
                flat = flat * size + position
            index: list[Any] = []
            for size in reversed(old):
                index.append(flat % size)
                flat = flat // size
            return read(tuple(reversed(index)))

        return _array(self.tracer, shape, self.kind, element)


def apply_at(op: str, values: Sequence[Any], at: Index) -> Any:
    """``op`` on the elements of ``values`` that broadcasting puts at index ``at``."""
    return apply(op, *(_element(value, at) for value in values))


def _element(value: Any, at: Index) -> Any:
    if not isinstance(value, Array):
        return value
    last = at[len(at) - len(value.shape) :]
    return value.read(tuple(Element(0) if size == 1 else index for size, index in zip(value.shape, last, strict=True)))


def _array(tracer: "Tracer", shape: Sequence[int], kind: Kind, read: Callable[[Index], Any]) -> Any:
    return Array(tracer, shape, kind, read) if shape else read(())


def _expand(items: tuple[Any, ...], rank: int) -> list[Any]:
    """One item for each of ``rank`` dimensions, ``...`` and missing ones written out, with None where one is new."""
    given = sum(1 for item in items if item is not None and item is not Ellipsis)
    if given > rank:
        raise refuse(f"an array of {rank} dimensions got {given} indices", "give one index for each dimension")
    whole = [slice(None)] * (rank - given)
    for place, item in enumerate(items):
        if item is Ellipsis:
            return [*items[:place], *whole, *items[place + 1 :]]
    return [*items, *whole]


def _position(item: Any, size: int) -> Any:
    kind = kind_of(item)
    if kind is Kind.BOOL:
        raise refuse("an array was indexed by a boolean", "select with where(condition, a, b), or index by integers")
    if kind is Kind.FLOAT:
        raise refuse(
            "an array was indexed by a float", "convert the index: .long() in torch style, .astype(int) in NumPy style"
        )
    if isinstance(item, Symbolic | Element):
        return item
    # a negative number counts from the end here and now, so that views of views agree on what it means
    return Written(item + size if -size <= item < 0 else item)


def _constant(position: Sym | int) -> Callable[[Index], Sym | int]:
    return lambda at: position


def _gathered(rows: Array, axis: int) -> Callable[[Index], Any]:
    return lambda at: rows.read(at[axis : axis + len(rows.shape)])


def _sliced(axis: int, steps: range, size: int) -> Callable[[Index], Any]:
    if steps == range(size):
        return lambda at: at[axis]

    def pick(at: Index) -> Any:
        index: Any = at[axis]
        if isinstance(index, Symbolic):
            index = apply("where", index < 0, index + len(steps), index)
        return index * steps.step + steps.start

    return pick


def _pick(at: Index, order: Sequence[int]) -> Index:
    return tuple(at[axis] for axis in order)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    shape = []
    for one, other in pairs:
        if one != other and 1 not in (one, other):
            raise refuse(f"arrays of shapes {a} and {b} do not broadcast", "index them to numbers, or to one shape")
        shape.append(other if one == 1 else one)
    return tuple(shape)


def fold(array: Any, op: str, axes: int | Sequence[int] | None, keepdims: bool) -> Any:
    """``op`` between all elements along ``axes`` (None: all of them), in order."""
    if not isinstance(array, Array):
        raise refuse(
            "this reduces one number per pair; what it would reduce, the keys of a row, a mod never sees together",
            "only rows of captured arrays can be summed; softmax comes after the mod",
        )
    rank = len(array.shape)
    wanted = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
    reduced = sorted({axis % rank for axis in wanted})
    count = math.prod(array.shape[axis] for axis in reduced)
    if not 0 < count <= UNROLLED:
        raise refuse(
            f"this reduces {count} elements of a captured array inside the mod, and 1 to {UNROLLED} can be",
            "reduce it before, outside the function, and capture the result",
        )
    places = list(itertools.product(*(map(Element, range(array.shape[axis])) for axis in reduced)))
    kept = [axis for axis in range(rank) if axis not in reduced]

    def element(at: Index) -> Any:
        outer = dict(zip(kept, (at[axis] for axis in kept) if keepdims else at, strict=True))
        total = None
        for place in places:
            inner = {**outer, **dict(zip(reduced, place, strict=True))}
            value = array.read(tuple(inner[axis] for axis in range(rank)))
            total = value if total is None else apply(op, total, value)
        return total

    shape = [1 if axis in reduced else size for axis, size in enumerate(array.shape) if keepdims or axis in kept]
    return _array(array.tracer, shape, rule(op, (array.kind, array.kind))[2], element)


def stack(values: Sequence[Any], tracer: "Tracer") -> Array:
    """An Array of numbers of one pair, in a new first dimension."""
    parts = [tracer.operand(value) for value in values]
    shapes = {getattr(part, "shape", ()) for part in parts}
    if len(shapes) != 1:
        raise refuse("only values of one shape stack", "stack numbers with numbers, rows with rows")
    kind = rule("where", (Kind.BOOL, kind_of(parts[0]), kind_of(parts[0])))[2]
    for part in parts[1:]:
        kind = rule("where", (Kind.BOOL, kind, kind_of(part)))[2]

    def read(at: Index) -> Any:
        if not isinstance(at[0], int):
            raise refuse("a list of values was indexed by one that differs for every pair", "make it a captured array")
        return tracer.convert(_element(parts[at[0]], at[1:]), kind)

    return Array(tracer, (len(parts), *next(iter(shapes))), kind, read)
