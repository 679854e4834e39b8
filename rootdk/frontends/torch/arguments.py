"""A call's arguments as torch's users give them, and bound as the kernels take them."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from rootdk import problem
from rootdk.frontends.torch.tensors import as_view, plain
from rootdk.mods import graph_text
from rootdk.problem import Bound
from rootdk.score_graph import TracedMods

__all__ = ["Inputs", "Options", "WrittenMods", "accumulator", "bind", "empty_lse"]

Inputs = tuple[Tensor, Tensor, Tensor]
"""Query, key and value."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenMods:
    """A traced function as text, with the tensors that it reads."""

    text: str
    arrays: tuple[Tensor, ...]

    def read(self) -> TracedMods:
        traced = graph_text.read(self.text)
        views = tuple(as_view(name, array) for name, array in zip(traced.names, self.arrays, strict=True))
        return TracedMods(replace(traced, arrays=views, sources=self.arrays), origins=self.arrays)


@dataclass(frozen=True, slots=True)
class Options:
    """What ``rootdk.attention`` takes besides query, key and value."""

    mask: Any = None
    bias: Any = None
    score_mod: Any = None
    scale: Any = None
    sinks: Any = None
    dropout_p: Any = 0.0
    seed: Any = None
    layout: str = "bhsd"

    @property
    def learnable(self) -> bool:
        """Whether something may want a gradient beside query, key and value."""
        return not (self.mask is self.bias is self.score_mod is self.sinks is None)


def bind(inputs: Inputs, options: Options) -> Bound:
    """``problem.bind`` on views of the tensors."""
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    for name in ("bias", "sinks"):
        if isinstance(given[name], Tensor):
            given[name] = as_view(name, given[name])
    if isinstance(options.mask, Tensor):
        given["mask"] = plain("mask", options.mask)
    if isinstance(options.score_mod, WrittenMods):
        given["score_mod"] = options.score_mod.read()
    query, key, value = inputs
    return problem.bind(as_view("query", query), as_view("key", key), as_view("value", value), **given)


def empty_lse(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised LSE for inputs of ``dtype``."""
    return torch.empty(shape, dtype=accumulator(dtype))


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What inputs of ``dtype`` are summed in, and an LSE's type."""
    return torch.float64 if dtype is torch.float64 else torch.float32
