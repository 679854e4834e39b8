"""The operators as torch.func's transforms take them: grad, vjp, jvp, vmap, and what is made of these.

torch.func differentiates an operator only through an autograd.Function that says how.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor

from rootdk.frontends.torch import operators, second_operators
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
        ctx.save_for_forward(*inputs[:5])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        *inputs, output, lse = ctx.saved_tensors
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        grads = _Backward.apply(grad_output, grad_lse, *inputs, output, lse, *ctx.rest, ctx.masked)
        return *grads[:3], grads[3] if ctx.masked else None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return operators.batched(Forward.apply, info, in_dims, *inputs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, Tensor]:
        *tensors, seed = ctx.saved_tensors
        results: tuple[Tensor, Tensor] = _Jvp.apply(*tensors, *tangents[:4], seed, *ctx.rest)
        return results


class _Backward(torch.autograd.Function):  # type: ignore[misc]
    """``operators.backward``."""

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return operators.backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *ctx.rest, ctx.masked = inputs[9:]
        ctx.save_for_backward(*inputs[:9])
        ctx.save_for_forward(*inputs[:9])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        by_output, by_lse, *found = _again(ctx, saved, directions)
        by_mask = found.pop() if ctx.masked else None
        return by_output, None if saved[1] is None else by_lse, *found[:3], by_mask, *(None,) * (4 + len(ctx.rest))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return operators.batched_backward(_Backward.apply, info, in_dims, *inputs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        # second derivatives are symmetric: tangents serve as directions; in its cotangents a gradient is linear
        saved = ctx.saved_tensors
        _, _, *found = _again(ctx, saved, tangents[2:6])
        if tangents[0] is not None or tangents[1] is not None:
            moved = torch.zeros_like(saved[0]) if tangents[0] is None else tangents[0]
            linear = _Backward.apply(moved, tangents[1], *saved[2:], *ctx.rest, ctx.masked)
            found = [one + other for one, other in zip(found, linear, strict=True)]
        return tuple(found)


def _again(ctx: Any, saved: Any, directions: Any) -> Any:
    """Gradients of <directions, what _Backward gave> by its cotangents, by query, key, value and mask."""
    *tensors, seed, _, _ = saved
    moves = directions if ctx.masked else (*directions[:3], None)
    return _DoubleBackward.apply(*tensors, *moves, seed, *ctx.rest, ctx.masked)


class _Jvp(torch.autograd.Function):  # type: ignore[misc]
    """``second_operators.jvp``."""

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return second_operators.jvp(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return second_operators.batched_jvp(_Jvp.apply, info, in_dims, *inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise unsupported("gradients of forward-mode derivatives")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise unsupported("forward-mode derivatives of forward-mode derivatives")


class _DoubleBackward(torch.autograd.Function):  # type: ignore[misc]
    """``second_operators.double_backward``."""

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return second_operators.double_backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return second_operators.batched_double_backward(_DoubleBackward.apply, info, in_dims, *inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise unsupported("third derivatives")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise unsupported("third derivatives")
