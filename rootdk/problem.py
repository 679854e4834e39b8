"""WHAT is computed: one call's arguments, checked and bound into the values that plan, kernels and reference read.

``Problem`` is what the machine code may depend on, ``Operands`` is what it reads, and ``Bound`` holds both with what is
needed to give results in the caller's layout. Inside, arrays are always [*batch, heads, len, d] views.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rootdk import arguments
from rootdk.dtypes import DType
from rootdk.errors import DTypeError, ShapeError
from rootdk.mods.expr import Graph
from rootdk.score_graph import ScoreMods, trace_mods

__all__ = ["Bound", "Operands", "Problem", "bind", "check_inputs"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything about a call but the numbers in its arrays; hashable."""

    dtype: DType
    """Of query, key, value and output."""
    batch_shape: tuple[int, ...]
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    d_k: int
    d_v: int
    scale: float
    graph: Graph
    """Score functions, bias and mask in one; its ``b`` is the index into the flattened batch."""
    sinks: bool
    dropout_p: float

    @property
    def batch(self) -> int:
        return math.prod(self.batch_shape)

    @property
    def groups(self) -> int:
        """Query heads per key head: head h reads key head h // groups."""
        return self.heads // self.kv_heads if self.kv_heads else 1

    @property
    def score_shape(self) -> tuple[int, ...]:
        """[*batch, heads, q_len, kv_len], which masks and biases broadcast to."""
        return (*self.batch_shape, self.heads, self.q_len, self.kv_len)


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """The arrays of a call, as views of the caller's, broadcast over the batch with stride 0."""

    query: np.ndarray
    """[*batch, heads, q_len, d_k]."""
    key: np.ndarray
    """[*batch, kv_heads, kv_len, d_k]."""
    value: np.ndarray
    """[*batch, kv_heads, kv_len, d_v]."""
    sinks: np.ndarray | None
    """[heads], of the accumulator's type."""
    constants: tuple[int | float, ...]
    arrays: tuple[np.ndarray, ...]
    """One per array slot of the graph."""
    names: tuple[str, ...]
    """What the user's function calls each array slot."""
    sources: tuple[Any, ...]
    """The array of each slot as its holder has it, of whatever library; of a bias, ``arrays``' own view."""
    sites: dict[int, str]
    """Where in the user's source each gather stands, by node."""
    bias: int | None
    """The array slot that holds the bias, its dimensions of size 1 left out."""
    origins: tuple[Any, ...]
    """What the caller passed or captured for each slot, with all of its dimensions."""
    asked: bool
    """The graph depends on the contents of captured arrays."""
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """One call, ready to be planned or run."""

    problem: Problem
    operands: Operands
    layout: str
    headless: bool
    """All arrays came as [len, d], so the results have no head dimension either."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of the output as the caller gets it."""
        return self._caller_shape(self.problem.d_v)

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """Of the LSE as the caller gets it."""
        return self._caller_shape()

    def _caller_shape(self, *last: int) -> tuple[int, ...]:
        problem = self.problem
        if self.headless:
            return (problem.q_len, *last)
        rows = (problem.heads, problem.q_len) if self.layout == "bhsd" else (problem.q_len, problem.heads)
        return (*problem.batch_shape, *rows, *last)

    def canonical(self, array: np.ndarray) -> np.ndarray:
        """A [*batch, heads, len, d] view of an array in the caller's layout."""
        return _canonical(array, self.layout)

    def restore(self, array: np.ndarray) -> np.ndarray:
        """The inverse of ``canonical``, for an output."""
        return array[0] if self.headless else _canonical(array, self.layout)

    def canonical_rows(self, array: np.ndarray) -> np.ndarray:
        """A [*batch, heads, len] view of an LSE in the caller's layout."""
        return self.canonical(array[..., None])[..., 0]

    def row_view(self, array: np.ndarray | None) -> np.ndarray:
        """``array``, an LSE in the caller's layout or None, as [*batch, heads, len, 1]."""
        if array is None:
            return np.empty((*self.problem.batch_shape, 0, 0, 1))
        return self.canonical_rows(array)[..., None]

    def restore_rows(self, array: np.ndarray) -> np.ndarray:
        """The inverse of ``canonical_rows``, for an LSE."""
        return self.restore(array[..., None])[..., 0]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Query, key and value as they came, and as [..., heads, len, d] views."""

    arrays: tuple[np.ndarray, np.ndarray, np.ndarray]
    layout: str
    views: tuple[np.ndarray, np.ndarray, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        query, key, value = self.arrays
        layout = self.layout
        views = _canonical(query, layout), _canonical(key, layout), _canonical(value, layout)
        object.__setattr__(self, "views", views)

    def __str__(self) -> str:
        query, key, value = self.arrays
        return f'query {query.shape}, key {key.shape}, value {value.shape}, layout "{self.layout}"'


def bind(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    mask: Any = None,
    bias: np.ndarray | None = None,
    score_mod: Any = None,
    scale: Any = None,
    sinks: np.ndarray | None = None,
    dropout_p: Any = 0.0,
    seed: int | None = None,
    layout: str = "bhsd",
) -> Bound:
    """Check the arguments of ``rootdk.attention`` and bind them; user functions are traced here, once.

    Returns views of the caller's arrays, never copies of them. Raises a ``RootdkError`` that names the argument, what
    was expected, what came, and what to do.
    """
    dtype, inputs, batch_shape = check_inputs(query, key, value, layout)
    query_view, key_view, value_view = (_broadcast(view, batch_shape) for view in inputs.views)
    heads, q_len, d_k = query_view.shape[-3:]
    kv_heads, kv_len, d_v = value_view.shape[-3:]
    if bias is not None:
        arguments.check_bias(bias)
    mods = trace_mods(ScoreMods(mask, bias, score_mod), (*batch_shape, heads, q_len, kv_len))
    probability = arguments.as_probability("dropout_p", dropout_p)
    sink_logits = arguments.as_sinks(sinks, heads, dtype.accumulator)
    # an unused seed is still checked, but none is drawn
    number = 0 if seed is None and not probability else arguments.as_seed(seed)
    problem = Problem(
        dtype=dtype,
        batch_shape=batch_shape,
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        d_k=d_k,
        d_v=d_v,
        scale=arguments.as_scale(scale, d_k),
        graph=mods.traced.graph,
        sinks=sink_logits is not None,
        dropout_p=probability,
    )
    operands = Operands(
        query=query_view,
        key=key_view,
        value=value_view,
        sinks=sink_logits,
        constants=mods.traced.constants,
        arrays=mods.traced.arrays,
        names=mods.traced.names,
        sources=mods.traced.sources,
        sites=mods.traced.sites,
        bias=mods.bias,
        origins=mods.origins,
        asked=mods.asked,
        seed=number,
    )
    return Bound(problem, operands, layout, headless=query.ndim == key.ndim == value.ndim == 2)


def check_inputs(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, layout: str
) -> tuple[DType, "_Inputs", tuple[int, ...]]:
    """The dtype, the arrays as views, and the batch dimensions that they broadcast to, once every rule holds."""
    dtype = _shared_dtype(query, key, value)
    inputs = _Inputs((query, key, value), arguments.as_layout(layout))
    return dtype, inputs, _check_shapes(inputs)


def _shared_dtype(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> DType:
    dtype = arguments.check_float("query", query)
    for name, array in (("key", key), ("value", value)):
        if arguments.check_float(name, array) is not dtype:
            raise DTypeError(
                f"{name}: expected {query.dtype}, as query is, got {array.dtype}; convert it: "
                f"{name}.astype(query.dtype)"
            )
    return dtype


def _canonical(array: np.ndarray, layout: str) -> np.ndarray:
    if array.ndim < 3:
        return array[None]
    return array if layout == "bhsd" else array.swapaxes(-3, -2)


def _broadcast(view: np.ndarray, batch_shape: tuple[int, ...]) -> np.ndarray:
    if view.shape[:-3] == batch_shape:
        return view
    return np.broadcast_to(view, (*batch_shape, *view.shape[-3:]))


def _check_shapes(inputs: _Inputs) -> tuple[int, ...]:
    """The batch dimensions that query, key and value broadcast to, once every dimension rule holds."""
    for name, array in zip(("query", "key", "value"), inputs.arrays, strict=True):
        if array.ndim < 2:
            raise ShapeError(
                f"{name}: expected [..., heads, len, d] or [len, d], got shape {array.shape}; of a vector: {name}[None]"
            )
    query, key, value = (view.shape for view in inputs.views)
    if key[-1] != query[-1]:
        raise ShapeError(f"key: expected d_k = {query[-1]} as last dimension, as query has, got {key[-1]} ({inputs})")
    if key[-2] != value[-2]:
        raise ShapeError(f"value: expected kv_len = {key[-2]}, as key has, got {value[-2]} ({inputs})")
    if key[-3] != value[-3]:
        raise ShapeError(f"value: expected kv_heads = {key[-3]}, as key has, got {value[-3]} ({inputs})")
    if query[-3] % key[-3] if key[-3] else query[-3]:
        raise ShapeError(
            f"key: expected kv_heads that divide the {query[-3]} heads of query, got {key[-3]} ({inputs}); "
            f"{_layout_hint(inputs)}"
        )
    if query[:-3] == key[:-3] == value[:-3]:
        return query[:-3]
    try:
        return np.broadcast_shapes(query[:-3], key[:-3], value[:-3])
    except ValueError:
        raise ShapeError(
            f"query, key, value: expected batch dimensions that broadcast, got {query[:-3]}, {key[:-3]}, {value[:-3]} "
            f"({inputs}); each must be 1 or the same"
        ) from None


def _layout_hint(inputs: _Inputs) -> str:
    heads, kv_heads = inputs.views[0].shape[-2], inputs.views[1].shape[-2]
    if min(array.ndim for array in inputs.arrays) > 2 and kv_heads and heads % kv_heads == 0:
        other = "bshd" if inputs.layout == "bhsd" else "bhsd"
        return f'if the other order of heads and len is meant, pass layout="{other}"'
    return "head h of query reads head h // (heads // kv_heads) of key"
