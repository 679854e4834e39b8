"""The backward pass of a bound problem: prove, plan, compile, run. It is to the backward kernel what ``engine`` is to
the forward's.

``prepare`` does all that depends on shapes, strides and the mods' graph, and can be kept; ``run`` does the rest. The
captured values that the forward ran with (``engine.capture``) serve both.
"""

import math
import struct
from dataclasses import dataclass, field

import numpy as np

from rootdk import engine
from rootdk.dtypes import Kind
from rootdk.engine import Captured
from rootdk.machine import host
from rootdk.mods.derivative import differentiate
from rootdk.mods.expr import Graph, GraphBuilder
from rootdk.planning.frame import CALL_WORDS, FRAME
from rootdk.planning.partition import worth_threads
from rootdk.planning.schedule import KEY_CHUNK, KEY_GROUP, BackwardSpec, Derivative, Schedule, schedule_for
from rootdk.problem import Bound, Problem
from rootdk.runtime import threads
from rootdk.runtime.compiler import Address
from rootdk.runtime.workspace import address, borrow, give_back
from rootdk.sources import kernel

__all__ = ["InputGradients", "Prepared", "Rows", "allocate", "prepare", "run"]

_LOTS = 8
"""Tasks, where captured arrays' gradients are wanted: each sums into memory of its own, and the sums are added in
order, so the result does not depend on how many threads there are."""
_LOT_BYTES = 64 << 20

_FAULT = struct.Struct("5q")
_FAULT_OFFSET = 8 * len(FRAME)
_FRAME_BYTES = _FAULT_OFFSET + _FAULT.size
_CALL = struct.Struct(f"{len(CALL_WORDS)}q{_FRAME_BYTES - 8 * len(CALL_WORDS)}s")
"""The words that change between calls of one shape, then the others and the fault record."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What the backward pass reads besides query, key and value, in the caller's layout."""

    output: np.ndarray
    lse: np.ndarray
    """Both as the forward left them."""
    grad_output: np.ndarray
    """Of the output's shape and dtype."""
    grad_lse: np.ndarray | None
    """Of the LSE's shape and dtype; None is zero."""


@dataclass(frozen=True, slots=True, eq=False)
class InputGradients:
    """Of query, key and value, in their dtype: [*batch, heads, len, d] over the whole batch, any strides between rows.

    An input that was broadcast over the batch has a gradient for each batch element: the caller sums them.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One shape of call, ready to run on arrays that have it."""

    problem: Problem
    spec: BackwardSpec
    summed: dict[int, tuple[int, ...]]
    """Slot -> shape of each captured array whose gradient is wanted and takes many addends."""
    stored: dict[int, tuple[int, ...]]
    """The same of those whose elements take one addend each."""
    shares: bool
    """All tasks add to the same gradients of captured arrays, each to a part of its own."""
    threads: int
    tasks: int
    """0 where there is nothing to add up: every gradient is zero."""
    scratch_bytes: int
    """Of all threads."""
    sums: tuple[int, int, int]
    """Shape of the accumulators of the query's gradient: [batch * heads, padded q_len, padded d_k]."""
    kernel: Address
    frame: bytes = field(repr=False)
    """What follows the words of a call: the frame's other words, and a clean fault record."""
    keep: tuple[np.ndarray, ...] = field(repr=False)
    """Tables that the frame points to."""


def allocate(bound: Bound) -> InputGradients:
    """Uninitialised gradients whose memory lies in the caller's layout."""

    def empty(view: np.ndarray) -> np.ndarray:
        return bound.canonical(np.empty(bound.canonical(view).shape, view.dtype))

    operands = bound.operands
    return InputGradients(empty(operands.query), empty(operands.key), empty(operands.value))


def prepare(
    bound: Bound, rows: Rows, grads: InputGradients, tables: tuple[np.ndarray, ...], wanted: tuple[int, ...] = ()
) -> Prepared:
    """Everything about a backward call but its numbers; compiles the kernel if nobody has.

    Args:
        bound: the call, as the forward bound it.
        rows: arrays of the shapes and strides that ``run`` will get.
        grads: the same of the results.
        tables: the range tables of the mods' arrays.
        wanted: slots of the captured floating arrays whose gradients are wanted too.
    """
    problem, operands, target = bound.problem, bound.operands, host()
    narrow, proven = engine.proofs(problem, operands, tables)
    schedule = schedule_for(target, narrow=narrow)
    derivative = _derivative(problem, wanted)
    spec = BackwardSpec(problem.dtype, problem.graph, proven, schedule, derivative, dropout=problem.dropout_p > 0.0)
    once: frozenset[int] = frozenset() if derivative is None else derivative.once
    shapes = {slot: operands.arrays[slot].shape for slot in wanted}
    summed = {slot: shape for slot, shape in shapes.items() if slot not in once}
    stored = {slot: shape for slot, shape in shapes.items() if slot in once}
    frame, keep = engine.frame_words(bound, _views(bound, rows, grads))
    shares = derivative is not None and bool(summed) and _shares(problem, derivative)
    tasks = _tasks(problem, summed, shares)
    workers = max(1, min(threads.get_num_threads() if worth_threads(problem) else 1, tasks))
    lanes = target.lanes(problem.dtype.accumulator.size)
    sums = (problem.batch * problem.heads, problem.q_len + schedule.score_rows, -(-problem.d_k // lanes) * lanes)
    scratch = _scratch_bytes(problem, schedule, lanes, sums)
    items = problem.batch * problem.kv_heads * _chunks(problem)
    words = {
        "tasks": tasks, "items": items, "items_per_task": -(-items // max(1, tasks)), "kv_heads": problem.kv_heads,
        "padded_q_len": sums[1], "scratch_bytes": scratch,
    }  # fmt: skip
    for name, word in words.items():
        frame[FRAME[name]] = word
    tail = frame[len(CALL_WORDS) :].tobytes() + bytes(_FAULT.size)
    code = kernel(spec, target)
    return Prepared(problem, spec, summed, stored, shares, workers, tasks, scratch * workers, sums, code, tail, keep)


def run(
    prepared: Prepared, inputs: tuple[np.ndarray, np.ndarray, np.ndarray], rows: Rows, grads: InputGradients,
    captured: Captured,
) -> dict[int, np.ndarray]:  # fmt: skip
    """Fill ``grads`` from ``inputs`` = (query, key, value) and ``rows``, all with the shapes that were prepared.

    Returns the gradients of the captured arrays that were wanted, by slot, of the array's shape: float64 where they
    are sums, of the accumulator's type where they are not.
    """
    accumulator = prepared.problem.dtype.accumulator.name
    stored = {slot: np.zeros(shape, accumulator) for slot, shape in prepared.stored.items()}
    count = 1 if prepared.shares else max(1, prepared.tasks)
    lots = [{slot: np.zeros(shape) for slot, shape in prepared.summed.items()} for _ in range(count)]
    if prepared.tasks:
        targets = [{**lot, **stored} for lot in lots]
        _run_kernel(prepared, inputs, _views_by_address(rows, grads), captured, targets)
    else:
        for grad in (grads.query, grads.key, grads.value):
            grad[...] = np.zeros((), grad.dtype)
    for lot in lots[1:]:
        for slot, total in lots[0].items():
            total += lot[slot]
    return {**lots[0], **stored}


def _run_kernel(
    prepared: Prepared, inputs: tuple[np.ndarray, np.ndarray, np.ndarray], results: dict[str, int],
    captured: Captured, lots: list[dict[int, np.ndarray]],
) -> None:  # fmt: skip
    problem = prepared.problem
    sums = np.zeros(prepared.sums, problem.dtype.accumulator.name)
    turns = np.zeros(problem.batch * problem.kv_heads, np.int64)
    lot_table = _lot_table(problem.graph, lots * prepared.tasks if prepared.shares else lots)
    workspace = borrow(_FRAME_BYTES, prepared.scratch_bytes)
    try:
        words = {
            "scratch": workspace.scratch_address, "fault": workspace.frame_address + _FAULT_OFFSET,
            **dict(zip(("query", "key", "value"), map(address, inputs), strict=True)), **results,
            **dict(zip(("constants", "arrays", "tables"), captured.words, strict=True)),
            "head_sums": address(sums), "turns": address(turns), "grad_arrays": address(lot_table),
        }  # fmt: skip
        assert words.keys() <= set(CALL_WORDS)
        _CALL.pack_into(workspace.frame, 0, *(words.get(name, 0) for name in CALL_WORDS), prepared.frame)
        threads.run(prepared.kernel, workspace.frame_address, prepared.threads)
        fault = _FAULT.unpack_from(workspace.frame, _FAULT_OFFSET)
    finally:
        give_back(workspace)
    if fault[0]:
        engine.raise_fault(captured.sites, fault)


def _views(bound: Bound, rows: Rows, grads: InputGradients) -> dict[str, np.ndarray]:
    """Every operand besides the inputs, as [*batch, heads, len, d]."""
    return {
        "output": bound.canonical(rows.output), "lse": bound.row_view(rows.lse),
        "grad_output": bound.canonical(rows.grad_output), "grad_lse": bound.row_view(rows.grad_lse),
        "grad_query": grads.query, "grad_key": grads.key, "grad_value": grads.value,
    }  # fmt: skip


def _views_by_address(rows: Rows, grads: InputGradients) -> dict[str, int]:
    arrays = {
        "output": rows.output, "lse": rows.lse, "grad_output": rows.grad_output, "grad_lse": rows.grad_lse,
        "grad_query": grads.query, "grad_key": grads.key, "grad_value": grads.value,
    }  # fmt: skip
    return {name: 0 if array is None else address(array) for name, array in arrays.items()}


def _derivative(problem: Problem, wanted: tuple[int, ...]) -> Derivative | None:
    """The score function's derivatives by the score and by the elements that it gathers from the wanted arrays."""
    graph = problem.graph
    if graph.score is None:
        return None
    builder = GraphBuilder(list(graph.nodes), {node: number for number, node in enumerate(graph.nodes)})
    leaves = [
        number
        for number, node in enumerate(graph.nodes)
        if node.op == "score" or (node.op == "gather" and node.attr in wanted and node.kind is Kind.FLOAT)
    ]
    found = differentiate(builder, graph.score, builder.add("literal", attr=1.0), leaves)
    scores = [number for number in found if builder.nodes[number].op == "score"]
    captured = tuple((number, found[number]) for number in sorted(found) if number not in scores)
    extended = Graph(tuple(builder.nodes), graph.score, graph.mask, graph.arrays, graph.constants)
    return Derivative(extended, found[scores[0]] if scores else None, captured, _once(problem, extended, captured))


def _once(problem: Problem, graph: Graph, captured: tuple[tuple[int, int], ...]) -> frozenset[int]:
    """The array slots that are read at one place of the graph, by indices of which each pair has its own."""
    gathers = [graph.nodes[number] for number, _ in captured]
    slots = [gather.attr for gather in gathers]
    told_apart = {"q", "kv"} | ({"h"} if problem.heads > 1 else set()) | ({"b"} if problem.batch > 1 else set())
    return frozenset(
        gather.attr
        for gather in gathers
        if isinstance(gather.attr, int)
        and slots.count(gather.attr) == 1
        and told_apart <= {graph.nodes[arg].attr for arg in gather.args if graph.nodes[arg].op == "index"}
    )


def _chunks(problem: Problem) -> int:
    return -(-problem.kv_len // KEY_CHUNK)


def _tasks(problem: Problem, summed: dict[int, tuple[int, ...]], shares: bool) -> int:
    """One per key head; one per chunk where heads are too few to share; a fixed number of lots for captured arrays."""
    if not all((problem.batch, problem.heads, problem.q_len, problem.kv_len)):
        return 0
    heads = problem.batch * problem.kv_heads
    chunks = _chunks(problem)
    if shares:
        return heads  # the chunks of one head would meet
    if summed:
        size = 8 * sum(math.prod(shape) for shape in summed.values())
        return max(1, min(heads * chunks, _LOTS, _LOT_BYTES // max(1, size)))
    return heads * chunks if heads < 2 * threads.get_num_threads() else heads


def _shares(problem: Problem, derivative: Derivative) -> bool:
    """Whether no two heads read the same element of an array whose gradient is wanted: a bias of [batch, heads, ...].

    Their gradients can then be summed in place, where lots would each need memory of the array's size.
    """
    nodes = derivative.graph.nodes
    gathers = [nodes[number] for number, _ in derivative.captured if nodes[number].attr not in derivative.once]

    def apart(slot: object, leaf: str) -> bool:
        """Whether every read of the array has the index ``leaf`` in one and the same dimension."""
        leaves = [[nodes[arg].attr if nodes[arg].op == "index" else None for arg in gather.args] for gather in gathers]
        mine = [indices for gather, indices in zip(gathers, leaves, strict=True) if gather.attr == slot]
        return any(all(index == leaf for index in dimension) for dimension in zip(*mine, strict=True))

    sizes = {"h": problem.heads, "b": problem.batch}
    return all(size == 1 or apart(gather.attr, leaf) for gather in gathers for leaf, size in sizes.items())


def _lot_table(graph: Graph, lots: list[dict[int, np.ndarray]]) -> np.ndarray:
    """Address, shape and strides of the gradient of each captured array, lot after lot; zeros where not wanted."""
    words: list[int] = []
    for lot in lots:
        for slot, array in enumerate(graph.arrays):
            grad = lot.get(slot)
            words += [0] * (1 + 2 * array.rank) if grad is None else [address(grad), *grad.shape, *grad.strides]
    return np.array(words, np.int64)


def _scratch_bytes(problem: Problem, schedule: Schedule, lanes: int, sums: tuple[int, int, int]) -> int:
    """Of one worker: a row block, score gradients and tiles, a group of keys and its panels, a chunk's query sums."""
    size = problem.dtype.accumulator.size
    _, padded_q_len, padded_d_k = sums
    rows = schedule.query_block + schedule.score_rows
    block = rows * ((problem.d_k + problem.d_v) * size + 128 + 2 * size) + problem.d_v * size + 64
    tiles = rows * KEY_GROUP * size
    tiles += 3 * rows * schedule.vectors * lanes * size
    panels = KEY_GROUP * (2 * (problem.d_k + problem.d_v) + 2 * schedule.value_rows) * size
    query_sums = problem.groups * padded_q_len * padded_d_k * size
    return -(-(block + 64 + tiles + KEY_GROUP * padded_d_k * size + panels + query_sums) // 64) * 64
