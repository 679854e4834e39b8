"""The operators under vmap: the mapped dimension becomes a batch dimension in front, where nothing stands against it.

Each function takes the operator, or what is called like it, and gives its results and where they have the dimension.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from rootdk.frontends.torch.mod_text import is_dense
from rootdk.mods import graph_text

__all__ = ["backward", "forward", "looped"]


def forward(call: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
    """Of ``operators.forward``."""
    *_, sinks_at, seed_at = in_dims[:6]
    query, key, value, arrays, sinks, seed, mods, dropout_p, *rest = inputs
    # sinks are of all batch elements, and so is the pattern of dropout where the seed is
    if sinks_at is not None or seed_at is not None or dropout_p:
        return looped(call, info, in_dims, *inputs)
    places = tuple(in_dims[3])
    mods, arrays = _batched_mods(info.batch_size, (query, in_dims[0]), mods, arrays, places)
    tensors = _in_front(info.batch_size, (query, key, value), in_dims[:3])
    return call(*tensors, arrays, sinks, seed, mods, dropout_p, *rest), (0, 0)


def backward(call: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
    """Of ``operators.backward``: each gradient has the dimension, whether or not its tensor had it."""
    arrays, sinks, seed, output, lse, wanted, mods, dropout_p, scale = inputs[5:]
    if in_dims[6] is not None or in_dims[7] is not None or dropout_p or any(slot < 0 for slot in wanted):
        return looped(call, info, in_dims, *inputs)
    size, places = info.batch_size, list(in_dims[5])
    shapes = [tuple(_logical(arrays[slot], places[slot])) for slot in wanted]
    for slot in wanted:
        if places[slot] is None:
            arrays = [array.expand(size, *array.shape) if at == slot else array for at, array in enumerate(arrays)]
            places[slot] = 0
    mods, arrays = _batched_mods(size, (inputs[2], in_dims[2]), mods, arrays, tuple(places))
    first = _in_front(size, inputs[:5], in_dims[:5])
    results = _in_front(size, (output, lse), in_dims[8:10])
    grads = call(*first, arrays, sinks, seed, *results, wanted, mods, dropout_p, scale)
    captured = [grad.reshape(size, *shape) for grad, shape in zip(grads[3:], shapes, strict=True)]
    return [*grads[:3], *captured], [0] * len(grads)


def looped(call: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
    """One call for each place along the mapped dimension, its results stacked."""
    # lists of tensors have lists of places; whatever is no tensor is the same in every call
    flat, spec = pytree.tree_flatten(inputs)
    places = _spread(inputs, in_dims)
    found = []
    for number in range(info.batch_size):
        each = [item if at is None else item.select(at, number) for item, at in zip(flat, places, strict=True)]
        found.append(call(*pytree.tree_unflatten(each, spec)))
    stacked = pytree.tree_map(lambda *tensors: torch.stack(tensors), *found)
    return stacked, pytree.tree_map(lambda _: 0, stacked)


def _spread(inputs: Sequence[Any], in_dims: Sequence[Any]) -> list[int | None]:
    """Where each leaf of ``inputs`` has the mapped dimension."""
    found: list[int | None] = []
    for item, at in zip(inputs, in_dims, strict=True):
        if isinstance(item, list | tuple):
            found += _spread(item, at if isinstance(at, list | tuple) else [at] * len(item))
        else:
            found.append(at)
    return found


def _in_front(size: int, tensors: Sequence[Tensor | None], places: Sequence[int | None]) -> list[Any]:
    """``tensors`` with the mapped dimension in front, which those that lack it get too, with stride 0."""
    return [
        None if tensor is None else tensor.expand(size, *tensor.shape) if at is None else tensor.movedim(at, 0)
        for tensor, at in zip(tensors, places, strict=True)
    ]


def _logical(tensor: Tensor, at: int | None) -> Sequence[int]:
    """The shape of one element of ``tensor`` along its mapped dimension."""
    return tensor.shape if at is None else (*tensor.shape[:at], *tensor.shape[at + 1 :])


def _batched_mods(
    size: int, query: tuple[Tensor, int | None], mods: str, arrays: Sequence[Tensor], places: tuple[int | None, ...]
) -> tuple[str, list[Tensor]]:
    """The text and the arrays for one more batch dimension in front, which those arrays get that have ``places``."""
    shape = _logical(*query)
    if is_dense(mods):
        # a mask's other dimensions count from the right
        wide = zip(_in_front(size, arrays, places), arrays, places, strict=True)
        ranks = [(array, len(_logical(old, at))) for array, old, at in wide]
        return mods, [array.reshape(size, *(1,) * (len(shape) - rank), *array.shape[1:]) for array, rank in ranks]
    mapped = tuple(slot for slot, at in enumerate(places) if at is not None)
    moved = [array if at is None else array.movedim(at, 0) for array, at in zip(arrays, places, strict=True)]
    return graph_text.with_batch_in_front(mods, math.prod(shape[:-3]), mapped), moved
