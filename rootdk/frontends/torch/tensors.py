"""Tensors as NumPy views of the same memory, and results as tensors."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rootdk.dtypes import BFLOAT16_BITS
from rootdk.errors import ArgumentError, DTypeError

__all__ = ["FLOATS", "as_tensor", "as_view", "is_plain", "numpy_dtype", "plain", "refusal", "unreadable"]

_PLAIN = (Tensor, torch.nn.Parameter)
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def refusal(tensor: Tensor) -> str | None:
    """Why rootdk cannot read ``tensor``, and what to do; None if it can."""
    if tensor.is_nested:
        return "a nested tensor has no common length; pad it (tensor.to_padded_tensor(0.0)) and mask the padding"
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}; convert it: tensor.to_dense()"
    if not tensor.is_cpu:
        return f"it is on {tensor.device}, and rootdk computes on CPUs; move it: tensor.cpu()"
    if tensor.is_quantized:
        return "it is quantized; convert it: tensor.dequantize()"
    return None


def unreadable(name: str, tensor: Tensor) -> ArgumentError:
    """The error for a tensor that ``refusal`` gives a reason against."""
    return ArgumentError(f"{name}: expected a dense tensor in this machine's memory, but {refusal(tensor)}")


def as_view(name: str, tensor: Any) -> np.ndarray:
    """``tensor`` as an ndarray that shares its memory, bfloat16 as its bits; named ``name`` in errors."""
    tensor = plain(name, tensor)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        bits: np.ndarray = tensor.view(torch.int16).numpy()
        return bits.view(BFLOAT16_BITS)
    try:
        view: np.ndarray = tensor.numpy()
    except TypeError as error:
        raise DTypeError(f"{name}: expected a dtype that NumPy knows too, got {tensor.dtype}") from error
    return view


def numpy_dtype(tensor: Tensor) -> np.dtype:
    """The dtype of ``as_view``'s array. Raises DTypeError where NumPy has none."""
    if tensor.dtype is torch.bfloat16:
        return BFLOAT16_BITS
    try:
        return np.dtype(str(tensor.dtype).rpartition(".")[2])
    except TypeError as error:
        raise DTypeError(f"expected a dtype that NumPy knows too, got {tensor.dtype}") from error


def plain(name: str, tensor: Any) -> Tensor:
    """``tensor`` itself, whose memory rootdk can read; a lazily negated one is written out, as its memory is not."""
    if not isinstance(tensor, Tensor):
        raise DTypeError(f"{name}: expected a tensor, got {type(tensor).__name__}; convert it: torch.as_tensor({name})")
    if is_plain(tensor):
        return tensor
    if refusal(tensor) is not None:
        raise unreadable(name, tensor)
    return tensor.resolve_conj().resolve_neg()


def is_plain(tensor: Tensor) -> bool:
    """Whether ``tensor`` is nothing but numbers with strides in this machine's memory."""
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_neg() or tensor.is_conj() or tensor.is_quantized)
    )


def as_tensor(array: np.ndarray) -> Tensor:
    """``array`` as a tensor that shares its memory; the inverse of ``as_view``."""
    if array.dtype == BFLOAT16_BITS:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
