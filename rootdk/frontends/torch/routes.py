"""Which way a call with functions goes: through Dynamo's graph, through the operator, or straight to the kernels."""

from dataclasses import replace

import torch
from torch import Tensor

from rootdk.frontends.torch import calls, compiled, watched
from rootdk.frontends.torch.arguments import Inputs, Options
from rootdk.frontends.torch.modes import cast_for_autocast
from rootdk.frontends.torch.modes import watched as is_watched
from rootdk.frontends.torch.operators import empty_output
from rootdk.frontends.torch.tensors import is_plain

__all__ = ["attend"]

_PLAIN = (Tensor, torch.nn.Parameter)


def attend(
    inputs: Inputs, options: Options, *, like_query: bool = False, return_lse: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Output and LSE, which may be None if not asked for; the output's dimensions lie in memory as query's or in order.

    All is differentiable that is so in ``calls.attend``.
    """
    query, key, value = inputs
    memory = "query" if like_query else options.layout
    if is_watched() or not (is_plain(query) and is_plain(key) and is_plain(value)):
        return _by_other_ways(inputs, options, memory)
    if torch.is_autocast_enabled("cpu"):
        inputs = cast_for_autocast(*inputs)
    output = empty_output(inputs[0], value, memory) if like_query else None
    return calls.attend_plain(inputs, options, output=output, return_lse=return_lse)


def _by_other_ways(inputs: Inputs, options: Options, memory: str) -> tuple[Tensor, Tensor | None]:
    inputs = cast_for_autocast(*inputs)
    if torch.compiler.is_dynamo_compiling():
        return compiled.attend(inputs, options, memory, _canonical)
    if is_watched() or any(map(_elsewhere, inputs)):
        return watched.attend(inputs, options, memory)
    output = empty_output(inputs[0], inputs[2], memory) if memory == "query" else None
    return calls.attend(inputs, options, output=output, return_lse=True)


def _canonical(inputs: Inputs, options: Options, memory: str) -> tuple[Tensor, Tensor | None]:
    """The call on inputs that have the operator's form."""
    if is_watched():
        return watched.attend(inputs, replace(options, layout="bhsd"), memory)
    output = empty_output(inputs[0], inputs[2], memory)
    return calls.attend(inputs, replace(options, layout="bhsd"), output=output, return_lse=True)


def _elsewhere(tensor: Tensor) -> bool:
    """Whether ``tensor`` is of a kind that only operators know: fake, on meta, of a subclass."""
    return isinstance(tensor, Tensor) and (type(tensor) not in _PLAIN or tensor.is_meta)
