"""A call that is bound but for the memory of query, key and value: it runs, and it is differentiated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from rootdk import engine, gradients, second_order
from rootdk.frontends.torch.arguments import Inputs, Options, bind
from rootdk.frontends.torch.tensors import as_tensor, as_view
from rootdk.mods import ranges
from rootdk.problem import Bound
from rootdk.runtime.workspace import address
from rootdk.second_order import Direction
from rootdk.sink_gradients import sink_gradient

__all__ = ["SINKS", "Call", "Results", "bind_call", "read_tensors"]

SINKS = -1
"""Stands for the sinks among array slots."""

Results = tuple[Tensor, Tensor | None]
"""Output and LSE, or what goes with them: cotangents, tangents."""


def read_tensors(bound: Bound, options: Options) -> dict[int, Tensor]:
    """The tensors that a call reads beside query, key and value, by array slot."""
    sources = {**dict(enumerate(bound.operands.sources)), SINKS: options.sinks}
    if bound.operands.bias is not None:
        sources[bound.operands.bias] = options.bias
    return {slot: source for slot, source in sources.items() if isinstance(source, Tensor)}


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What is known of a call before its query, key and value."""

    bound: Bound
    """Its inputs have their shapes, but no memory."""
    tables: tuple[np.ndarray, ...]
    captured: engine.Captured
    prepared: dict[Any, Any] = field(default_factory=dict)
    """Kernels ready to run, by what else they depend on: strides of results and gradients."""

    def run(self, inputs: Inputs, output: Tensor, lse: Tensor | None) -> None:
        """Fill ``output`` and ``lse``; the tensors are plain ones in this machine's memory."""
        query, key, value = inputs
        kind = output.stride(), lse is None
        prepared = self.prepared.get(kind) or self._prepare(inputs, output, lse)
        sinks = self.bound.operands.sinks
        addresses = (
            query.data_ptr(), key.data_ptr(), value.data_ptr(), output.data_ptr(),
            0 if lse is None else lse.data_ptr(), 0 if sinks is None else address(sinks),
        )  # fmt: skip
        engine.launch(prepared, addresses, self.captured)

    def _prepare(self, inputs: Inputs, output: Tensor, lse: Tensor | None) -> engine.Prepared:
        results = as_view("output", output), None if lse is None else as_view("lse", lse)
        prepared = engine.prepare(self.with_inputs(inputs), *results, self.tables)
        self.prepared[output.stride(), lse is None] = prepared
        return prepared

    def with_inputs(self, inputs: Sequence[Tensor]) -> Bound:
        """The bound call, with the memory of ``inputs``."""
        bound, old = self.bound, self.bound.operands
        views = (bound.canonical(as_view("input", tensor)) for tensor in inputs)
        shapes = old.query.shape, old.key.shape, old.value.shape
        query, key, value = (np.broadcast_to(view, shape) for view, shape in zip(views, shapes, strict=True))
        return replace(bound, operands=replace(old, query=query, key=key, value=value))

    def pull_back(
        self, tensors: Sequence[Tensor], slots: tuple[int, ...], results: Results, cotangents: Results
    ) -> list[Tensor]:
        """Gradients of ``tensors``: query, key, value and what is in ``slots``."""
        output, lse, grad_output = (as_view("gradient", tensor) for tensor in (*results, cotangents[0]))
        grad_lse = None if cotangents[1] is None else as_view("gradient", cotangents[1])
        rows = gradients.Rows(output, lse, grad_output, grad_lse)
        found = gradients.allocate(self.bound)
        wanted = tuple(slot for slot in slots if slot != SINKS)
        kind = wanted, grad_output.strides, None if grad_lse is None else grad_lse.strides
        prepared = self.prepared.get(kind)
        if prepared is None:
            prepared = gradients.prepare(self.with_inputs(tensors[:3]), rows, found, self.tables, wanted)
            self.prepared[kind] = prepared
        query, key, value = (as_view("input", tensor) for tensor in tensors[:3])
        captured = gradients.run(prepared, (query, key, value), rows, found, self.captured)
        if SINKS in slots:
            captured[SINKS] = sink_gradient(self.with_inputs(tensors[:3]), rows)
        return self._like_tensors((found.query, found.key, found.value), captured, slots, tensors)

    def push_forward(
        self, tensors: Sequence[Tensor], slots: tuple[int, ...], tangents: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor]:
        """Tangents of output and LSE where ``tensors`` move along ``tangents``."""
        output, lse = second_order.jvp(self.with_inputs(tensors[:3]), _direction(slots, tangents))
        return as_tensor(output), as_tensor(lse)

    def pull_back_twice(
        self, tensors: Sequence[Tensor], slots: tuple[int, ...], cotangents: Results,
        directions: Sequence[Tensor | None],
    ) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
        """Gradients of <directions, pull_back(...)> by ``cotangents``, and by ``tensors``."""
        bound = self.with_inputs(tensors[:3])
        grad_output, grad_lse = (None if tensor is None else as_view("gradient", tensor) for tensor in cotangents)
        assert grad_output is not None
        wanted = tuple(slot for slot in slots if slot != SINKS)
        found = second_order.double_backward(bound, grad_output, grad_lse, _direction(slots, directions), wanted)
        captured = {**found.captured, SINKS: found.sinks}
        inputs = found.query, found.key, found.value
        by_cotangents = [as_tensor(found.grad_output), as_tensor(found.grad_lse)]
        return by_cotangents, self._like_tensors(inputs, captured, slots, tensors)

    def _like_tensors(
        self, inputs: Sequence[np.ndarray], captured: Mapping[int, np.ndarray], slots: tuple[int, ...],
        tensors: Sequence[Tensor],
    ) -> list[Tensor]:  # fmt: skip
        arrays = [self.bound.restore(array) for array in inputs] + [captured[slot] for slot in slots]
        return [_like(as_tensor(array), tensor) for array, tensor in zip(arrays, tensors, strict=True)]


def bind_call(inputs: Inputs, options: Options) -> Call:
    """Check, trace and capture; what is learned by it is in ``Call.bound``."""
    bound = bind(inputs, options)
    graph, operands = bound.problem.graph, bound.operands
    tables = ranges.build_all(graph, operands.arrays)
    views = operands.query, operands.key, operands.value
    query, key, value = (np.broadcast_to(np.zeros((), view.dtype), view.shape) for view in views)
    bare = replace(bound, operands=replace(operands, query=query, key=key, value=value))
    return Call(bare, tables, engine.capture(graph, operands, tables))


def _direction(slots: tuple[int, ...], moves: Sequence[Tensor | None]) -> Direction:
    query, key, value, *rest = (None if tensor is None else as_view("tangent", tensor) for tensor in moves)
    captured = {slot: array for slot, array in zip(slots, rest, strict=True) if array is not None}
    return Direction(query, key, value, captured.pop(SINKS, None), captured)


def _like(gradient: Tensor, tensor: Tensor) -> Tensor:
    """``gradient`` summed over what ``tensor`` was broadcast along, in its shape and dtype."""
    if gradient.shape == tensor.shape and gradient.dtype is tensor.dtype:
        return gradient
    if gradient.numel() == tensor.numel():
        return gradient.reshape(tensor.shape).to(tensor.dtype)
    return gradient.double().sum_to_size(tensor.shape).to(tensor.dtype)
