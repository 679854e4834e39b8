"""Attention as its definition reads, in NumPy, with every intermediate shown: what correct means for all of rootdk.

It stores the [q_len, kv_len] scores that the kernels never do, so it is for looking and for testing:

    S   = Q Kᵀ               raw scores; query head h reads key head h // groups
    S'  = scale · S          scaled scores
    S'' = score_mod(S') + bias, then mask: hidden pairs are -inf
    A   = softmax(S'')       with sinks, one more term exp(sink) in each row's sum
    O   = dropout(A) V

A pair is *visible* where the mask shows it and its modified score is not -inf. Only visible pairs take part, by
selection and never by a product with zero, so that NaN or inf in a hidden key or value reaches nothing. A row without a
visible key gives output 0, weights 0, LSE -inf (the sink's logit, if it has one) and passes on no gradient.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rootdk import dropout
from rootdk.dtypes import Kind, to_float64
from rootdk.errors import ShapeError
from rootdk.mods.derivative import differentiate
from rootdk.mods.evaluate import Values, element_kind, evaluate
from rootdk.mods.expr import Graph, GraphBuilder
from rootdk.out_of_bounds import bounds_error
from rootdk.problem import Bound, Problem, bind

__all__ = ["Gradients", "Result", "attention", "attention_vjp"]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Every step of one call; scores and weights are [*batch, heads, q_len, kv_len], without heads for 2-D inputs."""

    raw_scores: np.ndarray
    scaled_scores: np.ndarray
    modified_scores: np.ndarray
    """After score functions and bias."""
    masked_scores: np.ndarray
    """-inf where the pair is hidden."""
    weights: np.ndarray
    """After the softmax, before dropout; rows sum to 1, less the sink's share."""
    output: np.ndarray
    """[*batch, heads, q_len, d_v], in the caller's layout."""
    lse: np.ndarray
    """[*batch, heads, q_len], in the caller's layout: log of the sum of exp of a row's masked scores."""


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """One array for each input that was given, of that input's shape."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray | None
    sinks: np.ndarray | None
    captured: dict[str, np.ndarray]
    """Of the floating arrays that score functions read, by the name the function gives them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    """The steps of ``Result`` and what the backward needs besides, all [*batch, heads, ...]."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    raw: np.ndarray
    scaled: np.ndarray
    modified: np.ndarray
    masked: np.ndarray
    visible: np.ndarray
    weights: np.ndarray
    kept: np.ndarray
    """Factor of dropout on each weight: 0 or 1 / (1 - p)."""
    sink_weights: np.ndarray
    """[*batch, heads, q_len]: the sink's share of each row."""
    output: np.ndarray
    lse: np.ndarray


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, dtype: Any = np.float64, **options: Any
) -> Result:
    """Attention, step by step, on the arguments of ``rootdk.attention``.

    ``dtype`` is what everything is computed in: float64 for the truth, a lower one to see how far the same computation
    strays in it.

    >>> attention(np.zeros((1, 4)), np.ones((2, 4)), np.array([[1.0], [3.0]])).output
    array([[2.]])
    """
    bound = bind(query, key, value, **options)
    with np.errstate(all="ignore"):
        steps = _forward(bound, np.dtype(dtype))
    head = 0 if bound.headless else ...
    return Result(
        raw_scores=steps.raw[head],
        scaled_scores=steps.scaled[head],
        modified_scores=steps.modified[head],
        masked_scores=steps.masked[head],
        weights=steps.weights[head],
        output=bound.restore(steps.output),
        lse=bound.restore_rows(steps.lse),
    )


def _forward(bound: Bound, dtype: np.dtype) -> _Forward:
    problem, operands = bound.problem, bound.operands
    query = to_float64(operands.query).astype(dtype)
    key, value = (
        _per_query_head(to_float64(array).astype(dtype), problem.groups) for array in (operands.key, operands.value)
    )
    raw = query @ key.swapaxes(-1, -2)
    scaled = raw * dtype.type(problem.scale)
    modified, visible = _apply_mods(bound, scaled)
    masked = np.where(visible, modified, -math.inf).astype(dtype)
    sinks = np.full(problem.heads, -math.inf, dtype) if operands.sinks is None else operands.sinks.astype(dtype)
    weights, sink_weights, lse = _softmax(masked, visible, sinks[:, None])
    kept = _dropout_factor(bound).astype(dtype)
    output = _sum_visible(weights * kept, visible, value)
    return _Forward(query, key, value, raw, scaled, modified, masked, visible, weights, kept, sink_weights, output, lse)


def _apply_mods(bound: Bound, scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The modified scores, and which pairs are visible."""
    graph = bound.problem.graph
    values = _evaluate(bound, graph, scaled)
    modified = scaled if graph.score is None else np.broadcast_to(values[graph.score], scaled.shape)
    shown = np.True_ if graph.mask is None else values[graph.mask]
    visible = shown & (modified != -math.inf)
    for missed in values.outside.values():
        wrong = np.argwhere(visible & missed)
        if len(wrong):
            raise bounds_error(bound.problem, bound.operands, wrong[0], float(scaled[tuple(wrong[0])]))
    return modified, visible


def _evaluate(bound: Bound, graph: Graph, scaled: np.ndarray) -> Values:
    """Every node of ``graph`` for every pair."""
    operands = bound.operands
    b, h, q, kv = _indices(bound)
    return evaluate(graph, operands.constants, operands.arrays, score=scaled, b=b, h=h, q=q, kv=kv, dtype=scaled.dtype)


def _per_query_head(array: np.ndarray, groups: int) -> np.ndarray:
    """[*batch, kv_heads, len, d] -> [*batch, heads, len, d]: head h reads kv head h // groups."""
    return np.repeat(array, groups, axis=-3)


def _softmax(masked: np.ndarray, visible: np.ndarray, sinks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, the sink's weight and the LSE of each row; ``sinks`` [heads, 1] are logits that have no value."""
    top = np.maximum(masked.max(axis=-1, initial=-math.inf), sinks)
    # any finite shift does for a row that holds nothing, where -inf would give NaN
    top = np.where(top == -math.inf, 0, top).astype(masked.dtype)
    exponentials = np.where(visible, np.exp(masked - top[..., None]), 0)
    sink = np.exp(sinks - top)
    total = exponentials.sum(axis=-1) + sink
    weights = np.where(visible, exponentials / total[..., None], 0)
    sink_weights = np.where(visible.any(axis=-1), sink / total, 0)
    return weights, sink_weights, top + np.log(total)


def _sum_visible(weights: np.ndarray, visible: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """weights @ rows over the visible pairs alone: [..., n, m], [..., n, m], [..., m, d] -> [..., n, d].

    A product would let NaN and inf through from rows that are hidden, as 0 * NaN is NaN: the finite elements go through
    the product, the others are added by selection.
    """
    finite = np.isfinite(rows)
    total: np.ndarray = np.where(visible, weights, 0) @ np.where(finite, rows, 0)
    for j in np.flatnonzero(~finite.all(axis=(*range(rows.ndim - 2), -1))):
        added = visible[..., j, None] & ~finite[..., None, j, :]
        total += np.where(added, weights[..., j, None] * rows[..., None, j, :], 0)
    return total


def _indices(bound: Bound) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """b, h, q, kv of every pair, as arrays that broadcast to the scores; b counts the flattened batch."""
    problem = bound.problem
    b = np.arange(problem.batch).reshape(*problem.batch_shape, 1, 1, 1)
    h, q, kv = np.ogrid[: problem.heads, : problem.q_len, : problem.kv_len]
    return b, h, q, kv


def _dropout_factor(bound: Bound) -> np.ndarray:
    problem = bound.problem
    p = problem.dropout_p
    if p == 0.0:
        return np.ones(problem.score_shape)
    kept = dropout.keep(bound.operands.seed, *_indices(bound), p)
    return np.where(kept, dropout.scale(p), 0.0)


def attention_vjp(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    grad_out: np.ndarray,
    grad_lse: np.ndarray | None = None,
    dtype: Any = np.float64,
    **options: Any,
) -> Gradients:
    """Gradients of sum(grad_out · output) + sum(grad_lse · lse), for the arguments of ``rootdk.attention``.

    ``grad_out`` and ``grad_lse`` have the shapes of the output and the LSE.
    """
    bound = bind(query, key, value, **options)
    _check_shape("grad_out", grad_out, bound.output_shape)
    if grad_lse is None:
        grad_lse = np.zeros(bound.lse_shape)
    _check_shape("grad_lse", grad_lse, bound.lse_shape)
    with np.errstate(all="ignore"):
        steps = _forward(bound, np.dtype(dtype))
        grad_rows = (
            bound.canonical(to_float64(grad_out)).astype(dtype),
            bound.canonical_rows(to_float64(grad_lse)).astype(dtype),
        )
        grads = _backward(bound, steps, *grad_rows)
    bias, sinks = options.get("bias"), options.get("sinks")
    return Gradients(
        query=_as_input(grads.query, query, bound),
        key=_as_input(grads.key, key, bound),
        value=_as_input(grads.value, value, bound),
        bias=None if bias is None else _sum_to(grads.modified, bias.shape),
        sinks=None if sinks is None else grads.sinks,
        captured=grads.captured,
    )


def _check_shape(name: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
    if array.shape != expected:
        raise ShapeError(f"{name}: expected shape {expected}, as the result has, got {array.shape}")


@dataclass(frozen=True, slots=True, eq=False)
class _Backward:
    """Gradients before broadcast dimensions are summed."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    modified: np.ndarray
    sinks: np.ndarray
    captured: dict[str, np.ndarray]


def _backward(bound: Bound, steps: _Forward, grad_out: np.ndarray, grad_lse: np.ndarray) -> _Backward:
    visible, weights = steps.visible, steps.weights
    seen_by = visible.swapaxes(-1, -2)
    # O = dropout(A) V
    grad_value = _sum_visible((weights * steps.kept).swapaxes(-1, -2), seen_by, grad_out)
    grad_weights = np.where(visible, (grad_out @ steps.value.swapaxes(-1, -2)) * steps.kept, 0)
    # A = softmax(S''), with the rule dS''_j = A_j (dA_j - Σ_i A_i dA_i); the LSE's own gradient is A
    mean = (weights * grad_weights).sum(axis=-1)
    shift = grad_lse - mean
    grad_modified = np.where(visible, weights * (grad_weights + shift[..., None]), 0)
    grad_sinks = np.where(visible.any(axis=-1), steps.sink_weights * shift, 0)
    # S'' = score_mod(scale · Q Kᵀ)
    grad_scaled, captured = _backward_of_mods(bound, steps, grad_modified)
    grad_raw = grad_scaled * bound.problem.scale
    grad_query = _sum_visible(grad_raw, visible, steps.key)
    grad_key = _sum_visible(grad_raw.swapaxes(-1, -2), seen_by, steps.query)
    problem = bound.problem
    return _Backward(
        query=grad_query,
        key=_sum_groups(grad_key, problem),
        value=_sum_groups(grad_value, problem),
        modified=grad_modified,
        sinks=grad_sinks.sum(axis=(*range(len(problem.batch_shape)), -1)),
        captured=captured,
    )


def _backward_of_mods(
    bound: Bound, steps: _Forward, grad_modified: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Gradients of the scaled scores, and of each floating array that the score functions captured, by its name."""
    graph, operands = bound.problem.graph, bound.operands
    captured = {
        slot: np.zeros(array.shape, grad_modified.dtype)
        for slot, array in enumerate(operands.arrays)
        if slot != operands.bias and element_kind(array) is Kind.FLOAT
    }
    if graph.score is None:
        return grad_modified, _by_name(captured, operands.names)
    builder = GraphBuilder()
    for node in graph.nodes:
        builder.add(node.op, *node.args, attr=node.attr, kind=node.kind)
    partials = differentiate(builder, graph.score, builder.add("literal", attr=1.0))
    values = _evaluate(bound, replace(graph, nodes=tuple(builder.nodes)), steps.scaled)
    grad_scaled = np.zeros_like(grad_modified)
    for leaf, partial in partials.items():
        node = graph.nodes[leaf]
        grad = np.where(steps.visible, grad_modified * values[partial], 0)
        if node.op == "score":
            grad_scaled = grad
        elif node.op == "gather" and isinstance(node.attr, int) and node.attr in captured:
            # only visible pairs: the others may index out of bounds
            indices = [np.broadcast_to(values[arg], grad.shape)[steps.visible] for arg in node.args]
            np.add.at(captured[node.attr][None], (np.zeros(steps.visible.sum(), int), *indices), grad[steps.visible])
    return grad_scaled, _by_name(captured, operands.names)


def _by_name(captured: dict[int, np.ndarray], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    return {names[slot]: grad for slot, grad in captured.items()}


def _sum_groups(array: np.ndarray, problem: Problem) -> np.ndarray:
    """[*batch, heads, len, d] -> [*batch, kv_heads, len, d]: the sum over the query heads that read each key head."""
    *batch, _, length, d = array.shape
    grouped = array.reshape(*batch, problem.kv_heads, problem.groups, length, d)
    return np.asarray(grouped.sum(axis=-3))


def _sum_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The sum over the dimensions that broadcasting to ``array`` repeated, in the ``shape`` before it."""
    extra = max(array.ndim - len(shape), 0)
    inner = shape[max(len(shape) - array.ndim, 0) :]
    repeated = [extra + axis for axis, size in enumerate(inner) if size == 1]
    return np.asarray(array.sum(axis=(*range(extra), *repeated))).reshape(shape)


def _as_input(grad: np.ndarray, array: np.ndarray, bound: Bound) -> np.ndarray:
    """A gradient in the shape and layout of the ``array`` that came in."""
    summed = _sum_to(grad, bound.canonical(array).shape)
    return summed[0] if array.ndim == 2 else bound.canonical(summed)
