"""Calls that torch watches, or whose tensors have no memory: the mods are traced, and the operator is called."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rootdk import arguments, problem
from rootdk.frontends.torch import operators, transforms
from rootdk.frontends.torch.arguments import Inputs, Options
from rootdk.frontends.torch.modes import has_numbers, refuse_tangents, transformed
from rootdk.frontends.torch.shapes import Form
from rootdk.frontends.torch.tensors import as_tensor, numpy_dtype, refusal, unreadable
from rootdk.mods import graph_text
from rootdk.mods.foreign import as_ndarray
from rootdk.mods.refusals import refuse
from rootdk.mods.trace import Traced, Tracer
from rootdk.score_graph import ScoreMods, TracedMods, trace_mods

__all__ = ["OperatorTracer", "attend", "operate", "operate_traced", "seed_tensor"]


def attend(inputs: Inputs, options: Options, memory: str) -> tuple[Tensor, Tensor]:
    """Output and LSE; ``memory`` as operators take it."""
    form = Form.of(inputs, _checked(inputs, options))
    inputs = form.canonical(inputs)
    *batch, heads, q_len, _ = inputs[0].shape
    shape = *batch, heads, q_len, inputs[1].shape[-2]
    mods = trace_mods(ScoreMods(options.mask, options.bias, options.score_mod), shape, OperatorTracer)
    output, lse = operate_traced(inputs, mods, options, memory)
    return form.restore(output), form.restore_rows(lse)


def operate_traced(inputs: Inputs, mods: TracedMods, options: Options, memory: str) -> tuple[Tensor, Tensor]:
    """The operator on canonical inputs, with mods that ``OperatorTracer`` traced."""
    arrays = [_as_argument(source) for source in mods.traced.sources]
    seed = seed_tensor(options.seed) if options.dropout_p else None
    scale = None if options.scale is None else float(options.scale)
    text = graph_text.write(mods.traced)
    return operate(inputs, arrays, options.sinks, seed, text, float(options.dropout_p), scale, memory)


def operate(inputs: Inputs, arrays: list[Tensor], sinks: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    """The operator, in the form that whoever watches takes."""
    refuse_tangents(*inputs, *arrays, sinks)
    call = transforms.forward if transformed() else operators.forward
    found: tuple[Tensor, Tensor] = call(*inputs, arrays, sinks, *rest)
    return found


def seed_tensor(seed: Any) -> Tensor:
    """A seed as an operator takes it; drawn from torch's generator if None, so that torch.manual_seed repeats it."""
    if seed is None:
        return torch.randint(2**63 - 1, ())
    if isinstance(seed, Tensor):
        return seed.to(torch.int64)
    number = arguments.as_seed(seed)
    return torch.tensor(number if number < 2**63 else number - 2**64)


def _checked(inputs: Inputs, options: Options) -> str:
    """The layout, once all is checked that can be without numbers."""
    for name, tensor in (*zip(("query", "key", "value"), inputs, strict=True), ("sinks", options.sinks)):
        if isinstance(tensor, Tensor) and not tensor.is_meta and refusal(tensor) is not None:
            raise unreadable(name, tensor)
    layout = arguments.as_layout(options.layout)
    query, key, value = (_stand_in(tensor) for tensor in inputs)
    problem.check_inputs(query, key, value, layout)
    if options.bias is not None:
        arguments.check_bias(_stand_in(options.bias))
    arguments.as_scale(options.scale, 1)
    arguments.as_probability("dropout_p", options.dropout_p)
    return layout


def _stand_in(tensor: Any) -> Any:
    """Zeros of one element, in the shape and the element type of ``tensor``; other things as they are."""
    if not isinstance(tensor, Tensor):
        return tensor
    return np.broadcast_to(np.zeros((), numpy_dtype(tensor)), tuple(tensor.shape))


@dataclass(frozen=True, slots=True, eq=False)
class _Unread:
    """What a tracer asks of an array: nothing but this."""

    shape: tuple[Any, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)


class OperatorTracer(Tracer):
    """Traces where tensors may have no numbers, and sizes none yet: those are read when the operator runs."""

    def view(self, source: Any, name: str) -> Any:
        if not isinstance(source, Tensor):
            return super().view(source, name)
        if not source.is_meta and refusal(source) is not None:
            raise unreadable(name, source)
        return _Unread(tuple(source.shape), numpy_dtype(source))

    def operand(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt | torch.SymFloat):
            dtype = torch.int64 if isinstance(value, torch.SymInt) else torch.float64
            value = torch.scalar_tensor(value, dtype=dtype)
        return super().operand(value)

    def numbers(self, traced: Traced) -> tuple[np.ndarray, ...]:
        for name, source in zip(traced.names, traced.sources, strict=True):
            if isinstance(source, Tensor) and not has_numbers(source):
                raise refuse(
                    f"this needs the value of {name}, which has none yet where a compiler or a transform of torch runs",
                    "use where(condition, a, b), or capture a Python number",
                )
        return tuple(as_ndarray(source, "array") for source in traced.sources)


def _as_argument(source: Any) -> Tensor:
    """A captured array as a tensor; of NumPy's, one that shares its memory where torch can."""
    if isinstance(source, Tensor):
        return source
    view = as_ndarray(source, "array")
    if not view.flags.writeable or any(stride < 0 for stride in view.strides):
        view = view.copy()
    # lifted, as whoever traces takes no tensor that it has not seen made
    lifted: Tensor = torch.ops.aten.lift_fresh(as_tensor(view))
    return lifted
