"""Scaled dot-product attention for CPUs, compiled from Python."""

from importlib import import_module
from typing import Any

from rootdk.api import attention, attention_vjp, plan
from rootdk.errors import ArgumentError, BoundsError, CacheError, DTypeError, ModError, RootdkError, ShapeError
from rootdk.masks import causal, documents, lengths, mask, prefix_lm, sink_tokens, sliding_window
from rootdk.runtime.threads import get_num_threads, set_num_threads
from rootdk.scores import alibi, relative_bias, score, softcap

__all__ = [
    "ArgumentError", "BoundsError", "CacheError", "DTypeError", "ModError", "RootdkError", "ShapeError",
    "alibi", "attention", "attention_vjp", "causal", "documents", "get_num_threads", "lengths", "mask", "plan",
    "prefix_lm", "reference", "relative_bias", "score", "set_num_threads", "sink_tokens", "sliding_window", "softcap",
    "torch",
]  # fmt: skip

_ON_FIRST_USE = ("reference", "torch")


def __getattr__(name: str) -> Any:
    """The modules that not every program needs; ``rootdk.torch`` imports torch."""
    if name in _ON_FIRST_USE:
        return import_module(f"rootdk.{name}")
    raise AttributeError(f"module 'rootdk' has no attribute {name!r}")
