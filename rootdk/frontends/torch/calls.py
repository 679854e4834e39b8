"""Calls on plain tensors. What a kind of call needs is found once and remembered, where its options cannot change."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rootdk import engine
from rootdk.frontends.torch import autograd
from rootdk.frontends.torch.arguments import Inputs, Options, WrittenMods, empty_lse
from rootdk.frontends.torch.bound_call import Call, bind_call, read_tensors
from rootdk.frontends.torch.tensors import as_view, plain
from rootdk.mods import ranges
from rootdk.mods.values import Mask
from rootdk.problem import Bound
from rootdk.runtime import threads

__all__ = ["attend", "attend_plain", "call_for", "run"]

_MOST_KNOWN = 128


def attend(
    inputs: Inputs, options: Options, *, output: Tensor | None = None, return_lse: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Output and, if asked for, LSE, differentiable where an argument is.

    The output is written to ``output``, which may have any strides, if given.
    """
    inputs = plain("query", inputs[0]), plain("key", inputs[1]), plain("value", inputs[2])
    return attend_plain(inputs, options, output=output, return_lse=return_lse)


def attend_plain(
    inputs: Inputs, options: Options, *, output: Tensor | None = None, return_lse: bool = False
) -> tuple[Tensor, Tensor | None]:
    """``attend`` with inputs that are plain already."""
    call = call_for(inputs, options)
    if output is None:
        output = torch.empty(call.bound.output_shape, dtype=inputs[0].dtype)
    return run(call, inputs, options, output, return_lse=return_lse)


def run(
    call: Call, inputs: Inputs, options: Options, output: Tensor, *, return_lse: bool = False
) -> tuple[Tensor, Tensor | None]:
    """``attend`` with a call that ``call_for`` gave for plain inputs and options like these."""
    moves = autograd.moving(read_tensors(call.bound, options)) if options.learnable else {}
    if moves or autograd.moves(*inputs):
        lse = empty_lse(call.bound.lse_shape, output.dtype)
        return autograd.attend(call, inputs, options, moves, (output, lse))
    lse = empty_lse(call.bound.lse_shape, output.dtype) if return_lse else None
    call.run(inputs, output, lse)
    return output, lse


def call_for(inputs: Inputs, options: Options) -> Call:
    """The call that ``inputs`` and ``options`` make, from memory if it is of a known kind."""
    signature = _signature(inputs, options)
    if signature is None:
        return bind_call(inputs, options)
    known = _known.get(signature)
    if known is not None:
        return known if isinstance(known, Call) else known.call(options)
    call = bind_call(inputs, options)
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[signature] = _Dense.of(call) if call.bound.operands.arrays else call
    return call


@dataclass(frozen=True, slots=True, eq=False)
class _Dense:
    """A kind of call that brings a mask or bias of its own, without those of the first one."""

    bound: Bound
    prepared: dict[Any, Any]

    @classmethod
    def of(cls, call: Call) -> "_Dense":
        operands = replace(call.bound.operands, arrays=(), sources=())
        return cls(replace(call.bound, operands=operands), call.prepared)

    def call(self, options: Options) -> Call:
        """The call with the arrays of ``options``, in the graph's order."""
        arrays = _arrays(options)
        graph = self.bound.problem.graph
        operands = replace(self.bound.operands, arrays=arrays, sources=arrays)
        tables = ranges.build_all(graph, arrays)
        bound = replace(self.bound, operands=operands)
        return Call(bound, tables, engine.capture(graph, operands, tables), self.prepared)


def _arrays(options: Options) -> tuple[np.ndarray, ...]:
    """What a call reads beside query, key and value; of a bias and a mask without dimensions of size 1."""
    if isinstance(options.score_mod, WrittenMods):
        return tuple(as_view("array", array) for array in options.score_mod.arrays)
    dense = (("bias", options.bias), ("mask", options.mask))
    return tuple(as_view(name, tensor).squeeze() for name, tensor in dense if isinstance(tensor, Tensor))


_known: dict[tuple[Any, ...], Call | _Dense] = {}


def _signature(inputs: Inputs, options: Options) -> tuple[Any, ...] | None:
    """All that a call depends on but the numbers in its tensors; None where those may shape it, as in functions."""
    mask, bias, written = options.mask, options.bias, None
    if isinstance(options.score_mod, WrittenMods):
        written = options.score_mod.text, *map(_kind, options.score_mod.arrays)
    elif options.score_mod is not None:
        return None
    if options.sinks is not None or options.dropout_p:
        return None
    if not (bias is None or isinstance(bias, Tensor)):
        return None
    if isinstance(mask, Tensor):
        mask = _kind(mask)
    elif mask is not None and not (isinstance(mask, Mask) and mask.fixed):
        return None
    query, key, value = inputs
    return (
        _kind(query), _kind(key), _kind(value), mask, None if bias is None else _kind(bias), written,
        options.scale, type(options.scale), options.layout, threads.get_num_threads(),
    )  # fmt: skip


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype
