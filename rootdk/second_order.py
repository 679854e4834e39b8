"""How attention and its gradients move when its arguments do: forward mode, and the backward pass of the backward pass.

With P the weights and t_S the tangent of the modified scores, a row of the output moves by

    t_O = P (t_S - m) V + P t_V,    m = <P, t_S>, by which the LSE moves.

The gradients' inner product with a direction is the derivative of the loss along it, <dO, t_O> + <dlse, m>, so that its
own gradient is what a second backward pass owes. Both run in NumPy, row block by row block, in memory that grows as the
inputs do; so do second derivatives of score functions, by the rules of the first.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from rootdk.dtypes import Kind, from_float64, to_float64
from rootdk.errors import ShapeError
from rootdk.mods.derivative import differentiate, push_forward
from rootdk.mods.evaluate import Values
from rootdk.mods.expr import Graph, GraphBuilder
from rootdk.problem import Bound
from rootdk.row_blocks import Head, RowBlock, Softmax, heads, softmax, sum_visible

__all__ = ["REASON", "Direction", "SecondOrder", "double_backward", "jvp"]

REASON = "tiled: those of second order and forward mode run in NumPy, some rows of queries at a time"
"""What a plan says of these calls."""


@dataclass(frozen=True, slots=True, eq=False)
class Direction:
    """How the arguments move: their tangents, or the cotangents of their gradients. None stays where it is."""

    query: np.ndarray | None = None
    """It, key and value in the inputs' shapes and layout, or what broadcasts to them."""
    key: np.ndarray | None = None
    value: np.ndarray | None = None
    sinks: np.ndarray | None = None
    captured: dict[int, np.ndarray] = field(default_factory=dict)
    """By array slot, with as many elements as the array; the bias has slot ``operands.bias``."""


@dataclass(frozen=True, slots=True, eq=False)
class SecondOrder:
    """The gradient of <direction, gradients of a call>."""

    query: np.ndarray
    """It, key and value over the whole batch, [*batch, heads, len, d], in the inputs' dtype."""
    key: np.ndarray
    value: np.ndarray
    sinks: np.ndarray
    """[heads], float64; zeros where there are none."""
    captured: dict[int, np.ndarray]
    """By array slot, float64, of the array's shape."""
    grad_output: np.ndarray
    """Of the output's shape and dtype: the gradient by the output's cotangent, which is the output's tangent."""
    grad_lse: np.ndarray


def jvp(bound: Bound, direction: Direction) -> tuple[np.ndarray, np.ndarray]:
    """Tangents of output and LSE, of their shapes and dtypes, when the arguments move along ``direction``.

    A row that sees no key does not move.

    Raises:
        ShapeError: a tangent does not fit its argument.
    """
    motion, results = _Motion.of(bound, direction, ()), _Results.of(bound)
    with np.errstate(all="ignore"):
        for head in heads(bound):
            moving = _MovingHead.of(head, motion)
            for block in head.blocks():
                results.put(block, *_Step.of(block, moving).tangents())
    return results.finish(bound)


def double_backward(
    bound: Bound, grad_output: np.ndarray, grad_lse: np.ndarray | None, direction: Direction,
    wanted: tuple[int, ...] = (),
) -> SecondOrder:  # fmt: skip
    """The gradient of <direction, gradients of the call for ``grad_output`` and ``grad_lse``>.

    Args:
        bound: the call.
        grad_output: of the output's shape, in the caller's layout.
        grad_lse: of the LSE's; None is zero.
        direction: cotangents of the gradients.
        wanted: slots of the captured floating arrays whose gradients are wanted.

    Raises:
        ShapeError: a cotangent does not fit its argument.
    """
    motion, results, sums = _Motion.of(bound, direction, wanted), _Results.of(bound), _Sums.of(bound, wanted)
    with np.errstate(all="ignore"):
        for head in heads(bound):
            moving = _MovingHead.of(head, motion)
            of_output = head.rows_of(bound.canonical(grad_output))
            of_lse = np.zeros(len(of_output)) if grad_lse is None else head.rows_of(bound.row_view(grad_lse))[:, 0]
            for block in head.blocks():
                step = _Step.of(block, moving)
                results.put(block, *step.tangents())
                sums.add(step, of_output[block.rows], of_lse[block.rows].astype(of_output.dtype))
    return sums.finish(bound, *results.finish(bound))


# What moves ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Slopes:
    """The call's graph with the tangent of its score function and the derivatives of both."""

    graph: Graph
    tangent: int | None
    """None where the modified score does not move."""
    first: dict[int, int]
    """Leaf -> the modified score's derivative by it; one that is missing is 0."""
    second: dict[int, int]
    """Leaf -> the tangent's derivative by it."""

    @classmethod
    def of(cls, graph: Graph, moving: tuple[int, ...], wanted: tuple[int, ...]) -> "_Slopes":
        """Tangents of the ``moving`` array slots are in slots behind the graph's, the score's is one more constant."""
        if graph.score is None:
            return cls(graph, None, {}, {})
        builder = GraphBuilder(list(graph.nodes), {node: number for number, node in enumerate(graph.nodes)})
        leaves = [
            number
            for number, node in enumerate(graph.nodes)
            if node.op == "score"
            or (node.op == "gather" and node.kind is Kind.FLOAT and node.attr in (*moving, *wanted))
        ]
        slots = {slot: len(graph.arrays) + place for place, slot in enumerate(moving)}
        tangents = {}
        for leaf in leaves:
            node = graph.nodes[leaf]
            if node.op == "score":
                tangents[leaf] = builder.add("constant", attr=len(graph.constants), kind=Kind.FLOAT)
            elif isinstance(node.attr, int) and node.attr in slots:
                tangents[leaf] = builder.add("gather", *node.args, attr=slots[node.attr], kind=Kind.FLOAT)
        tangent = push_forward(builder, graph.score, tangents)
        one = builder.add("literal", attr=1.0)
        first = differentiate(builder, graph.score, one, leaves)
        second = {} if tangent is None else differentiate(builder, tangent, one, leaves)
        return cls(replace(graph, nodes=tuple(builder.nodes)), tangent, first, second)


@dataclass(frozen=True, slots=True, eq=False)
class _Motion:
    """A direction, checked: [*batch, heads, len, d] views, sinks [heads], and arrays by slot."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    sinks: np.ndarray
    captured: dict[int, np.ndarray]
    slopes: _Slopes

    @classmethod
    def of(cls, bound: Bound, direction: Direction, wanted: tuple[int, ...]) -> "_Motion":
        operands = bound.operands
        names = ("query", "key", "value")
        query, key, value = (_fit(bound, name, getattr(direction, name), getattr(operands, name)) for name in names)
        captured = {slot: _reshape(array, operands.arrays[slot]) for slot, array in direction.captured.items()}
        sinks = np.zeros(bound.problem.heads) if direction.sinks is None else to_float64(direction.sinks)
        return cls(query, key, value, sinks, captured, _Slopes.of(bound.problem.graph, tuple(captured), wanted))


def _fit(bound: Bound, name: str, tangent: np.ndarray | None, view: np.ndarray) -> np.ndarray:
    if tangent is None:
        return np.broadcast_to(np.float64(0), view.shape)
    try:
        return np.broadcast_to(bound.canonical(tangent), view.shape)
    except ValueError:
        shape = bound.canonical(view).shape
        raise ShapeError(f"{name}: expected a direction of its shape, {shape}, got {tangent.shape}") from None


def _reshape(tangent: np.ndarray, array: np.ndarray) -> np.ndarray:
    if tangent.size != array.size:
        raise ShapeError(f"captured: expected a direction of the array's shape, {array.shape}, got {tangent.shape}")
    return tangent.reshape(array.shape)


@dataclass(frozen=True, slots=True, eq=False)
class _MovingHead:
    """A head's tangents, in the accumulator's precision."""

    motion: _Motion
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, head: Head, motion: _Motion) -> "_MovingHead":
        return cls(motion, head.rows_of(motion.query), head.keys_of(motion.key), head.keys_of(motion.value))


# One block of rows ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A block's weights and how its scores move, all [rows, kv_len]; hidden pairs neither weigh nor move."""

    block: RowBlock
    moving: _MovingHead
    values: Values
    visible: np.ndarray
    softmax: Softmax
    score_tangent: np.ndarray
    """t_S, of the modified scores."""
    sink_tangent: float
    mean: np.ndarray
    """[rows]: m."""

    @classmethod
    def of(cls, block: RowBlock, moving: _MovingHead) -> "_Step":
        head, motion, rows = block.head, moving.motion, block.rows
        slopes, sinks = motion.slopes, head.bound.operands.sinks
        scores = block.scores()
        tangent = scores.dtype.type(head.bound.problem.scale) * (
            moving.query[rows] @ head.key.T + head.query[rows] @ moving.key.T
        )
        values = block.evaluate(slopes.graph, scores, (tangent,), tuple(motion.captured.values()))
        modified, visible = block.modify(slopes.graph, values, scores)
        if slopes.graph.score is not None:
            tangent = 0 if slopes.tangent is None else values[slopes.tangent]
        tangent = np.where(visible, tangent, 0).astype(scores.dtype)
        weights = softmax(modified, visible, -np.inf if sinks is None else float(sinks[head.number]))
        sink = float(motion.sinks[head.number])
        mean = (weights.weights * tangent).sum(axis=-1) + np.where(visible.any(axis=-1), weights.sink_weights * sink, 0)
        return cls(block, moving, values, visible, weights, tangent, sink, mean.astype(scores.dtype))

    def tangents(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the output's rows [rows, d_v], and of the LSE's [rows]."""
        weights = self.block.dropped(self.softmax.weights)
        output = sum_visible(self.moved_weights(), self.visible, self.block.head.value)
        return output + sum_visible(weights, self.visible, self.moving.value), self.mean

    def moved_weights(self) -> np.ndarray:
        """The tangent of the weights after dropout."""
        shifted = np.where(self.visible, self.score_tangent - self.mean[:, None], 0)
        return self.block.dropped(self.softmax.weights * shifted)

    def through(self, slopes: dict[int, int], leaf: int, gradient: np.ndarray) -> np.ndarray:
        """``gradient`` times the derivative by ``leaf``, from ``slopes``."""
        if leaf not in slopes:
            return np.zeros_like(gradient)
        return np.where(self.visible, gradient * self.values[slopes[leaf]], 0)


# Results -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Results:
    """Tangents of output and LSE: [*batch, heads, q_len, d_v] and [*batch, heads, q_len] accumulators."""

    output: np.ndarray
    lse: np.ndarray

    @classmethod
    def of(cls, bound: Bound) -> "_Results":
        problem, accumulator = bound.problem, bound.problem.dtype.accumulator.name
        rows = (*problem.batch_shape, problem.heads, problem.q_len)
        return cls(np.zeros((*rows, problem.d_v), accumulator), np.zeros(rows, accumulator))

    def put(self, block: RowBlock, output: np.ndarray, lse: np.ndarray) -> None:
        place = *block.head.batch, block.head.number
        self.output[place][block.rows], self.lse[place][block.rows] = output, lse

    def finish(self, bound: Bound) -> tuple[np.ndarray, np.ndarray]:
        """As the caller gets output and LSE."""
        output = from_float64(bound.restore(self.output), bound.operands.query.dtype)
        return output, np.ascontiguousarray(bound.restore_rows(self.lse))


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Gradients while they grow: [*batch, heads, len, d] accumulators."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    sinks: np.ndarray
    captured: dict[int, np.ndarray]

    @classmethod
    def of(cls, bound: Bound, wanted: tuple[int, ...]) -> "_Sums":
        operands, accumulator = bound.operands, bound.problem.dtype.accumulator.name
        inputs = operands.query, operands.key, operands.value
        query, key, value = (np.zeros(view.shape, accumulator) for view in inputs)
        captured = {slot: np.zeros(operands.arrays[slot].shape) for slot in wanted}
        return cls(query, key, value, np.zeros(bound.problem.heads), captured)

    def add(self, step: _Step, grad_output: np.ndarray, grad_lse: np.ndarray) -> None:
        """What a block's rows, with cotangents [rows, d_v] and [rows], have to give.

        The derivative along the direction is, row by row, sum P t_S (A + dlse - a) + sum P A' + p t (dlse - a), where
        A = dropout(dO V^T), A' = dropout(dO t_V^T), a = <P, A>, and p, t are the sink's weight and tangent. Its
        derivative by t_S is the gradient of the first order; by P and p it goes through the softmax to S.
        """
        head, moving, visible = step.block.head, step.moving, step.visible
        weights, sink_weights = step.softmax.weights, step.softmax.sink_weights
        products, moved_products = (
            np.where(visible, step.block.dropped(grad_output @ values.T), 0) for values in (head.value, moving.value)
        )
        shift = grad_lse - (weights * products).sum(axis=-1)
        by_tangent = np.where(visible, weights * (products + shift[:, None]), 0)
        by_weights = step.score_tangent * (products + shift[:, None]) - products * step.mean[:, None] + moved_products
        by_sink_weight = step.sink_tangent * shift
        mean = np.where(visible, weights * by_weights, 0).sum(axis=-1) + sink_weights * by_sink_weight
        by_score = np.where(visible, weights * (by_weights - mean[:, None]), 0)
        self.sinks[head.number] += np.where(visible.any(axis=-1), sink_weights * (by_sink_weight - mean), 0).sum()
        self._through_score_function(step, by_score, by_tangent)
        keys = (*head.batch, head.kv_number)
        self.value[keys] += sum_visible(step.moved_weights().T, visible.T, grad_output)

    def _through_score_function(self, step: _Step, by_score: np.ndarray, by_tangent: np.ndarray) -> None:
        """From gradients by the modified scores and their tangents on to what these were computed from."""
        slopes, graph = step.moving.motion.slopes, step.block.head.bound.problem.graph
        if graph.score is None:
            self._through_products(step, by_score, by_tangent)
        for leaf in slopes.first:
            grad = step.through(slopes.first, leaf, by_score) + step.through(slopes.second, leaf, by_tangent)
            if graph.nodes[leaf].op == "score":
                self._through_products(step, grad, step.through(slopes.first, leaf, by_tangent))
            elif graph.nodes[leaf].attr in self.captured:
                self._scatter(step, leaf, grad)

    def _through_products(self, step: _Step, by_score: np.ndarray, by_tangent: np.ndarray) -> None:
        """From gradients by the scaled scores and their tangents to those of queries and keys."""
        head, moving, rows, visible = step.block.head, step.moving, step.block.rows, step.visible
        scale = by_score.dtype.type(head.bound.problem.scale)
        by_score, by_tangent = by_score * scale, by_tangent * scale
        queries, keys = self.query[(*head.batch, head.number)], self.key[(*head.batch, head.kv_number)]
        for grad, query, key in ((by_score, head.query, head.key), (by_tangent, moving.query, moving.key)):
            queries[rows] += sum_visible(grad, visible, key)
            keys += sum_visible(grad.T, visible.T, query[rows])

    def _scatter(self, step: _Step, gather: int, grad: np.ndarray) -> None:
        """Add the gradients of the elements that visible pairs read; the others may index out of bounds."""
        node = step.block.head.bound.problem.graph.nodes[gather]
        assert isinstance(node.attr, int)
        indices = (np.broadcast_to(step.values[arg], grad.shape)[step.visible] for arg in node.args)
        target = self.captured[node.attr][None]
        np.add.at(target, (np.zeros(int(step.visible.sum()), np.int64), *indices), grad[step.visible])

    def finish(self, bound: Bound, grad_output: np.ndarray, grad_lse: np.ndarray) -> SecondOrder:
        dtype = bound.operands.query.dtype
        query, key, value = (from_float64(array, dtype) for array in (self.query, self.key, self.value))
        return SecondOrder(query, key, value, self.sinks, self.captured, grad_output, grad_lse)
