"""Calls on plain tensors. What a kind of call needs is found once and remembered, where its options cannot change."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rootdk import engine
from rootdk.call_kinds import CallKind
from rootdk.frontends.torch import autograd
from rootdk.frontends.torch.arguments import Inputs, Options, WrittenMods, empty_lse
from rootdk.frontends.torch.bound_call import Call, bind_call, read_tensors
from rootdk.frontends.torch.tensors import plain
from rootdk.mods.signature import Signed, sign
from rootdk.mods.values import Mask
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
    signed = _signature(inputs, options)
    if signed is None:
        return bind_call(inputs, options)
    signature, arrays = signed
    known = _known.get(signature)
    call = known.call(arrays) if isinstance(known, _Reading) else known
    if call is not None:
        return call
    call = bind_call(inputs, options)
    kind = CallKind.of(call.bound, call.tables, arrays, options.bias)
    if kind is not None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[signature] = _Reading(kind, call.prepared) if arrays else call
    return call


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """A kind of call that reads arrays beside query, key and value, and its kernels."""

    kind: CallKind
    prepared: dict[Any, Any]

    def call(self, arrays: list[Any]) -> Call | None:
        filled = self.kind.filled(arrays)
        if filled is None:
            return None
        bound, tables = filled
        return Call(bound, tables, engine.capture(bound.problem.graph, bound.operands, tables), self.prepared)


_known: dict[tuple[Any, ...], Call | _Reading] = {}


def _signature(inputs: Inputs, options: Options) -> Signed | None:
    """All that a call depends on but the numbers in its tensors, and the arrays that it reads beside query, key and
    value; None where that cannot be told."""
    if options.sinks is not None or options.dropout_p:
        return None
    mods = _signed_mods(options)
    if mods is None:
        return None
    query, key, value = inputs
    return (
        _kind(query), _kind(key), _kind(value), options.scale, type(options.scale), options.layout,
        threads.get_num_threads(), mods[0],
    ), mods[1]  # fmt: skip


def _signed_mods(options: Options) -> Signed | None:
    mask, written = options.mask, options.score_mod
    if isinstance(written, WrittenMods):
        return (written.text, *map(_kind, written.arrays)), list(written.arrays)
    if options.bias is written is None and (mask is None or (isinstance(mask, Mask) and mask.fixed)):
        return mask, []  # quicker than by what it is made of
    return sign(mask, options.bias, written)


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype
