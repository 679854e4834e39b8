"""Which way a call with functions goes: through Dynamo's graph, through the operator, or straight to the kernels."""

import torch
from torch import Tensor

from rootdk.frontends.torch import calls, watched
from rootdk.frontends.torch.arguments import Inputs, Options
from rootdk.frontends.torch.modes import cast_for_autocast
from rootdk.frontends.torch.modes import watched as is_watched
from rootdk.frontends.torch.operators import empty_output

__all__ = ["attend"]

_PLAIN = (Tensor, torch.nn.Parameter)


def attend(
    inputs: Inputs, options: Options, *, like_query: bool = False, return_lse: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Output and LSE, which may be None if not asked for; the output's dimensions lie in memory as query's or in order.

    All is differentiable that is so in ``calls.attend``.
    """
    inputs = cast_for_autocast(*inputs)
    if is_watched() or any(map(_elsewhere, inputs)):
        memory = "query" if like_query else options.layout
        return watched.attend(inputs, options, memory)
    output = empty_output(inputs[0], inputs[2], "query") if like_query else None
    return calls.attend(inputs, options, output=output, return_lse=return_lse)


def _elsewhere(tensor: Tensor) -> bool:
    """Whether ``tensor`` is of a kind that only operators know: fake, on meta, of a subclass."""
    return isinstance(tensor, Tensor) and (type(tensor) not in _PLAIN or tensor.is_meta)
