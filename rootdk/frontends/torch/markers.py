"""What Dynamo sees of a call: tensors of no dimensions that stand for a pair, and functions that mark what is theirs.

Dynamo runs these functions for the shapes of what they return, and for what it depends on. Nobody else runs them: in
its graph ``interpret`` takes their place.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rootdk.frontends.torch.arguments import accumulator
from rootdk.frontends.torch.operators import empty_output

__all__ = ["INDICES", "Indexing", "call", "ready_made", "symbol"]

INDICES = ("b", "h", "q", "kv")


@torch._dynamo.allow_in_graph  # type: ignore[untyped-decorator]
def symbol(name: str, dtype: torch.dtype) -> Tensor:
    """The score of a pair with inputs of ``dtype``, or the index that is called ``name``."""
    return torch.empty((), dtype=torch.int64 if name in INDICES else accumulator(dtype))


@torch._dynamo.allow_in_graph  # type: ignore[untyped-decorator]
def ready_made(
    symbols: Sequence[Tensor], module: str, constructor: str, words: str, arrays: Sequence[Tensor],
    whole: Sequence[int], real: Sequence[float],
) -> Tensor:  # fmt: skip
    """What a ready-made mask or score gives for ``symbols``: (score,) b, h, q, kv.

    ``words`` are the arguments: "array", "int" and "float" for the next of those lists, "None", or a string itself.
    """
    if len(symbols) == len(INDICES):
        return torch.empty((), dtype=torch.bool)
    return _depending(torch.empty((), dtype=symbols[0].dtype), symbols[0], *arrays)


@torch._dynamo.allow_in_graph  # type: ignore[untyped-decorator]
def call(
    query: Tensor, key: Tensor, value: Tensor, score: Tensor | None, visible: Tensor | None, bias: Tensor | None,
    sinks: Tensor | None, seed: Tensor | None, dropout_p: float, scale: float | None, memory: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output and LSE, by the score and the visibility that were computed of the symbols."""
    lse = query.new_empty(query.shape[:-1], dtype=accumulator(query.dtype))
    tensors = query, key, value, score, bias, sinks
    return _depending(empty_output(query, value, memory), *tensors), _depending(lse, *tensors)


def _depending(result: Tensor, *tensors: Tensor | None) -> Tensor:
    """``result`` as autograd and transforms of torch.func take it that is computed of ``tensors``."""
    for tensor in tensors:
        if tensor is not None and tensor.is_floating_point():
            result = result + tensor.sum().to(result.dtype)
    return result


class Indexing(TorchFunctionMode):  # type: ignore[misc]  # untyped where torch isn't installed
    """Inside it, a tensor of no dimensions that is an index is not asked for its value, which those of a pair lack."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Dynamo names it by either, depending on where the tensor comes from
        if function is Tensor.__getitem__ or function is operator.getitem:
            array, index = args
            items = list(index) if isinstance(index, tuple) else [index]
            if any(isinstance(item, Tensor) and item.ndim == 0 and item.dtype is not torch.bool for item in items):
                return _picked(array, items)
        return function(*args, **(kwargs or {}))


def _picked(array: Tensor, items: list[Any]) -> Tensor:
    """``array[items]``, taken apart: what is no tensor first, then the tensors."""
    if not any(item is Ellipsis for item in items):
        items.append(Ellipsis)
    place = next(at for at, item in enumerate(items) if item is Ellipsis)
    given = sum(1 for item in items if item is not None and item is not Ellipsis)
    items[place : place + 1] = [slice(None)] * (array.ndim - given)
    tensors = [item if isinstance(item, Tensor) else None for item in items if not isinstance(item, int)]
    plain = tuple(slice(None) if isinstance(item, Tensor) else item for item in items)
    found: Tensor = torch.ops.aten.index.Tensor(array[plain], tensors)
    return found
