"""Calls as autograd sees them, in reverse and forward mode and for second derivatives."""

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rootdk.frontends.torch.arguments import Inputs, Options
from rootdk.frontends.torch.bound_call import Call, read_tensors
from rootdk.frontends.torch.modes import has_tangent, unsupported

__all__ = ["attend", "moves", "moving"]


def moves(*tensors: Tensor) -> bool:
    """Whether autograd follows one of ``tensors``."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return True
    return forward_ad._current_level >= 0 and any(map(has_tangent, tensors))


def moving(tensors: dict[int, Tensor]) -> dict[int, Tensor]:
    """Those of ``tensors`` that autograd follows."""
    return {slot: tensor for slot, tensor in tensors.items() if moves(tensor)}


def attend(
    call: Call, inputs: Inputs, options: Options, found: dict[int, Tensor], results: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """``results``, output and LSE, filled and differentiable by ``inputs`` and by ``found``, tensors by array slot."""
    others = [tensor for slot, tensor in read_tensors(call.bound, options).items() if slot not in found]
    if isinstance(options.mask, Tensor):
        others.append(options.mask)
    followed = _Followed(call, tuple(found))
    filled: tuple[Tensor, Tensor] = _Attention.apply(followed, tuple(others), results, *inputs, *found.values())
    return filled


@dataclass(frozen=True, slots=True, eq=False)
class _Followed:
    """A call, and the array slots that autograd follows beside query, key and value."""

    call: Call
    slots: tuple[int, ...]

    @property
    def count(self) -> int:
        return 3 + len(self.slots)


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # untyped where torch isn't installed
    """(followed, others, results, query, key, value, *slots) -> (output, lse)."""

    @staticmethod
    def forward(
        ctx: Any, followed: _Followed, others: tuple[Tensor, ...], results: tuple[Tensor, Tensor], *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        followed.call.run((tensors[0], tensors[1], tensors[2]), *results)
        ctx.followed = followed
        # what else the kernels read is saved too, so that autograd sees when somebody writes to it in between
        ctx.save_for_backward(*tensors, *results, *others)
        ctx.save_for_forward(*tensors, *results, *others)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors, (output, lse, *_) = _split(ctx)
        results = output, lse
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        if torch.is_grad_enabled():
            return None, None, None, *_Backward.apply(ctx.followed, results, grad_output, grad_lse, *tensors)
        followed: _Followed = ctx.followed
        return None, None, None, *followed.call.pull_back(tensors, followed.slots, results, (grad_output, grad_lse))

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, ___: Any, *tangents: Tensor | None) -> tuple[Tensor, Tensor]:
        followed: _Followed = ctx.followed
        return followed.call.push_forward(_split(ctx)[0], followed.slots, tangents)


class _Backward(torch.autograd.Function):  # type: ignore[misc]
    """(followed, results, grad_output, grad_lse, query, key, value, *slots) -> gradients of the last."""

    @staticmethod
    def forward(
        ctx: Any, followed: _Followed, results: tuple[Tensor, Tensor], grad_output: Tensor, grad_lse: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.followed, ctx.has_lse = followed, grad_lse is not None
        cotangents = [grad_output] if grad_lse is None else [grad_output, grad_lse]
        ctx.results = results
        ctx.save_for_backward(*tensors, *cotangents)
        ctx.save_for_forward(*tensors, *cotangents)
        ctx.set_materialize_grads(False)
        return tuple(followed.call.pull_back(tensors, followed.slots, results, (grad_output, grad_lse)))

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Tensor | None, ...]:
        followed: _Followed = ctx.followed
        tensors, cotangents = _split(ctx)
        given = cotangents[0], cotangents[1] if ctx.has_lse else None
        by_cotangents, by_tensors = followed.call.pull_back_twice(tensors, followed.slots, given, directions)
        found = *by_cotangents, *by_tensors
        if torch.is_grad_enabled():
            depends = (tensor for tensor in (*directions, *cotangents, *tensors) if tensor is not None)
            found = _Last.apply(found, *depends)
        return None, None, found[0], found[1] if ctx.has_lse else None, *found[2:]

    @staticmethod
    def jvp(
        ctx: Any, _: Any, __: Any, of_output: Tensor | None, of_lse: Tensor | None, *tangents: Tensor | None
    ) -> tuple[Tensor, ...]:
        followed: _Followed = ctx.followed
        tensors, cotangents = _split(ctx)
        given = cotangents[0], cotangents[1] if ctx.has_lse else None
        # second derivatives are symmetric: tangents serve as directions; in its cotangents a gradient is linear
        _, found = followed.call.pull_back_twice(tensors, followed.slots, given, tangents)
        if of_output is not None or of_lse is not None:
            moved = torch.zeros_like(cotangents[0]) if of_output is None else of_output
            linear = followed.call.pull_back(tensors, followed.slots, ctx.results, (moved, of_lse))
            found = [one + other for one, other in zip(found, linear, strict=True)]
        return tuple(found)


def _split(ctx: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What was saved: the tensors that autograd follows, and the others. Checkpoints allow one reading."""
    saved, count = ctx.saved_tensors, ctx.followed.count
    return saved[:count], saved[count:]


class _Last(torch.autograd.Function):  # type: ignore[misc]
    """(results, *what they depend on) -> results, of which no further derivatives are to be had."""

    @staticmethod
    def forward(ctx: Any, results: tuple[Tensor, ...], *depends: Tensor) -> tuple[Tensor, ...]:
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise unsupported("third derivatives")
