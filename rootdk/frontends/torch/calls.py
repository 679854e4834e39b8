"""Calls on plain tensors: bound and compiled when their kind is new, run on the tensors' own memory."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from rootdk import engine
from rootdk.frontends.torch import autograd
from rootdk.frontends.torch.arguments import Inputs, Options, bind, empty_lse
from rootdk.frontends.torch.tensors import as_view
from rootdk.mods import ranges
from rootdk.mods.values import Mask
from rootdk.problem import Bound, Operands
from rootdk.runtime import threads

__all__ = ["attend"]

_MOST_KNOWN = 128
_NOTHING = np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """All of a call but the numbers in its tensors."""

    prepared: engine.Prepared
    output_shape: tuple[int, ...]
    lse_shape: tuple[int, ...]
    operands: Operands
    captured: engine.Captured | None
    """None where the call brings a mask or bias of its own."""


_known: dict[tuple[Any, ...], _Known] = {}


def attend(
    inputs: Inputs, options: Options, *, output: Tensor | None = None, return_lse: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Output and, if asked for, LSE, differentiable where an argument is.

    The output is written to ``output``, which may have any strides, if given.
    """
    if forward_ad._current_level >= 0 or (torch.is_grad_enabled() and _wants_gradient(inputs, options)):
        return _differentiable(inputs, options, bind(inputs, options), output)
    signature = _signature(inputs, options, output, return_lse)
    known = _known.get(signature) if signature else None
    if known is None:
        return _first(inputs, options, output, return_lse, signature)
    if output is None:
        output = torch.empty(known.output_shape, dtype=inputs[0].dtype)
    lse = empty_lse(known.lse_shape, output.dtype) if return_lse else None
    captured = known.captured or _captured(known.prepared, known.operands, options)
    _run(known.prepared, inputs, known.operands, output, lse, captured)
    return output, lse


def _wants_gradient(inputs: Inputs, options: Options) -> bool:
    query, key, value = inputs
    bias, sinks = options.bias, options.sinks
    return (
        query.requires_grad or key.requires_grad or value.requires_grad
        or (bias is not None and bias.requires_grad) or (sinks is not None and sinks.requires_grad)
    )  # fmt: skip


def _differentiable(
    inputs: Inputs, options: Options, bound: Bound, output: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if output is None:
        output = torch.empty(bound.output_shape, dtype=inputs[0].dtype)
    return autograd.attend(bound, inputs, options, output, empty_lse(bound.lse_shape, output.dtype))


def _first(
    inputs: Inputs, options: Options, output: Tensor | None, return_lse: bool, signature: Any
) -> tuple[Tensor, Tensor | None]:
    """``attend`` for a kind of call that is new."""
    bound = bind(inputs, options)
    graph, operands = bound.problem.graph, bound.operands
    if torch.is_grad_enabled() and autograd.learned(bound, options):
        return _differentiable(inputs, options, bound, output)
    if output is None:
        output = torch.empty(bound.output_shape, dtype=inputs[0].dtype)
    lse = empty_lse(bound.lse_shape, output.dtype) if return_lse else None
    tables = ranges.build_all(graph, operands.arrays)
    prepared = engine.prepare(bound, as_view("output", output), None if lse is None else as_view("lse", lse), tables)
    captured = engine.capture(graph, operands, tables)
    _run(prepared, inputs, operands, output, lse, captured)
    if signature:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        # without the tensors, which would live as long as they are known
        operands = replace(operands, query=_NOTHING, key=_NOTHING, value=_NOTHING, arrays=(), sources=())
        brings = isinstance(options.mask, Tensor) or options.bias is not None
        known = _Known(prepared, bound.output_shape, bound.lse_shape, operands, None if brings else captured)
        _known[signature] = known
    return output, lse


def _run(
    prepared: engine.Prepared, inputs: Inputs, operands: Operands, output: Tensor, lse: Tensor | None,
    captured: engine.Captured,
) -> None:  # fmt: skip
    query, key, value = inputs
    engine.run(
        prepared, (as_view("query", query), as_view("key", key), as_view("value", value)), operands.sinks,
        as_view("output", output), None if lse is None else as_view("lse", lse), captured,
    )  # fmt: skip


def _captured(prepared: engine.Prepared, operands: Operands, options: Options) -> engine.Captured:
    """The call's own mask or bias as the kernel reads it: in the graph's order, without dimensions of size 1."""
    dense = (("bias", options.bias), ("mask", options.mask))
    arrays = tuple(as_view(name, tensor).squeeze() for name, tensor in dense if isinstance(tensor, Tensor))
    graph = prepared.problem.graph
    return engine.capture(graph, replace(operands, arrays=arrays), ranges.build_all(graph, arrays))


def _signature(inputs: Inputs, options: Options, output: Tensor | None, return_lse: bool) -> tuple[Any, ...] | None:
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
        type(options.scale), options.layout, None if output is None else output.stride(), return_lse,
        threads.get_num_threads(),
    )  # fmt: skip


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype
