"""The derivatives of ``operators`` as operators of their own: tangents, and gradients of gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rootdk.frontends.torch.arguments import accumulator
from rootdk.frontends.torch.bound_call import Call, bind_call
from rootdk.frontends.torch.operators import batch_first, options, under

__all__ = ["batched_double_backward", "batched_jvp", "double_backward", "jvp"]


def _jvp(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, tangent_query: Tensor | None,
    tangent_key: Tensor | None, tangent_value: Tensor | None, tangent_mask: Tensor | None, seed: Tensor | None,
    dropout_p: float, causal: str, scale: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Tangents of output and LSE."""
    call = bind_call((query, key, value), options(attn_mask, seed, dropout_p, causal, scale))
    slots = _slots(call, tangent_mask is not None)
    tangents = tangent_query, tangent_key, tangent_value, tangent_mask
    return call.push_forward((query, key, value), slots, tangents[: 3 + len(slots)])


def _double_backward(
    grad_output: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
    direction_query: Tensor | None, direction_key: Tensor | None, direction_value: Tensor | None,
    direction_mask: Tensor | None, seed: Tensor | None, dropout_p: float, causal: str, scale: float | None,
    masked: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of <directions, gradients> by grad_output, grad_lse, query, key, value (and mask, if ``masked``)."""
    call = bind_call((query, key, value), options(attn_mask, seed, dropout_p, causal, scale))
    slots = _slots(call, masked)
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    directions = direction_query, direction_key, direction_value, direction_mask
    count = 3 + len(slots)
    by_cotangents, by_tensors = call.pull_back_twice(
        tensors[:count], slots, (grad_output, grad_lse), directions[:count]
    )
    found = [gradient.contiguous() for gradient in (*by_cotangents, *by_tensors)]
    return found[0], found[1], found[2], found[3], found[4], found[5] if masked else query.new_empty(0)


def _slots(call: Call, masked: bool) -> tuple[int, ...]:
    """The bias, where the mask that is one moves."""
    if not masked:
        return ()
    assert call.bound.operands.bias is not None
    return (call.bound.operands.bias,)


def _fake_jvp(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    output = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return output, query.new_empty(query.shape[:-1], dtype=accumulator(query.dtype))


def _fake_double_backward(
    grad_output: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    last = attn_mask if rest[-1] and attn_mask is not None else query.new_empty(0)
    found = [tensor.new_empty(tensor.shape) for tensor in (grad_output, query, key, value, last)]
    return found[0], query.new_empty(query.shape[:-1], dtype=accumulator(query.dtype)), *found[1:]


def batched_jvp(call: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
    """``call``, which is like ``jvp``, with the mapped dimension in front; and where its results have it."""
    tensors = list(batch_first(info.batch_size, in_dims[:8], inputs[:8]))
    for place in (3, 7):
        tensors[place] = under(tensors[place], tensors[0].ndim)
    return call(*tensors, *inputs[8:]), (0, 0)


def batched_double_backward(
    call: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], *inputs: Any
) -> tuple[Any, Any]:
    """The same for what is like ``double_backward``."""
    tensors = list(batch_first(info.batch_size, in_dims[:10], inputs[:10]))
    mask = tensors[5]
    for place in (5, 9):
        tensors[place] = under(tensors[place], tensors[2].ndim)
    *found, last = call(*tensors, *inputs[10:])
    masked = inputs[-1]
    return (*found, last.reshape(mask.shape) if masked else last), (0, 0, 0, 0, 0, 0 if masked else None)


jvp = torch.library.custom_op("rootdk::scaled_dot_product_attention_jvp", _jvp, mutates_args=(), device_types="cpu")
jvp.register_fake(_fake_jvp)
jvp.register_vmap(partial(batched_jvp, jvp))

double_backward = torch.library.custom_op(
    "rootdk::scaled_dot_product_attention_double_backward", _double_backward, mutates_args=(), device_types="cpu"
)
double_backward.register_fake(_fake_double_backward)
double_backward.register_vmap(partial(batched_double_backward, double_backward))
