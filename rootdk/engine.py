"""From a bound problem to numbers: prove, plan, compile, run.

``prepare`` does all that depends on shapes, strides and the mods' graph, and can be kept; ``capture`` what depends on
the values that the mods captured; ``run`` does the rest, and costs a few microseconds.
"""

import struct
from collections.abc import Mapping
from ctypes import memset
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from rootdk import dropout
from rootdk.dtypes import Kind
from rootdk.errors import BoundsError
from rootdk.machine import Target, caches, host
from rootdk.mods import bounds
from rootdk.mods.expr import Graph
from rootdk.mods.tile_gathers import tile_gathers
from rootdk.planning.frame import FRAME
from rootdk.planning.packing import decode_packing_reasons, packing_reasons
from rootdk.planning.partition import Partition, panel_bytes, partition, worth_threads
from rootdk.planning.schedule import DECODE_KEY_VECTORS, DecodeSpec, ForwardSpec, schedule_for
from rootdk.problem import Bound, Operands, Problem
from rootdk.runtime import threads
from rootdk.runtime.compiler import Address
from rootdk.runtime.workspace import address, borrow, give_back
from rootdk.sources import kernel

__all__ = [
    "Captured", "Prepared", "allocate", "capture", "frame_words", "launch", "prepare", "proofs", "raise_fault", "run",
]  # fmt: skip

_FAULT = struct.Struct("5q")
"""What the kernel tells of an index out of bounds: 1, node, dimension, index, length. It follows the frame."""
_FAULT_OFFSET = 8 * len(FRAME)
_FRAME_BYTES = _FAULT_OFFSET + _FAULT.size
_CALL_WORDS = FRAME["turns"] + 1
_CALL = struct.Struct(f"{_CALL_WORDS}q{_FRAME_BYTES - 8 * _CALL_WORDS}s")
"""The words that change between calls of one shape, then the others."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One shape of call, ready to run on arrays that have it."""

    problem: Problem
    spec: ForwardSpec | DecodeSpec
    target: Target
    partition: Partition
    threads: int
    tasks: int
    scratch_bytes: int
    """Of all threads."""
    shared: "_Shared"
    kernel: Address
    frame: bytes = field(repr=False)
    """What follows the words of a call: the frame's other words, and a clean fault record."""
    keep: tuple[np.ndarray, ...] = field(repr=False)
    """Tables that the frame points to."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """Memory that the chunks of a head meet in, where a head is more than one task."""

    sums_bytes: int
    turns: int


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """What the mods captured, as the kernel reads it."""

    words: tuple[int, int, int]
    """Addresses of the constants, of the arrays' descriptions, and of the addresses of the range tables."""
    keep: tuple[np.ndarray, ...] = field(repr=False)
    """All that they point to."""
    sites: Mapping[int, str]
    """Where in the user's source each gather stands, by node."""


def allocate(bound: Bound, *, lse: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Uninitialised output and LSE in the caller's layout."""
    accumulator = np.dtype(bound.problem.dtype.accumulator.name)
    return (
        np.empty(bound.output_shape, bound.operands.query.dtype),
        np.empty(bound.lse_shape, accumulator) if lse else None,
    )


def prepare(bound: Bound, output: np.ndarray, lse: np.ndarray | None, tables: tuple[np.ndarray, ...]) -> Prepared:
    """Everything about a call but its numbers; compiles the kernel if nobody has.

    ``output`` and ``lse`` are in the caller's layout; ``tables`` are the range tables of the mods' arrays.
    """
    problem, operands, target = bound.problem, bound.operands, host()
    narrow, proven = proofs(problem, operands, tables)
    schedule = schedule_for(target, narrow=narrow)
    if few_queries(problem, target):
        decode_spec = DecodeSpec(problem.dtype, problem.graph, proven, schedule)
        return _prepare_decode(bound, output, lse, decode_spec, target)
    spec = ForwardSpec(problem.dtype, problem.graph, proven, schedule, dropout=problem.dropout_p > 0.0)
    return _prepare_forward(bound, output, lse, spec, target)


def few_queries(problem: Problem, target: Target) -> bool:
    """Whether so few lanes would hold queries that lanes of keys do better: less than a quarter of a vector.

    Dropout, which nobody decodes with, is left to the forward kernel.
    """
    lanes = target.lanes(problem.dtype.accumulator.size)
    return (
        not problem.dropout_p
        and problem.kv_len > 0
        and problem.q_len <= max(1, lanes // 4)
        and problem.groups * problem.q_len <= 32
    )


def _prepare_decode(
    bound: Bound, output: np.ndarray, lse: np.ndarray | None, spec: DecodeSpec, target: Target
) -> Prepared:
    problem, schedule = bound.problem, spec.schedule
    size = problem.dtype.accumulator.size
    lanes = target.lanes(size)
    chunks = -(-problem.kv_len // schedule.chunk)
    heads = problem.batch * problem.kv_heads
    frame, keep = frame_words(bound, {"output": bound.canonical(output), "lse": bound.row_view(lse)})
    rows = problem.groups * problem.q_len
    padded, width, depth = (-(-n // step) * step for n, step in ((rows, 4), (problem.d_v, lanes), (problem.d_k, lanes)))
    state = (width + 2 * lanes) * size
    # scores, a panel of keys, a block of values, queries, row states, rescale factors: as codegen.decode lays them out
    keys = DECODE_KEY_VECTORS * lanes
    scratch = padded * ((schedule.block + keys) * size + depth * size + state + lanes * size)
    scratch += keys * problem.d_k * size + schedule.block * width * size
    workers = max(1, min(threads.get_num_threads() if worth_threads(problem) else 1, heads * chunks))
    words = {
        "tasks": heads * chunks, "kv_heads": problem.kv_heads, "scratch_bytes": -(-scratch // 64) * 64,
        "pack_value": decode_packing_reasons(problem, bound.operands, lanes)[1] is not None,
    }  # fmt: skip
    for name, value in words.items():
        frame[FRAME[name]] = value
    shared = _Shared(heads * chunks * padded * state, heads)
    return Prepared(
        problem, spec, target, Partition(0, 0, 0, 1), workers, heads * chunks, words["scratch_bytes"] * workers, shared,
        kernel(spec, target), _frame_tail(frame), keep,
    )  # fmt: skip


def _frame_tail(frame: np.ndarray) -> bytes:
    """The words that do not change between calls, and a clean fault record."""
    return frame[_CALL_WORDS:].tobytes() + bytes(_FAULT.size)


def _prepare_forward(
    bound: Bound, output: np.ndarray, lse: np.ndarray | None, spec: ForwardSpec, target: Target
) -> Prepared:
    problem, operands = bound.problem, bound.operands
    accumulator = problem.dtype.accumulator
    lanes = target.lanes(accumulator.size)
    panel = panel_bytes(problem.d_k, problem.d_v, spec.schedule, lanes, accumulator.size)
    workers = threads.get_num_threads() if worth_threads(problem) else 1
    cut = partition(
        problem.q_len, problem.batch * problem.heads, spec.schedule, lanes,
        threads=workers, most_panels=max(1, caches().l2 // 2 // panel),
    )  # fmt: skip
    tasks = problem.batch * problem.heads * cut.tasks_per_head
    frame, keep = frame_words(bound, {"output": bound.canonical(output), "lse": bound.row_view(lse)})
    packing = packing_reasons(problem, operands, spec.schedule)
    scratch = _scratch_bytes(problem, spec, lanes) + cut.panels_per_task * panel
    words = {
        "tasks": tasks, "panels": cut.panels, "panel_vectors": cut.panel_vectors, "wide_panels": cut.wide_panels,
        "panels_per_task": cut.panels_per_task, "tasks_per_head": cut.tasks_per_head, "panel_bytes": panel,
        "scratch_bytes": scratch, "pack_key": packing[0] is not None, "pack_value": packing[1] is not None,
    }  # fmt: skip
    for name, value in words.items():
        frame[FRAME[name]] = value
    workers = max(1, min(workers, tasks))
    return Prepared(
        problem, spec, target, cut, workers, tasks, scratch * workers, _Shared(0, 0), kernel(spec, target),
        _frame_tail(frame), keep,
    )  # fmt: skip


def capture(graph: Graph, operands: Operands, tables: tuple[np.ndarray, ...]) -> Captured:
    """The values of the mods' slots in this call; ``tables`` are the range tables of its arrays."""
    constants = _constants(graph, operands.constants)
    arrays = _array_table(operands.arrays)
    addresses = np.array([address(table) for table in tables], np.int64)
    words = address(constants), address(arrays), address(addresses)
    return Captured(words, (constants, arrays, addresses, *operands.arrays, *tables), operands.sites)


def run(
    prepared: Prepared, inputs: tuple[np.ndarray, np.ndarray, np.ndarray], sinks: np.ndarray | None,
    output: np.ndarray, lse: np.ndarray | None, captured: Captured,
) -> None:  # fmt: skip
    """Fill ``output`` and ``lse`` from ``inputs`` = (query, key, value), all with the shapes that were prepared.

    Raises:
        BoundsError: a mod read a captured array out of bounds for a visible pair.
    """
    query, key, value = inputs
    addresses = (
        address(query), address(key), address(value), address(output),
        0 if lse is None else address(lse), 0 if sinks is None else address(sinks),
    )  # fmt: skip
    launch(prepared, addresses, captured)


def launch(prepared: Prepared, addresses: tuple[int, int, int, int, int, int], captured: Captured) -> None:
    """``run`` on the memory at ``addresses``: of query, key, value, output, LSE and sinks, 0 for what is not there."""
    if not prepared.tasks:
        return
    shared = prepared.shared
    workspace = borrow(_FRAME_BYTES, prepared.scratch_bytes + shared.sums_bytes + 8 * shared.turns)
    sums = workspace.scratch_address + prepared.scratch_bytes
    turns = sums + shared.sums_bytes
    try:
        if shared.turns:
            memset(turns, 0, 8 * shared.turns)
        _CALL.pack_into(
            workspace.frame, 0,
            0, 0, workspace.scratch_address, workspace.frame_address + _FAULT_OFFSET,
            *addresses, *captured.words, sums, turns, prepared.frame,
        )  # fmt: skip
        threads.run(prepared.kernel, workspace.frame_address, prepared.threads)
        fault = _FAULT.unpack_from(workspace.frame, _FAULT_OFFSET)
    finally:
        give_back(workspace)
    if fault[0]:
        raise_fault(captured.sites, fault)


def proofs(problem: Problem, operands: Operands, tables: tuple[np.ndarray, ...]) -> tuple[bool, frozenset[int]]:
    """Whether all integers of the mods fit 32 bits, and which gathers stay in range, over the whole problem."""
    sizes, graph = (problem.batch, problem.heads, problem.q_len, problem.kv_len), problem.graph
    leaves = max(sizes) < 2**31
    if not graph.nodes:
        return leaves, frozenset()
    if not all(sizes):
        return False, frozenset()
    indices = bounds.whole_problem(*sizes)
    found = bounds.node_ranges(graph, operands.constants, tables, indices, problem.dtype.accumulator)
    proven = bounds.in_range_gathers(graph, found, [array.shape for array in operands.arrays])
    return leaves and bounds.fits_32_bits(graph, found), proven


def _scratch_bytes(problem: Problem, spec: ForwardSpec, lanes: int) -> int:
    """Of one worker, without its panels: scores of a block, sums of it, a packed block of keys and one of values."""
    schedule, size = spec.schedule, problem.dtype.accumulator.size
    width = -(-problem.d_v // schedule.value_rows) * schedule.value_rows
    tiles = 1 + len(tile_gathers(spec.graph, spec.proven))
    rows = tiles * (schedule.block + schedule.score_rows) + 1
    scores = rows * schedule.vectors * lanes * size
    packed = schedule.block * ((problem.d_k + width) * size + 2 * 64)
    return -(-(scores + packed + 64) // 64) * 64


def frame_words(bound: Bound, results: dict[str, np.ndarray]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """The words that follow from shapes and strides, and the tables they point to.

    ``results`` are further operands by name, as [*batch, heads, len, d] views.
    """
    problem, operands = bound.problem, bound.operands
    frame = np.zeros(len(FRAME), np.int64)
    frame[FRAME["scale"]] = np.float64(problem.scale).view(np.int64)
    words = {
        "heads": problem.heads, "heads_per_kv": problem.groups, "q_len": problem.q_len, "kv_len": problem.kv_len,
        "d_k": problem.d_k, "d_v": problem.d_v, "log2_scores": problem.graph.score is None,
        "dropout_scale": int(np.float64(dropout.scale(problem.dropout_p)).view(np.int64)),
    }  # fmt: skip
    if problem.dropout_p:
        words |= {
            "dropout_seed": int(np.uint64(operands.seed).view(np.int64)),
            "dropout_limit": dropout.threshold(problem.dropout_p) - 1,
        }
    keep = []
    for name, view in {"query": operands.query, "key": operands.key, "value": operands.value, **results}.items():
        batch = _batch_offsets(view)
        keep.append(batch)
        words |= {f"{name}_batch": address(batch), f"{name}_head": view.strides[-3]}
        words |= {f"{name}_row": view.strides[-2], f"{name}_element": view.strides[-1]}
        if view.shape[-1] == 1:
            # the stride of a single element means nothing; adjacent, it can be read as a vector's tail is
            words[f"{name}_element"] = view.dtype.itemsize
    for name, value in words.items():
        frame[FRAME[name]] = value
    return frame, tuple(keep)


def _batch_offsets(view: np.ndarray) -> np.ndarray:
    """Bytes from the start of [*batch, heads, len, d] to each batch element, flattened."""
    offsets = np.zeros((), np.int64)
    for size, stride in zip(view.shape[:-3], view.strides[:-3], strict=True):
        offsets = offsets[..., None] + np.arange(size, dtype=np.int64) * stride
    return np.ascontiguousarray(offsets.reshape(-1))


def _constants(graph: Graph, values: tuple[int | float, ...]) -> np.ndarray:
    """Captured numbers as the kernel reads them: 8 bytes each, integers or float64 by the slot's kind."""
    words = np.empty(len(values), np.int64)
    for slot, (kind, value) in enumerate(zip(graph.constants, values, strict=True)):
        words[slot] = np.float64(value).view(np.int64) if kind is Kind.FLOAT else value
    return words


def _array_table(arrays: tuple[np.ndarray, ...]) -> np.ndarray:
    """Address, shape and strides of each captured array, one after the other."""
    words: list[int] = []
    for array in arrays:
        words += [address(array), *array.shape, *array.strides]
    return np.array(words, np.int64)


def raise_fault(sites: Mapping[int, str], fault: tuple[int, ...]) -> NoReturn:
    _, node, dimension, index, length = fault
    raise BoundsError(
        f"{sites.get(node, 'a captured array')}: expected an index from {-length} to {length - 1} in dimension "
        f"{dimension}, got {index} for a visible pair; clamp the index, or hide the pair with a mask"
    )
