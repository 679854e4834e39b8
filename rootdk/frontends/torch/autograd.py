"""Calls as autograd sees them: their backward pass, and what it makes of forward mode and of second derivatives."""

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from rootdk import engine, gradients
from rootdk.frontends.torch.arguments import Inputs, Options
from rootdk.frontends.torch.modes import unsupported
from rootdk.frontends.torch.tensors import as_tensor, as_view
from rootdk.gradients import Rows
from rootdk.mods import ranges
from rootdk.problem import Bound
from rootdk.sink_gradients import sink_gradient

__all__ = ["Pullback", "attend", "learned"]

_SINKS = -1
"""Stands for the sinks among array slots."""
_NOTHING = np.zeros(())


def learned(bound: Bound, options: Options) -> dict[int, Tensor]:
    """What wants a gradient beside query, key and value, by array slot: bias, sinks, and what score functions read."""
    return {slot: tensor for slot, tensor in _sources(bound, options).items() if tensor.requires_grad}


def _sources(bound: Bound, options: Options) -> dict[int, Tensor]:
    """The tensors that the call reads beside query, key and value, by array slot."""
    sources = {**dict(enumerate(bound.operands.sources)), _SINKS: options.sinks}
    if bound.operands.bias is not None:
        sources[bound.operands.bias] = options.bias
    return {slot: source for slot, source in sources.items() if isinstance(source, Tensor)}


def attend(bound: Bound, inputs: Inputs, options: Options, output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Output and LSE, written to ``output`` and ``lse``, and differentiable."""
    found = learned(bound, options)
    others = [source for slot, source in _sources(bound, options).items() if slot not in found]
    if isinstance(options.mask, Tensor):
        others.append(options.mask)
    call = _Call(bound, tuple(found), tuple(others), (output, lse))
    result: tuple[Tensor, Tensor] = _Attention.apply(call, *inputs, *found.values())
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """What the forward pass is told beside the tensors that are differentiated."""

    bound: Bound
    slots: tuple[int, ...]
    """Of the tensors that follow query, key and value."""
    others: tuple[Tensor, ...]
    """What else the kernel reads, so that autograd sees when somebody writes to it before the backward pass."""
    results: tuple[Tensor, Tensor]
    """Output and LSE, to be filled."""


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # untyped where torch isn't installed
    """(call, query, key, value, *learned) -> (output, lse)."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        output, lse = call.results
        graph, operands = call.bound.problem.graph, call.bound.operands
        tables = ranges.build_all(graph, operands.arrays)
        results = as_view("output", output), as_view("lse", lse)
        prepared = engine.prepare(call.bound, *results, tables)
        inputs = operands.query, operands.key, operands.value
        engine.run(prepared, inputs, operands.sinks, *results, engine.capture(graph, operands, tables))
        ctx.bound, ctx.slots = _without_inputs(call.bound), call.slots
        ctx.save_for_backward(output, lse, *tensors, *call.others)
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        output, lse, *tensors = ctx.saved_tensors
        tensors = tensors[: 3 + len(ctx.slots)]
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        pullback = Pullback(ctx.bound, ctx.slots, output.detach(), lse.detach())
        if torch.is_grad_enabled():
            return None, *_Backward.apply(pullback, grad_output, grad_lse, *tensors)
        return None, *pullback(grad_output, grad_lse, tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise unsupported("forward-mode derivatives")


class _Backward(torch.autograd.Function):  # type: ignore[misc]  # untyped where torch isn't installed
    """(pullback, grad_output, grad_lse, query, key, value, *learned) -> gradients, for callers that derive further."""

    @staticmethod
    def forward(
        ctx: Any, pullback: "Pullback", grad_output: Tensor, grad_lse: Tensor | None, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        return tuple(pullback(grad_output, grad_lse, list(tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise unsupported("second derivatives")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise unsupported("forward-mode derivatives of a backward pass")


@dataclass(frozen=True, slots=True, eq=False)
class Pullback:
    """Gradients of a call whose forward pass has run."""

    bound: Bound
    """Without the memory of its inputs."""
    slots: tuple[int, ...]
    output: Tensor
    lse: Tensor

    def __call__(self, grad_output: Tensor, grad_lse: Tensor | None, tensors: list[Tensor]) -> list[Tensor]:
        """Of ``tensors`` = query, key, value and those of the slots."""
        bound = _with_inputs(self.bound, tensors[:3])
        graph, operands = bound.problem.graph, bound.operands
        tables = ranges.build_all(graph, operands.arrays)
        output, lse, cotangent = (as_view("gradient", tensor) for tensor in (self.output, self.lse, grad_output))
        rows = Rows(output, lse, cotangent, None if grad_lse is None else as_view("gradient", grad_lse))
        found = gradients.allocate(bound)
        wanted = tuple(slot for slot in self.slots if slot != _SINKS)
        prepared = gradients.prepare(bound, rows, found, tables, wanted)
        inputs = operands.query, operands.key, operands.value
        captured = gradients.run(prepared, inputs, rows, found, engine.capture(graph, operands, tables))
        if _SINKS in self.slots:
            captured[_SINKS] = sink_gradient(bound, rows)
        arrays = [bound.restore(array) for array in (found.query, found.key, found.value)]
        arrays += [captured[slot] for slot in self.slots]
        return [_like(as_tensor(array), tensor) for array, tensor in zip(arrays, tensors, strict=True)]


def _without_inputs(bound: Bound) -> Bound:
    """``bound`` without the memory of query, key and value, which autograd keeps, and may move or free."""
    shapes = (view.shape for view in (bound.operands.query, bound.operands.key, bound.operands.value))
    query, key, value = (np.broadcast_to(_NOTHING, shape) for shape in shapes)
    return replace(bound, operands=replace(bound.operands, query=query, key=key, value=value, sources=()))


def _with_inputs(bound: Bound, inputs: list[Tensor]) -> Bound:
    old = bound.operands
    views = (bound.canonical(as_view("input", tensor)) for tensor in inputs)
    shapes = old.query.shape, old.key.shape, old.value.shape
    query, key, value = (np.broadcast_to(view, shape) for view, shape in zip(views, shapes, strict=True))
    return replace(bound, operands=replace(old, query=query, key=key, value=value))


def _like(gradient: Tensor, tensor: Tensor) -> Tensor:
    """``gradient`` summed over what ``tensor`` was broadcast along, in its shape and dtype."""
    if gradient.numel() == tensor.numel():
        return gradient.reshape(tensor.shape).to(tensor.dtype)
    return gradient.double().sum_to_size(tensor.shape).to(tensor.dtype)
