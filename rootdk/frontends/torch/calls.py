"""Calls on plain tensors. What a kind of call needs is found once and remembered, where its options cannot change."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rootdk import engine
from rootdk.frontends.torch import autograd
from rootdk.frontends.torch.arguments import Inputs, Options, empty_lse
from rootdk.frontends.torch.bound_call import Call, bind_call, read_tensors
from rootdk.frontends.torch.tensors import as_view
from rootdk.mods import ranges
from rootdk.mods.values import Mask
from rootdk.runtime import threads

__all__ = ["attend"]

_MOST_KNOWN = 128
_known: dict[tuple[Any, ...], Call] = {}


def attend(
    inputs: Inputs, options: Options, *, output: Tensor | None = None, return_lse: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Output and, if asked for, LSE, differentiable where an argument is.

    The output is written to ``output``, which may have any strides, if given.
    """
    call = _call(inputs, options)
    if output is None:
        output = torch.empty(call.bound.output_shape, dtype=inputs[0].dtype)
    moves = autograd.moving(read_tensors(call.bound, options)) if options.learnable else {}
    if moves or autograd.moving(dict(enumerate(inputs))):
        lse = empty_lse(call.bound.lse_shape, output.dtype)
        return autograd.attend(call, inputs, options, moves, (output, lse))
    lse = empty_lse(call.bound.lse_shape, output.dtype) if return_lse else None
    call.run(inputs, output, lse)
    return output, lse


def _call(inputs: Inputs, options: Options) -> Call:
    signature = _signature(inputs, options)
    if signature is None:
        return bind_call(inputs, options)
    call = _known.get(signature)
    if call is None:
        call = bind_call(inputs, options)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        # without the tensors of this call, which would live as long as it is known
        operands = replace(call.bound.operands, arrays=(), sources=())
        brings = isinstance(options.mask, Tensor) or options.bias is not None
        known = replace(call, bound=replace(call.bound, operands=operands), tables=()) if brings else call
        _known[signature] = known
        return call
    return call if call.bound.problem.graph.arrays == () else _with_own_arrays(call, options)


def _with_own_arrays(call: Call, options: Options) -> Call:
    """``call`` with this call's mask or bias: in the graph's order, without dimensions of size 1."""
    dense = (("bias", options.bias), ("mask", options.mask))
    arrays = tuple(as_view(name, tensor).squeeze() for name, tensor in dense if isinstance(tensor, Tensor))
    graph = call.bound.problem.graph
    operands = replace(call.bound.operands, arrays=arrays, sources=arrays)
    tables = ranges.build_all(graph, arrays)
    bound = replace(call.bound, operands=operands)
    return Call(bound, tables, engine.capture(graph, operands, tables), call.prepared)


def _signature(inputs: Inputs, options: Options) -> tuple[Any, ...] | None:
    """All that a call depends on but the numbers in its tensors; None where those may shape it, as in functions."""
    mask, bias = options.mask, options.bias
    if options.score_mod is not None or options.sinks is not None or options.dropout_p:
        return None
    if isinstance(mask, Tensor):
        mask = _kind(mask)
    elif mask is not None and not (isinstance(mask, Mask) and mask.fixed):
        return None
    query, key, value = inputs
    return (
        _kind(query), _kind(key), _kind(value), mask, None if bias is None else _kind(bias), options.scale,
        type(options.scale), options.layout, threads.get_num_threads(),
    )  # fmt: skip


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype
