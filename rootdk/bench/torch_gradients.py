"""Gradients of torch tensors, whoever computes the attention, and what a call on tensors costs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from rootdk.bench.cases import Case, draw
from rootdk.torch import flex_attention as our_flex_attention
from rootdk.torch import scaled_dot_product_attention as our_scaled_dot_product_attention

if TYPE_CHECKING:
    from rootdk.bench.backward import Work

__all__ = ["ATTENTIONS", "ENTRIES", "call", "entry"]


@dataclass(frozen=True)
class _Inputs:
    query: Tensor
    key: Tensor
    value: Tensor
    learned: Tensor | None

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for tensor in vars(self).values() if tensor is not None]


Attend = Callable[[_Inputs, "Work"], Tensor]


def _rootdk(inputs: _Inputs, work: "Work") -> Tensor:
    table = inputs.learned
    if work.learned != "table" or table is None:
        return _call(our_scaled_dot_product_attention, inputs, inputs.learned, work)
    last = work.case.q_len - 1

    def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[h, kv_idx - q_idx + last]

    output: Tensor = our_flex_attention(inputs.query, inputs.key, inputs.value, score_mod=relative)
    return output


def _fused(inputs: _Inputs, work: "Work") -> Tensor:
    return _call(scaled_dot_product_attention, inputs, _bias(inputs, work), work)


def _eager(inputs: _Inputs, work: "Work") -> Tensor:
    scores, bias = inputs.query @ inputs.key.mT * work.case.d_k**-0.5, _bias(inputs, work)
    weights = (scores if bias is None else scores + bias).softmax(-1)
    return dropout(weights, work.dropout_p) @ inputs.value


def _call(attention: Callable[..., Any], inputs: _Inputs, bias: Tensor | None, work: "Work") -> Tensor:
    causal = work.case.pattern == "causal"
    output: Tensor = attention(inputs.query, inputs.key, inputs.value, bias, work.dropout_p, causal)
    return output


def _bias(inputs: _Inputs, work: "Work") -> Tensor | None:
    """What is learned as [..., heads, q_len, kv_len]."""
    if work.learned != "table" or inputs.learned is None:
        return inputs.learned
    q_idx, kv_idx = torch.arange(work.case.q_len)[:, None], torch.arange(work.case.kv_len)
    return inputs.learned[:, kv_idx - q_idx + work.case.q_len - 1]


ATTENTIONS: Mapping[str, Attend] = {"rootdk": _rootdk, "torch": _fused, "eager": _eager}


def call(work: "Work", attend: Attend) -> Callable[[], tuple[Tensor, ...]]:
    """A function that returns the gradients of ``work``, with forward after the output that it computes first."""
    query, key, value = _tensors(work.case, requires_grad=True)
    inputs = _Inputs(query, key, value, _learned(work))
    grad_output = torch.from_numpy(draw(work.case, seed=1)[2])
    if not work.forward:
        return partial(torch.autograd.grad, attend(inputs, work), inputs.tensors, grad_output, retain_graph=True)

    def both() -> tuple[Tensor, ...]:
        output = attend(inputs, work)
        return output.detach(), *torch.autograd.grad(output, inputs.tensors, grad_output)

    return both


def _tensors(case: Case, requires_grad: bool) -> list[Tensor]:
    return [torch.from_numpy(array).requires_grad_(requires_grad) for array in draw(case)]


def _learned(work: "Work") -> Tensor | None:
    case = work.case
    shapes = {"bias": (1, case.heads, case.q_len, case.kv_len), "table": (case.heads, case.q_len + case.kv_len - 1)}
    if not work.learned:
        return None
    return torch.randn(shapes[work.learned], generator=torch.Generator().manual_seed(0)).requires_grad_()


ENTRIES: Mapping[str, Callable[..., Any]] = {
    "rootdk": our_scaled_dot_product_attention,
    "torch": scaled_dot_product_attention,
}


def entry(name: str, case: Case, requires_grad: bool) -> Callable[[], Any]:
    """One call of ``ENTRIES[name]`` on plain tensors; with ``requires_grad`` it also notes how to go back."""
    return partial(ENTRIES[name], *_tensors(case, requires_grad))
