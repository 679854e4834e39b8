"""In which of torch's modes a call is made: which of them watch operators, and which change arguments."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rootdk.errors import ArgumentError, RootdkError
from rootdk.frontends.torch.errors import as_runtime_error

__all__ = ["cast_for_autocast", "has_tangent", "refuse_tangents", "transformed", "unsupported", "watched"]


def watched() -> bool:
    """Whether a compiler, torch.func, a tracer or a mode of torch watches for operators, or autocast changes them."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or torch.jit.is_tracing()
        or torch.is_autocast_enabled("cpu")
    )


def refuse_tangents(*tensors: Tensor | None) -> None:
    """Raise where forward mode follows one of ``tensors`` to an operator, whose tangent torch would take for zero."""
    if not transformed() and any(tensor is not None and has_tangent(tensor) for tensor in tensors):
        raise unsupported("forward-mode derivatives where a compiler or a mode of torch watches")


def transformed() -> bool:
    """Whether the call is made inside torch.func's transforms, which take no operator that is differentiable."""
    return bool(torch._C._are_functorch_transforms_active())


def has_tangent(tensor: Tensor) -> bool:
    """Whether forward-mode differentiation follows ``tensor``."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def unsupported(what: str) -> RootdkError:
    """The error for a derivative that rootdk does not compute."""
    error = ArgumentError(
        f"rootdk computes no {what}; torch's unfused attention does: "
        "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)"
    )
    return as_runtime_error(error)


def cast_for_autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors as torch's autocast passes them to its own attention: of its lower precision, but for float64."""
    if not torch.is_autocast_enabled("cpu"):
        return query, key, value
    dtype = torch.get_autocast_dtype("cpu")
    return query.to(dtype), key.to(dtype), value.to(dtype)
