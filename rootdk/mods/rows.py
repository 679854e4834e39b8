"""Functions of gathered rows: sums, products, norms, and changes of shape. Parameters as in torch and in NumPy."""

from collections.abc import Sequence
from typing import Any

from rootdk.dtypes import Kind
from rootdk.mods import lang
from rootdk.mods.arrays import Array, fold, stack
from rootdk.mods.conversions import to_bool, to_float
from rootdk.mods.promotion import kind_of
from rootdk.mods.refusals import refuse
from rootdk.mods.symbols import Sym, Symbolic

Axes = int | Sequence[int] | None


def _axes(dim: Axes, axis: Axes) -> Axes:
    return axis if dim is None else dim


def sum_(
    input: Any, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False, dtype: Any = None
) -> Any:
    """The sum along ``dim``; of booleans, how many are True."""
    return fold(_numbers(input), "add", _axes(dim, axis), keepdim or keepdims)


def prod(
    input: Any, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False, dtype: Any = None
) -> Any:
    return fold(_numbers(input), "multiply", _axes(dim, axis), keepdim or keepdims)


def mean(
    input: Any, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False, dtype: Any = None
) -> Any:
    total = fold(to_float(_row(input)), "add", _axes(dim, axis), keepdim or keepdims)
    before, after = _count(input), _count(total)
    return total / float(before // after)


def any_(input: Any, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False) -> Any:
    return fold(to_bool(_row(input)), "logical_or", _axes(dim, axis), keepdim or keepdims)


def all_(input: Any, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False) -> Any:
    return fold(to_bool(_row(input)), "logical_and", _axes(dim, axis), keepdim or keepdims)


def amax(input: Any, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False) -> Any:
    return fold(input, "maximum", _axes(dim, axis), keepdim or keepdims)


def amin(input: Any, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False) -> Any:
    return fold(input, "minimum", _axes(dim, axis), keepdim or keepdims)


def max_(input: Any, other: Any = None, *, axis: Axes = None) -> Any:
    """torch's max: of two values, or of a row."""
    if isinstance(other, Symbolic | float):
        return lang.maximum(input, other)
    return amax(input, _axes(other, axis))


def min_(input: Any, other: Any = None, *, axis: Axes = None) -> Any:
    """torch's min: of two values, or of a row."""
    if isinstance(other, Symbolic | float):
        return lang.minimum(input, other)
    return amin(input, _axes(other, axis))


def dot(input: Any, other: Any, out: None = None) -> Any:
    """The sum of products of two rows."""
    if not (_rank(input) == _rank(other) == 1):
        return matmul(input, other)
    if input.shape != other.shape:
        raise refuse(f"a dot product of rows of {input.shape[0]} and {other.shape[0]} elements", "they must agree")
    return sum_(input * other)


def matmul(input: Any, other: Any) -> Any:
    """The product of vectors and matrices."""
    if 0 in (_rank(input), _rank(other)):
        if _rank(input) == _rank(other) == 0:
            raise refuse("a matrix product of numbers", "write a * b")
        return input * other
    if _rank(other) == 1:
        return sum_(input * other, dim=-1)
    if _rank(input) == 1:
        return sum_(input.unsqueeze(-1) * other, dim=-2)
    return sum_(input.unsqueeze(-1) * other.unsqueeze(-3), dim=-2)


def norm(input: Any, p: Any = 2, dim: Axes = None, keepdim: bool = False, *, ord: Any = None, axis: Axes = None) -> Any:
    """The length of a row; ``p`` or ``ord`` 1, 2 or inf."""
    order = p if ord is None else ord
    if order == 1:
        return sum_(lang.absolute(_row(input)), _axes(dim, axis), keepdim)
    if order in (2, "fro"):
        real = to_float(_row(input))
        return lang.sqrt(sum_(real * real, _axes(dim, axis), keepdim))
    if order == float("inf"):
        return amax(lang.absolute(_row(input)), _axes(dim, axis), keepdim)
    raise refuse(f"a norm of order {order}", "write it out with abs(), ** and sum()")


def _row(input: Any) -> Any:
    # a number per pair is left for fold to refuse
    return input if isinstance(input, Array) else fold(input, "add", None, False)


def _numbers(input: Any) -> Any:
    return input * 1 if isinstance(input, Array) and input.kind is Kind.BOOL else input


def _rank(value: Any) -> int:
    return len(getattr(value, "shape", ()))


def _count(value: Any) -> int:
    count = 1
    for size in getattr(value, "shape", ()):
        count *= size
    return count


def size(input: Any, dim: int | None = None) -> Any:
    """The shape, or one size of it."""
    return input.shape if dim is None else input.shape[dim]


def unsqueeze(input: Any, dim: int) -> Any:
    """A new dimension of size 1. A number per pair stays as it is: it broadcasts."""
    if isinstance(input, Sym):
        return input
    at = dim % (len(input.shape) + 1)
    return input[(slice(None),) * at + (None,)]


def squeeze(input: Any, dim: Axes = None, *, axis: Axes = None) -> Any:
    """Without dimensions of size 1."""
    wanted = _axes(dim, axis)
    rank = _rank(input)
    axes = range(rank) if wanted is None else [wanted] if isinstance(wanted, int) else wanted
    dropped = {at % rank for at in axes} if rank else set()
    return input[tuple(0 if at in dropped and input.shape[at] == 1 else slice(None) for at in range(rank))]


def permute(input: Any, *dims: Any) -> Any:
    """The dimensions in another order; by default reversed."""
    rank = _rank(input)
    order = tuple(dims[0]) if len(dims) == 1 and not isinstance(dims[0], int) else dims
    order = tuple(at % rank for at in order) or tuple(reversed(range(rank)))
    return input.permuted(order) if rank else input


def transpose(input: Any, dim0: Any = None, dim1: int | None = None, *, axes: Any = None) -> Any:
    """torch's transpose(i, j), or NumPy's transpose(order)."""
    if dim1 is None:
        order = axes if dim0 is None else dim0
        return permute(input) if order is None else permute(input, order)
    order = list(range(_rank(input)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(input, order)


def reshape(input: Any, *shape: Any, order: str = "C") -> Any:
    """The same elements under another shape. A number per pair stays as it is."""
    if isinstance(input, Sym):
        return input
    return input.reshaped(tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape)


def flatten(input: Any, *_: Any) -> Any:
    return reshape(input, -1)


def take(input: Any, index: Any = None, axis: int | None = None, *, indices: Any = None, dim: int | None = None) -> Any:
    """The element at ``index`` along ``axis``, by default of the flattened array."""
    index, at = indices if index is None else index, dim if axis is None else axis
    if at is None:
        return flatten(input)[index]
    return input[(slice(None),) * (at % _rank(input)) + (index,)]


def item_at(input: Any, index: Any) -> Any:
    return input[index]


def embedding(input: Any, weight: Any, padding_idx: int | None = None, *_: Any, **__: Any) -> Any:
    """torch's table look-up."""
    return weight[input]


def stacked(tensors: Any, dim: int = 0, *, axis: int | None = None) -> Any:
    """Several values of one pair as a row."""
    at = dim if axis is None else axis
    first = next(value for value in tensors if isinstance(value, Symbolic))
    row = stack(tensors, first.tracer)
    if at % len(row.shape):
        raise refuse("only a new first dimension can be stacked", "index the values instead")
    return row


def is_float(input: Any) -> bool:
    """Whether the value is a float, as torch's is_floating_point tells."""
    return kind_of(input) is Kind.FLOAT
