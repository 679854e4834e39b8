"""scaled_dot_product_attention as a torch operator: for torch.compile, torch.export, torch.func and counters of FLOPs.

``query``, ``key`` and ``value`` are [..., heads, len, d] and agree in all but heads; ``causal`` is an alignment, or "".
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from rootdk.frontends.torch.arguments import Options, accumulator
from rootdk.frontends.torch.bound_call import bind_call
from rootdk.frontends.torch.calls import attend
from rootdk.masks import causal as causal_mask
from rootdk.mods.values import as_mask

__all__ = [
    "backward",
    "batch_first",
    "batched",
    "batched_backward",
    "empty_output",
    "forward",
    "options",
    "save",
    "under",
]


def _forward(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, seed: Tensor | None, dropout_p: float,
    causal: str, scale: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output, in torch's strides, and LSE."""
    output = empty_output(query, key, value, dropout_p)
    with torch.no_grad():
        given = options(attn_mask, seed, dropout_p, causal, scale)
        _, lse = attend((query, key, value), given, output=output, return_lse=True)
    assert lse is not None
    return output, lse


def _backward(
    grad_output: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
    seed: Tensor | None, output: Tensor, lse: Tensor, dropout_p: float, causal: str, scale: float | None,
    masked: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key, value and, if ``masked``, of attn_mask (else an empty tensor)."""
    given = options(attn_mask, seed, dropout_p, causal, scale)
    call = bind_call((query, key, value), given)
    tensors: tuple[Tensor, ...] = (query, key, value)
    slots: tuple[int, ...] = ()
    if masked:
        assert attn_mask is not None and call.bound.operands.bias is not None
        tensors, slots = (*tensors, attn_mask), (call.bound.operands.bias,)
    found = call.pull_back(tensors, slots, (output, lse), (grad_output, grad_lse))
    grad_query, grad_key, grad_value, *rest = (gradient.contiguous() for gradient in found)
    return grad_query, grad_key, grad_value, rest[0] if rest else query.new_empty(0)


def options(
    attn_mask: Tensor | None, seed: Tensor | None, dropout_p: float, causal: str, scale: float | None
) -> Options:
    mask: Any = causal_mask(align=causal) if causal else None
    bias = attn_mask
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        bias, mask = None, attn_mask if mask is None else as_mask(attn_mask) & mask
    number = None if seed is None else int(seed.item())
    return Options(mask=mask, bias=bias, scale=scale, dropout_p=dropout_p, seed=number)


def empty_output(query: Tensor, key: Tensor, value: Tensor, dropout_p: float) -> Tensor:
    """Uninitialised, with the strides of torch's output."""
    if fused(query, key, value, dropout_p):
        return torch.empty_like(query)
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


def fused(query: Tensor, key: Tensor, value: Tensor, dropout_p: float) -> bool:
    """Whether torch takes its fused path, which gives the output query's order of dimensions in memory."""
    fits = query.ndim == 4 and value.shape[-1] == query.shape[-1] and not dropout_p and bool(key.shape[-2])
    return fits and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1


def _fake(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, seed: Tensor | None, dropout_p: float,
    causal: str, scale: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    lse = query.new_empty(query.shape[:-1], dtype=accumulator(query.dtype))
    return empty_output(query, key, value, dropout_p), lse


def _fake_backward(
    grad_output: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
    seed: Tensor | None, output: Tensor, lse: Tensor, dropout_p: float, causal: str, scale: float | None,
    masked: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    grads = [tensor.new_empty(tensor.shape) for tensor in (query, key, value)]
    assert not masked or attn_mask is not None
    last = attn_mask.new_empty(attn_mask.shape) if masked and attn_mask is not None else query.new_empty(0)
    return grads[0], grads[1], grads[2], last


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, attn_mask, seed, *ctx.rest = inputs
    ctx.masked = ctx.needs_input_grad[3]
    ctx.save_for_backward(query, key, value, attn_mask, seed, *output)


def _pull_back(ctx: Any, grad_output: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, output, lse = ctx.saved_tensors
    grads = backward(grad_output, grad_lse, *inputs, output, lse, *ctx.rest, ctx.masked)
    return *grads[:3], grads[3] if ctx.masked else None, None, None, None, None


def batched(call: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
    """``call``, which is like ``forward``, with the mapped dimension in front; and where its results have it."""
    query, key, value, attn_mask = batch_first(info.batch_size, in_dims[:4], inputs[:4])
    return call(query, key, value, under(attn_mask, query.ndim), *inputs[4:]), (0, 0)


def batched_backward(call: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
    """The same for what is like ``backward``: each gradient has the batch, whether or not its input had it."""
    *first, attn_mask = batch_first(info.batch_size, in_dims[:6], inputs[:6])
    results = batch_first(info.batch_size, in_dims[7:9], inputs[7:9])
    masked = inputs[-1]
    *grads, last = call(*first, under(attn_mask, first[2].ndim), inputs[6], *results, *inputs[9:])
    return (*grads, last.reshape(attn_mask.shape) if masked else last), (0, 0, 0, 0 if masked else None)


def batch_first(size: int, in_dims: tuple[Any, ...], tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """``tensors`` with the mapped dimension in front, which those that lack it get too, with stride 0."""
    return tuple(
        None if tensor is None else tensor.expand(size, *tensor.shape) if place is None else tensor.movedim(place, 0)
        for tensor, place in zip(tensors, in_dims, strict=True)
    )


def under(mask: Tensor | None, ndim: int) -> Tensor | None:
    """A mask with the batch in front, so that its other dimensions still count from the right."""
    return mask if mask is None else mask.reshape(mask.shape[0], *(1,) * (ndim - mask.ndim), *mask.shape[1:])


def _flops(query: list[int], key: list[int], value: list[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Of all pairs, visible or not, as torch counts: a product of d_k and one of d_v."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _backward_flops(
    grad_output: Any,
    grad_lse: Any,
    query: list[int],
    key: list[int],
    value: list[int],
    *_: Any,
    out_shape: Any = None,
    **__: Any,
) -> int:
    """Three products of d_k (scores, and gradients of query and key) and two of d_v."""
    return 2 * math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


forward = torch.library.custom_op("rootdk::scaled_dot_product_attention", _forward, mutates_args=(), device_types="cpu")
forward.register_fake(_fake)
forward.register_autograd(_pull_back, setup_context=save)
forward.register_vmap(partial(batched, forward))
register_flop_formula(torch.ops.rootdk.scaled_dot_product_attention)(_flops)

backward = torch.library.custom_op(
    "rootdk::scaled_dot_product_attention_backward", _backward, mutates_args=(), device_types="cpu"
)
backward.register_fake(_fake_backward)
backward.register_vmap(partial(batched_backward, backward))
register_flop_formula(torch.ops.rootdk.scaled_dot_product_attention_backward)(_backward_flops)
