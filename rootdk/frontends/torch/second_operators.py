"""The derivatives of ``operators`` as operators of their own: tangents, and gradients of gradients.

``tangents`` and ``directions`` are of query, key, value and of what is in the slots ``wanted``, None where it is 0.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rootdk.frontends.torch import batching
from rootdk.frontends.torch.arguments import accumulator
from rootdk.frontends.torch.operators import bound, slots, wanted_tensors

__all__ = ["double_backward", "jvp"]


def _jvp(
    query: Tensor, key: Tensor, value: Tensor, arrays: Sequence[Tensor], sinks: Tensor | None, seed: Tensor | None,
    tangents: Sequence[Tensor | None], wanted: Sequence[int], mods: str, dropout_p: float, scale: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Tangents of output and LSE."""
    call = bound((query, key, value), arrays, sinks, seed, mods, dropout_p, scale)
    return call.push_forward((query, key, value), slots(call, wanted), tangents)


def _double_backward(
    grad_output: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, arrays: Sequence[Tensor],
    sinks: Tensor | None, seed: Tensor | None, directions: Sequence[Tensor | None], wanted: Sequence[int], mods: str,
    dropout_p: float, scale: float | None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of <directions, gradients> by grad_output, grad_lse, query, key, value and what is wanted."""
    call = bound((query, key, value), arrays, sinks, seed, mods, dropout_p, scale)
    tensors = query, key, value, *wanted_tensors(wanted, arrays, sinks)
    by_cotangents, by_tensors = call.pull_back_twice(tensors, slots(call, wanted), (grad_output, grad_lse), directions)
    return [gradient.contiguous() for gradient in (*by_cotangents, *by_tensors)]


def _fake_jvp(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    output = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return output, query.new_empty(query.shape[:-1], dtype=accumulator(query.dtype))


def _fake_double_backward(
    grad_output: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, arrays: Sequence[Tensor],
    sinks: Tensor | None, seed: Tensor | None, directions: Sequence[Tensor | None], wanted: Sequence[int], *_: Any,
) -> list[Tensor]:  # fmt: skip
    tensors = query, key, value, *wanted_tensors(wanted, arrays, sinks)
    by_lse = query.new_empty(query.shape[:-1], dtype=accumulator(query.dtype))
    return [grad_output.new_empty(grad_output.shape), by_lse, *(tensor.new_empty(tensor.shape) for tensor in tensors)]


jvp = torch.library.custom_op("rootdk::attention_jvp", _jvp, mutates_args=(), device_types="cpu")
jvp.register_fake(_fake_jvp)
jvp.register_vmap(partial(batching.looped, jvp))

double_backward = torch.library.custom_op(
    "rootdk::attention_double_backward", _double_backward, mutates_args=(), device_types="cpu"
)
double_backward.register_fake(_fake_double_backward)
double_backward.register_vmap(partial(batching.looped, double_backward))
