"""In which of torch's modes a call is made: which of them watch operators, and which change arguments."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rootdk.errors import ArgumentError, RootdkError
from rootdk.frontends.torch.errors import as_runtime_error
from rootdk.frontends.torch.tensors import is_plain

__all__ = [
    "cast_for_autocast",
    "has_numbers",
    "has_tangent",
    "outside_graphs",
    "refuse_tangents",
    "transformed",
    "unsupported",
    "watched",
]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def watched() -> bool:
    """Whether a compiler, torch.func, a tracer or a mode of torch watches for operators."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._is_tracing()
    )


def outside_graphs(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Have torch.compile leave ``function`` out of its graphs: it traces functions of the user's in its own way."""
    eager: Callable[_Arguments, _Result] = torch.compiler.disable(function)

    @functools.wraps(function)
    def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        # the wrapped one costs a microsecond, which calls outside of compiled code need not pay
        return (eager if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return wrapper


def refuse_tangents(*tensors: Tensor | None) -> None:
    """Raise where forward mode follows one of ``tensors`` to an operator, whose tangent torch would take for zero."""
    if not transformed() and any(tensor is not None and has_tangent(tensor) for tensor in tensors):
        raise unsupported("forward-mode derivatives where a compiler or a mode of torch watches")


def has_numbers(tensor: Tensor) -> bool:
    """Whether the numbers in ``tensor`` can be asked for now, and are those of every later run too."""
    return (
        is_plain(tensor)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._C._is_tracing()
        and all(torch._C._get_dispatch_mode(key) is None for key in _TRACERS)
    )


_TRACERS = (
    torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)  # fmt: skip


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
    query, key, value = (x if x.dtype is torch.float64 else x.to(dtype) for x in (query, key, value))
    return query, key, value
