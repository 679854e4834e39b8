"""Query, key and value in the one form that operators take, and results back in the caller's."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rootdk.frontends.torch.arguments import Inputs

__all__ = ["Form", "with_one_batch"]


@dataclass(frozen=True, slots=True)
class Form:
    """The caller's: "bhsd" or "bshd", and whether all came as [len, d]."""

    layout: str
    headless: bool

    @classmethod
    def of(cls, inputs: Inputs, layout: str) -> "Form":
        return cls(layout, all(tensor.ndim == 2 for tensor in inputs))

    def canonical(self, inputs: Inputs) -> Inputs:
        """[*batch, heads, len, d] views with the same batch dimensions."""
        query, key, value = (self._canonical(tensor) for tensor in inputs)
        return with_one_batch((query, key, value), keep=3)

    def _canonical(self, tensor: Tensor) -> Tensor:
        if tensor.ndim == 2:
            return tensor.unsqueeze(0)
        return tensor if self.layout == "bhsd" else tensor.transpose(-3, -2)

    def restore(self, output: Tensor) -> Tensor:
        """An output as the caller's layout has it."""
        if self.headless:
            return output.squeeze(0)
        return output if self.layout == "bhsd" else output.transpose(-3, -2)

    def restore_rows(self, lse: Tensor) -> Tensor:
        """The same of an LSE."""
        if self.headless:
            return lse.squeeze(0)
        return lse if self.layout == "bhsd" else lse.transpose(-2, -1).contiguous()


def with_one_batch(inputs: Inputs, keep: int) -> Inputs:
    """Views that repeat what broadcasts over all but the last ``keep`` dimensions. Raises torch's RuntimeError."""
    shapes = [tensor.shape[:-keep] for tensor in inputs]
    if shapes[0] == shapes[1] == shapes[2]:
        return inputs
    leading = torch.broadcast_shapes(*shapes)
    query, key, value = (tensor.expand(*leading, *tensor.shape[-keep:]) for tensor in inputs)
    return query, key, value
