"""The operators as torch.func's transforms take them: grad, vjp, jvp, vmap, and what is made of these.

torch.func differentiates an operator only through an autograd.Function that says how. Such a function sees tensors only
among its own arguments, not in lists, so arrays come last, one by one.
"""

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from rootdk.frontends.torch import batching, operators, second_operators
from rootdk.frontends.torch.bound_call import SINKS
from rootdk.frontends.torch.modes import unsupported

__all__ = ["forward"]


@dataclass(frozen=True, slots=True)
class _Settings:
    """What an operator takes besides tensors."""

    mods: str
    dropout_p: float
    scale: float | None
    wanted: tuple[int, ...] = ()
    """The slots of the captured tensors that move, and of the sinks."""

    @property
    def numbers(self) -> tuple[str, float, float | None]:
        return self.mods, self.dropout_p, self.scale


def forward(
    query: Tensor, key: Tensor, value: Tensor, arrays: Any, sinks: Tensor | None, seed: Tensor | None,
    mods: str, dropout_p: float, scale: float | None, memory: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``operators.forward``, differentiable by transforms."""
    settings = _Settings(mods, dropout_p, scale)
    found: tuple[Tensor, Tensor] = _Forward.apply(settings, memory, query, key, value, sinks, seed, *arrays)
    return found


class _Forward(torch.autograd.Function):  # type: ignore[misc]  # untyped where torch isn't installed
    """(settings, memory, query, key, value, sinks, seed, *arrays) -> (output, lse)."""

    @staticmethod
    def forward(settings: _Settings, memory: str, *tensors: Any) -> Any:
        query, key, value, sinks, seed, *arrays = tensors
        return operators.forward(query, key, value, arrays, sinks, seed, *settings.numbers, memory)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.settings, _, *tensors = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, output, lse = ctx.saved_tensors
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        arrays, settings = tensors[5:], ctx.settings
        wanted = tuple(operators.differentiable(ctx.needs_input_grad[7:], arrays, ctx.needs_input_grad[5]))
        own = replace(settings, wanted=wanted)
        grads = _Backward.apply(own, grad_output, grad_lse, output, lse, *tensors)
        captured = dict(zip(wanted, grads[3:], strict=True))
        return None, None, *grads[:3], captured.get(SINKS), None, *map(captured.get, range(len(arrays)))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], settings: _Settings, memory: str, *tensors: Any) -> tuple[Any, Any]:
        query, key, value, sinks, seed, *arrays = tensors
        places = (*in_dims[2:5], list(in_dims[7:]), *in_dims[5:7], *(None,) * 4)
        inputs = query, key, value, arrays, sinks, seed, *settings.numbers, memory
        return batching.forward(forward, info, places, *inputs)

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *moves: Tensor | None) -> tuple[Tensor, Tensor]:
        tensors = ctx.saved_tensors
        of_inputs, (of_sinks, _, *of_arrays) = moves[:3], moves[3:]
        captured = {slot: tangent for slot, tangent in enumerate(of_arrays) if tangent is not None}
        if of_sinks is not None:
            captured[SINKS] = of_sinks
        settings = replace(ctx.settings, wanted=tuple(captured))
        results: tuple[Tensor, Tensor] = _Jvp.apply(settings, *tensors, *of_inputs, *captured.values())
        return results


class _Backward(torch.autograd.Function):  # type: ignore[misc]
    """(settings, grad_output, grad_lse, output, lse, query, key, value, sinks, seed, *arrays) -> gradients."""

    @staticmethod
    def forward(settings: _Settings, grad_output: Tensor, grad_lse: Tensor | None, *tensors: Any) -> Any:
        output, lse, query, key, value, sinks, seed, *arrays = tensors
        inputs = grad_output, grad_lse, query, key, value, arrays, sinks, seed, output, lse
        return tuple(operators.backward(*inputs, list(settings.wanted), *settings.numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.settings, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        by_output, by_lse, *found = _again(ctx, saved, directions)
        captured = dict(zip(ctx.settings.wanted, found[3:], strict=True))
        arrays = map(captured.get, range(len(saved) - 9))
        of_lse = None if saved[1] is None else by_lse
        return None, by_output, of_lse, None, None, *found[:3], captured.get(SINKS), None, *arrays

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], settings: _Settings, *tensors: Any) -> tuple[Any, Any]:
        def call(*inputs: Any) -> list[Tensor]:
            *first, arrays, sinks, seed, output, lse, wanted, mods, dropout_p, scale = inputs
            grad_output, grad_lse, query, key, value = first
            own = _Settings(mods, dropout_p, scale, tuple(wanted))
            results = output, lse
            return list(_Backward.apply(own, grad_output, grad_lse, *results, query, key, value, sinks, seed, *arrays))

        def ordered(items: Any, arrays: Any) -> tuple[Any, ...]:
            grad_output, grad_lse, output, lse, query, key, value, sinks, seed = items
            return grad_output, grad_lse, query, key, value, arrays, sinks, seed, output, lse

        places = *ordered(in_dims[1:10], list(in_dims[10:])), *(None,) * 4
        inputs = *ordered(tensors[:9], list(tensors[9:])), list(settings.wanted), *settings.numbers
        found, at = batching.backward(call, info, places, *inputs)
        return tuple(found), tuple(at)

    @staticmethod
    def jvp(ctx: Any, _: Any, of_output: Tensor | None, of_lse: Tensor | None, *moves: Any) -> tuple[Tensor, ...]:
        # second derivatives are symmetric: tangents serve as directions; in its cotangents a gradient is linear
        saved = ctx.saved_tensors
        _, _, of_query, of_key, of_value, of_sinks, _, *of_arrays = moves
        captured = [of_sinks if slot == SINKS else of_arrays[slot] for slot in ctx.settings.wanted]
        _, _, *found = _again(ctx, saved, (of_query, of_key, of_value, *captured))
        if of_output is not None or of_lse is not None:
            moved = torch.zeros_like(saved[0]) if of_output is None else of_output
            linear = _Backward.apply(ctx.settings, moved, of_lse, *saved[2:])
            found = [one + other for one, other in zip(found, linear, strict=True)]
        return tuple(found)


def _again(ctx: Any, saved: Any, directions: Any) -> Any:
    """Gradients of <directions, what _Backward gave> by its cotangents, by query, key, value and what is wanted."""
    grad_output, grad_lse, _, _, *tensors = saved
    return _DoubleBackward.apply(ctx.settings, grad_output, grad_lse, *tensors, *directions)


class _Jvp(torch.autograd.Function):  # type: ignore[misc]
    """(settings, query, key, value, sinks, seed, *arrays, *tangents) -> tangents of output and LSE."""

    @staticmethod
    def forward(settings: _Settings, *tensors: Any) -> Any:
        moved = 3 + len(settings.wanted)
        (query, key, value, sinks, seed, *arrays), tangents = tensors[:-moved], tensors[-moved:]
        inputs = query, key, value, arrays, sinks, seed, list(tangents), list(settings.wanted)
        return second_operators.jvp(*inputs, *settings.numbers)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return batching.looped(_Jvp.apply, info, in_dims, *inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise unsupported("gradients of forward-mode derivatives")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise unsupported("forward-mode derivatives of forward-mode derivatives")


class _DoubleBackward(torch.autograd.Function):  # type: ignore[misc]
    """(settings, grad_output, grad_lse, query, key, value, sinks, seed, *arrays, *directions) -> gradients."""

    @staticmethod
    def forward(settings: _Settings, *tensors: Any) -> Any:
        moved = 3 + len(settings.wanted)
        (*first, sinks, seed), arrays = tensors[:7], list(tensors[7:-moved])
        rest = list(tensors[-moved:]), list(settings.wanted), *settings.numbers
        return tuple(second_operators.double_backward(*first, arrays, sinks, seed, *rest))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return batching.looped(_DoubleBackward.apply, info, in_dims, *inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise unsupported("third derivatives")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise unsupported("third derivatives")
