"""The switch that routes torch.nn.functional.scaled_dot_product_attention to rootdk."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rootdk.frontends.torch.sdpa import scaled_dot_product_attention
from rootdk.frontends.torch.tensors import FLOATS, refusal

__all__ = ["enabled"]

_lock = threading.Lock()
_contexts = 0
_fused_layers = True
_said: set[str] = set()
_torchs_own = torch.nn.functional.scaled_dot_product_attention


@contextmanager
def enabled() -> Iterator[None]:
    """Inside it, rootdk computes what is passed to torch.nn.functional.scaled_dot_product_attention.

    So it does for torch's layers and for model code that calls that function, in every thread, until the last of the
    contexts that are open ends. Tensors that rootdk does not read (on another device, nested, ...) are left to torch,
    with one warning for each reason.

    >>> with rootdk.torch.enabled():
    ...     hidden = model(inputs)
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _contexts, _torchs_own, _fused_layers
    with _lock:
        _contexts += 1
        if _contexts == 1:
            _torchs_own = torch.nn.functional.scaled_dot_product_attention
            torch.nn.functional.scaled_dot_product_attention = _routed
            # in evaluation torch's layers call an operator of their own, with an attention that nobody can route
            _fused_layers = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)


def _leave() -> None:
    global _contexts
    with _lock:
        _contexts -= 1
        if _contexts == 0:
            torch.nn.functional.scaled_dot_product_attention = _torchs_own
            torch.backends.mha.set_fastpath_enabled(_fused_layers)


def _routed(*args: Any, **kwargs: Any) -> Tensor:
    reason = _left_to_torch([*args, *kwargs.values()])
    if reason is None:
        return scaled_dot_product_attention(*args, **kwargs)
    _say_once(reason)
    output: Tensor = _torchs_own(*args, **kwargs)
    return output


def _left_to_torch(arguments: list[Any]) -> str | None:
    """Why torch has to take a call with ``arguments``."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            reason = refusal(argument)
            if reason is not None:
                return reason
            if argument.dtype not in FLOATS and argument.dtype is not torch.bool:
                return f"{argument.dtype} is none of the types that rootdk computes in"
    return None


def _say_once(reason: str) -> None:
    with _lock:
        if reason in _said:
            return
        _said.add(reason)
    warnings.warn(f"scaled_dot_product_attention was left to torch: {reason}", RuntimeWarning, stacklevel=4)
