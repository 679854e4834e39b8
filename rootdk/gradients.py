"""The backward pass of a bound problem: prove, plan, compile, run, and reduce what several queries or heads share."""

from dataclasses import dataclass

import numpy as np

from rootdk import engine
from rootdk.dtypes import Kind
from rootdk.engine import Captured
from rootdk.machine import host
from rootdk.mods.derivative import differentiate
from rootdk.mods.expr import Graph, GraphBuilder
from rootdk.planning.frame import FRAME
from rootdk.planning.schedule import KEY_CHUNK, BackwardSpec, Derivative, Schedule, schedule_for
from rootdk.problem import Bound, Problem
from rootdk.runtime import threads
from rootdk.runtime.cache import kernels
from rootdk.runtime.workspace import address, borrow, give_back

__all__ = ["KernelGradients", "Wanted", "run"]

_GROUP = 96
_LOTS = 8
"""Tasks, where captured arrays' gradients are wanted: each sums into memory of its own, and the sums are added in order,
so the result does not depend on how many threads there are."""
_LOT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a backward pass is to give, beside the gradients of query, key and value."""

    slots: tuple[int, ...] = ()
    """Captured floating arrays, by slot."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelGradients:
    """Gradients as the kernel leaves them: [*batch, heads, len, d] over the whole batch, in the inputs' dtype."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    captured: dict[int, np.ndarray]
    """By slot, accumulators, in the array's shape."""


def run(
    bound: Bound, output: np.ndarray, lse: np.ndarray, grad_output: np.ndarray, grad_lse: np.ndarray | None,
    captured: Captured, tables: tuple[np.ndarray, ...], wanted: Wanted,
) -> KernelGradients:  # fmt: skip
    """Gradients of one call; ``output``, ``lse`` and their gradients are in the caller's layout.

    ``lse`` must be the forward's own; ``captured`` and ``tables`` are what it ran with.
    """
    problem, operands, target = bound.problem, bound.operands, host()
    grads = KernelGradients(
        np.empty(operands.query.shape, operands.query.dtype), np.empty(operands.key.shape, operands.key.dtype),
        np.empty(operands.value.shape, operands.value.dtype),
        {slot: np.zeros(operands.arrays[slot].shape, problem.dtype.accumulator.name) for slot in wanted.slots},
    )  # fmt: skip
    if not all((problem.batch, problem.heads, problem.q_len, problem.kv_len)):
        for grad in (grads.query, grads.key, grads.value):
            grad[...] = np.zeros((), grad.dtype)
        return grads
    narrow, proven = engine.proofs(problem, operands, tables)
    schedule = schedule_for(target, narrow=narrow)
    spec = BackwardSpec(problem.dtype, problem.graph, proven, schedule, _derivative(problem.graph, wanted))
    kernel = kernels().get(repr(spec), target, (spec.ENTRY,), lambda: _build(spec, target))[spec.ENTRY]
    lanes = target.lanes(problem.dtype.accumulator.size)
    views = {
        "output": bound.canonical(output), "lse": bound.row_view(lse), "grad_output": bound.canonical(grad_output),
        "grad_lse": bound.row_view(grad_lse), "grad_query": grads.query, "grad_key": grads.key,
        "grad_value": grads.value,
    }  # fmt: skip
    frame, keep = engine.frame_words(bound, views)
    chunks = -(-problem.kv_len // KEY_CHUNK)
    heads = problem.batch * problem.kv_heads
    tasks = _tasks(problem, chunks, grads)
    padded_q = problem.q_len + schedule.score_rows
    padded_d = -(-problem.d_k // lanes) * lanes
    sums = np.zeros((problem.batch * problem.heads, padded_q, padded_d), problem.dtype.accumulator.name)
    turns = np.zeros(heads, np.int64)
    lots = [{slot: np.zeros_like(grad) for slot, grad in grads.captured.items()} for _ in range(tasks)]
    lot_table = _lot_table(problem.graph, lots)
    scratch = _scratch_bytes(problem, schedule, lanes, padded_q, padded_d)
    workers = max(1, min(threads.get_num_threads() if _worth_threads(problem) else 1, tasks))
    workspace = borrow(8 * len(FRAME) + 40, scratch * workers)
    try:
        words = {
            "scratch": workspace.scratch_address, "fault": workspace.frame_address + 8 * len(FRAME),
            "sinks": 0, "scratch_bytes": scratch, "tasks": tasks, "items": heads * chunks,
            "items_per_task": -(-heads * chunks // tasks), "kv_heads": problem.kv_heads, "padded_q_len": padded_q,
            "query_sums": address(sums), "turns": address(turns), "grad_arrays": address(lot_table),
            **dict(zip(("constants", "arrays", "tables"), captured.words, strict=True)),
            **{name: address(view) for name, view in views.items()},
            **{name: address(getattr(operands, name)) for name in ("query", "key", "value")},
            "grad_lse": 0 if grad_lse is None else address(grad_lse),
        }  # fmt: skip
        for name, word in words.items():
            frame[FRAME[name]] = word
        image = np.frombuffer(workspace.frame, np.int64, len(FRAME) + 5)
        image[: len(FRAME)], image[len(FRAME) :] = frame, 0
        threads.run(kernel, workspace.frame_address, workers)
    finally:
        give_back(workspace)
    del keep
    for slot, grad in grads.captured.items():
        for lot in lots:
            grad += lot[slot]
    return grads


def _build(spec: BackwardSpec, target: object) -> str:
    from rootdk.codegen.backward import backward_module

    return str(backward_module(spec, target))  # type: ignore[arg-type]


def _derivative(graph: Graph, wanted: Wanted) -> Derivative | None:
    """The score function's derivatives by the score and by the elements that it gathers from the wanted arrays."""
    if graph.score is None:
        return None
    builder = GraphBuilder(list(graph.nodes), {node: number for number, node in enumerate(graph.nodes)})
    leaves = [
        number
        for number, node in enumerate(graph.nodes)
        if node.op == "score" or (node.op == "gather" and node.attr in wanted.slots and node.kind is Kind.FLOAT)
    ]
    found = differentiate(builder, graph.score, builder.add("literal", attr=1.0), leaves)
    scores = [number for number in found if builder.nodes[number].op == "score"]
    captured = tuple((number, found[number]) for number in sorted(found) if number not in scores)
    extended = Graph(tuple(builder.nodes), graph.score, graph.mask, graph.arrays, graph.constants)
    return Derivative(extended, found[scores[0]] if scores else None, captured)


def _tasks(problem: Problem, chunks: int, grads: KernelGradients) -> int:
    """One per key head; one per chunk where heads are too few to share; a fixed number of lots for captured arrays."""
    heads = problem.batch * problem.kv_heads
    if grads.captured:
        size = sum(grad.nbytes for grad in grads.captured.values())
        return max(1, min(heads * chunks, _LOTS, _LOT_BYTES // max(1, size)))
    return heads * chunks if heads < 2 * threads.get_num_threads() else heads


def _lot_table(graph: Graph, lots: list[dict[int, np.ndarray]]) -> np.ndarray:
    words: list[int] = []
    for lot in lots:
        for slot, array in enumerate(graph.arrays):
            grad = lot.get(slot)
            words += [0] * (1 + 2 * array.rank) if grad is None else [address(grad), *grad.shape, *grad.strides]
    return np.array(words, np.int64)


def _scratch_bytes(problem: Problem, schedule: Schedule, lanes: int, padded_q: int, padded_d: int) -> int:
    size = problem.dtype.accumulator.size
    rows = schedule.query_block + schedule.score_rows
    block = rows * ((problem.d_k + problem.d_v) * size + 128 + 2 * size) + problem.d_v * size + 64
    tiles = rows * (_GROUP + 3 * schedule.vectors * lanes) * size
    group = _GROUP * padded_d * size
    panels = _GROUP * (2 * (problem.d_k + problem.d_v) + 2 * schedule.value_rows) * size
    sums = problem.groups * padded_q * padded_d * size
    return -(-(block + 64 + tiles + group + panels + sums) // 64) * 64


def _worth_threads(problem: Problem) -> bool:
    return problem.batch * problem.heads * problem.q_len * problem.kv_len * (problem.d_k + problem.d_v) > 1_000_000
