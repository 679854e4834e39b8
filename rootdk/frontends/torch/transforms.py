"""The operators as torch.func's transforms take them: grad, vjp, vmap and what is made of these.

torch.func differentiates an operator only through an autograd.Function that says how.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor

from rootdk.frontends.torch import operators
from rootdk.frontends.torch.modes import unsupported

__all__ = ["Forward"]


class Forward(torch.autograd.Function):  # type: ignore[misc]  # untyped where torch isn't installed
    """``operators.forward``."""

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return operators.forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        operators.save(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, output, lse = ctx.saved_tensors
        grads = _Backward.apply(grad_output, grad_lse, *inputs, output, lse, *ctx.rest, ctx.masked)
        return *grads[:3], grads[3] if ctx.masked else None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return operators.batched(Forward.apply, info, in_dims, *inputs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise unsupported("forward-mode derivatives")


class _Backward(torch.autograd.Function):  # type: ignore[misc]
    """``operators.backward``."""

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return operators.backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise unsupported("second derivatives")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return operators.batched_backward(_Backward.apply, info, in_dims, *inputs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise unsupported("forward-mode derivatives of a backward pass")
