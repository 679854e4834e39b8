"""Attention as a torch operator: for torch.compile, torch.export, torch.func, counters of FLOPs and fake tensors.

``query``, ``key`` and ``value`` are [*batch, heads, len, d] and agree in all but heads. ``mods`` says what happens to
the scores (mod_text.py), and ``arrays`` are the tensors that it reads, by slot. ``memory`` is "query" for an output
whose dimensions lie in memory as query's, or "bhsd" or "bshd". ``wanted`` are slots whose gradients are wanted beside
those of query, key and value; ``SINKS`` is one.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from rootdk.frontends.torch import batching
from rootdk.frontends.torch.arguments import Options, accumulator
from rootdk.frontends.torch.bound_call import SINKS, Call
from rootdk.frontends.torch.calls import attend, call_for
from rootdk.frontends.torch.mod_text import options_of

__all__ = ["backward", "bound", "differentiable", "empty_output", "forward", "slots", "wanted_tensors"]


def _forward(
    query: Tensor, key: Tensor, value: Tensor, arrays: Sequence[Tensor], sinks: Tensor | None, seed: Tensor | None,
    mods: str, dropout_p: float, scale: float | None, memory: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output and LSE."""
    output = empty_output(query, value, memory)
    given = _options(arrays, sinks, seed, mods, dropout_p, scale)
    with torch.no_grad():
        _, lse = attend((query, key, value), given, output=output, return_lse=True)
    assert lse is not None
    return output, lse


def _backward(
    grad_output: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, arrays: Sequence[Tensor],
    sinks: Tensor | None, seed: Tensor | None, output: Tensor, lse: Tensor, wanted: Sequence[int], mods: str,
    dropout_p: float, scale: float | None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of query, key, value and of what is wanted."""
    call = bound((query, key, value), arrays, sinks, seed, mods, dropout_p, scale)
    tensors = query, key, value, *wanted_tensors(wanted, arrays, sinks)
    found = call.pull_back(tensors, slots(call, wanted), (output, lse), (grad_output, grad_lse))
    return [gradient.contiguous() for gradient in found]


def bound(
    inputs: tuple[Tensor, Tensor, Tensor], arrays: Sequence[Tensor], sinks: Tensor | None, seed: Tensor | None,
    mods: str, dropout_p: float, scale: float | None,
) -> Call:  # fmt: skip
    """The call that an operator's arguments make."""
    return call_for(inputs, _options(arrays, sinks, seed, mods, dropout_p, scale))


def _options(
    arrays: Sequence[Tensor], sinks: Tensor | None, seed: Tensor | None, mods: str, dropout_p: float,
    scale: float | None,
) -> Options:  # fmt: skip
    # an operator's integers have a sign, and seeds have none
    number = None if seed is None else int(seed.item()) % 2**64
    return options_of(mods, tuple(arrays), sinks=sinks, seed=number, dropout_p=dropout_p, scale=scale)


def slots(call: Call, wanted: Sequence[int]) -> tuple[int, ...]:
    """The slots of the call that an operator's ``wanted`` ones are; a bias may come as the only array."""
    bias = call.bound.operands.bias
    return tuple(slot if slot == SINKS or bias is None else bias for slot in wanted)


def wanted_tensors(wanted: Sequence[int], arrays: Sequence[Tensor], sinks: Tensor | None) -> list[Tensor]:
    """The tensors in the slots ``wanted``."""
    found = [sinks if slot == SINKS else arrays[slot] for slot in wanted]
    return [tensor for tensor in found if tensor is not None]


def differentiable(needs: Sequence[bool], arrays: Sequence[Tensor], sinks_need: bool) -> list[int]:
    """The slots whose gradients are wanted."""
    found = [slot for slot, array in enumerate(arrays) if needs[slot] and array.is_floating_point()]
    return [*found, SINKS] if sinks_need else found


def empty_output(query: Tensor, value: Tensor, memory: str) -> Tensor:
    """Uninitialised [*batch, heads, q_len, d_v], its dimensions in memory in the order that ``memory`` says."""
    if memory == "query" and value.shape[-1] == query.shape[-1]:
        return torch.empty_like(query)
    shape = (*query.shape[:-1], value.shape[-1])
    if memory == "query":
        order = sorted(range(query.ndim), key=lambda axis: (-query.stride(axis), axis))
    elif memory == "bhsd":
        return query.new_empty(shape)
    else:
        order = [*range(query.ndim - 3), query.ndim - 2, query.ndim - 3, query.ndim - 1]
    dense = query.new_empty([shape[axis] for axis in order])
    return dense.permute([order.index(axis) for axis in range(query.ndim)])


def _fake(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return empty_output(query, value, rest[-1]), query.new_empty(query.shape[:-1], dtype=accumulator(query.dtype))


def _fake_backward(
    grad_output: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, arrays: Sequence[Tensor],
    sinks: Tensor | None, seed: Tensor | None, output: Tensor, lse: Tensor, wanted: Sequence[int], *_: Any,
) -> list[Tensor]:  # fmt: skip
    tensors = query, key, value, *wanted_tensors(wanted, arrays, sinks)
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, arrays, sinks, seed, *ctx.rest, _ = inputs
    ctx.count = len(arrays)
    ctx.save_for_backward(query, key, value, *arrays, sinks, seed, *output)


def _pull_back(ctx: Any, grad_output: Tensor, grad_lse: Tensor) -> tuple[Any, ...]:
    query, key, value, *arrays, sinks, seed, output, lse = ctx.saved_tensors
    needs = ctx.needs_input_grad
    wanted = differentiable(needs[3], arrays, needs[4])
    inputs = query, key, value, arrays, sinks, seed
    grads = backward(grad_output, grad_lse, *inputs, output, lse, wanted, *ctx.rest)
    captured = dict(zip(wanted, grads[3:], strict=True))
    return *grads[:3], [captured.get(slot) for slot in range(ctx.count)], captured.get(SINKS), *(None,) * 5


def _flops(query: list[int], key: list[int], value: list[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Of all pairs, visible or not, as torch counts: a product of d_k and one of d_v."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _backward_flops(grad_output: Any, grad_lse: Any, *rest: Any, out_shape: Any = None, **_: Any) -> int:
    """Three products of d_k (scores, and gradients of query and key) and two of d_v."""
    query, key, value = rest[:3]
    pairs: int = math.prod(query[:-1]) * key[-2]
    return 2 * pairs * (3 * int(query[-1]) + 2 * int(value[-1]))


forward = torch.library.custom_op("rootdk::attention", _forward, mutates_args=(), device_types="cpu")
forward.register_fake(_fake)
forward.register_autograd(_pull_back, setup_context=_save)
forward.register_vmap(partial(batching.forward, forward))
register_flop_formula(torch.ops.rootdk.attention)(_flops)

backward = torch.library.custom_op("rootdk::attention_backward", _backward, mutates_args=(), device_types="cpu")
backward.register_fake(_fake_backward)
backward.register_vmap(partial(batching.backward, backward))
register_flop_formula(torch.ops.rootdk.attention_backward)(_backward_flops)
