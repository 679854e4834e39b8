"""From a bound problem to numbers: prove, plan, compile, run.

``prepare`` does all that depends on shapes, strides and the mods' graph, and can be kept; ``run`` does what depends on
the arrays' contents and addresses.
"""

from dataclasses import dataclass, field

import numpy as np

from rootdk.dtypes import Kind
from rootdk.errors import BoundsError
from rootdk.machine import Target, caches, host
from rootdk.mods import bounds, ranges
from rootdk.mods.expr import Graph
from rootdk.planning.frame import CALL_WORDS, FRAME
from rootdk.planning.partition import Partition, panel_bytes, partition
from rootdk.planning.schedule import ForwardSpec, schedule_for
from rootdk.problem import Bound, Operands, Problem
from rootdk.runtime import threads
from rootdk.runtime.cache import kernels
from rootdk.runtime.compiler import Address
from rootdk.runtime.workspace import borrow

__all__ = ["Prepared", "allocate", "prepare", "run"]

# Starting a second thread costs some 10 microseconds, in which one core does this much arithmetic.
_SERIAL_FLOPS = 4_000_000
_FAULT_WORDS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One shape of call, ready to run on arrays that have it."""

    problem: Problem
    spec: ForwardSpec
    target: Target
    partition: Partition
    threads: int
    scratch_bytes: int
    """Per thread."""
    kernel: Address
    frame: np.ndarray
    """The frame with every word that does not change between calls."""
    keep: tuple[np.ndarray, ...] = field(repr=False)
    """Tables that the frame points to."""

    @property
    def tasks(self) -> int:
        return int(self.frame[FRAME["tasks"]])


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
    narrow, proven = _proofs(problem, operands, tables)
    spec = ForwardSpec(problem.dtype, problem.graph, proven, schedule_for(target, narrow=narrow))
    accumulator = problem.dtype.accumulator
    lanes = target.lanes(accumulator.size)
    panel = panel_bytes(problem.d_k, problem.d_v, spec.schedule, lanes, accumulator.size)
    workers = threads.get_num_threads() if _flops(problem) > _SERIAL_FLOPS else 1
    cut = partition(
        problem.q_len, problem.batch * problem.heads, spec.schedule, lanes,
        threads=workers, most_panels=max(1, caches().l2 // 2 // panel),
    )  # fmt: skip
    tasks = problem.batch * problem.heads * cut.tasks_per_head
    frame, keep = _frame(bound, output, lse)
    pack_key, pack_value = _packing(problem, operands, spec)
    scratch = _scratch_bytes(problem, spec, lanes) + cut.panels_per_task * panel
    words = {
        "tasks": tasks, "panels": cut.panels, "panel_vectors": cut.panel_vectors, "wide_panels": cut.wide_panels,
        "panels_per_task": cut.panels_per_task, "tasks_per_head": cut.tasks_per_head, "panel_bytes": panel,
        "scratch_bytes": scratch, "pack_key": pack_key, "pack_value": pack_value,
    }  # fmt: skip
    for name, value in words.items():
        frame[FRAME[name]] = value
    kernel = _kernel(spec, target)
    return Prepared(problem, spec, target, cut, max(1, min(workers, tasks)), scratch, kernel, frame, keep)


def run(
    prepared: Prepared, operands: Operands, output: np.ndarray, lse: np.ndarray | None, tables: tuple[np.ndarray, ...]
) -> None:
    """Fill ``output`` and ``lse``.

    Raises:
        BoundsError: a mod read a captured array out of bounds for a visible pair.
    """
    if not prepared.tasks:
        return
    constants = _constants(prepared.problem.graph, operands.constants)
    arrays = _array_table(operands.arrays)
    table_addresses = np.array([table.ctypes.data for table in tables], np.int64)
    fault = np.zeros(_FAULT_WORDS, np.int64)
    with borrow(len(FRAME), prepared.scratch_bytes * prepared.threads) as workspace:
        frame = workspace.frame
        frame[: len(FRAME)] = prepared.frame
        frame[: len(CALL_WORDS)] = (
            0, 0, workspace.scratch_address, fault.ctypes.data,
            operands.query.ctypes.data, operands.key.ctypes.data, operands.value.ctypes.data, output.ctypes.data,
            0 if lse is None else lse.ctypes.data, 0 if operands.sinks is None else operands.sinks.ctypes.data,
            constants.ctypes.data, arrays.ctypes.data, table_addresses.ctypes.data,
        )  # fmt: skip
        threads.run(prepared.kernel, workspace.frame_address, prepared.threads)
    if fault[0]:
        _raise_fault(operands, fault)


def _kernel(spec: ForwardSpec, target: Target) -> Address:
    def build() -> str:
        # llvmlite's builder is needed only here: a kernel that is on disk runs without it
        from rootdk.codegen.forward import forward_module

        return str(forward_module(spec, target))

    return kernels().get(repr(spec), target, (spec.ENTRY,), build)[spec.ENTRY]


def _proofs(problem: Problem, operands: Operands, tables: tuple[np.ndarray, ...]) -> tuple[bool, frozenset[int]]:
    """Whether all integers of the mods fit 32 bits, and which gathers stay in range, over the whole problem."""
    sizes = (problem.batch, problem.heads, problem.q_len, problem.kv_len)
    if not all(sizes):
        return False, frozenset()
    indices = bounds.whole_problem(*sizes)
    graph = problem.graph
    found = bounds.node_ranges(graph, operands.constants, tables, indices, problem.dtype.accumulator)
    leaves = max(sizes) < 2**31
    proven = bounds.in_range_gathers(graph, found, [array.shape for array in operands.arrays])
    return leaves and bounds.fits_32_bits(graph, found), proven


def _flops(problem: Problem) -> int:
    """Of all pairs, visible or not."""
    return 2 * problem.batch * problem.heads * problem.q_len * problem.kv_len * (problem.d_k + problem.d_v)


def _packing(problem: Problem, operands: Operands, spec: ForwardSpec) -> tuple[bool, bool]:
    """Whether blocks of keys and of values are copied before use: must be, or pay for it.

    Must: other element types, elements that are not adjacent, values that end inside a tile of columns. Pay: rows that
    lie apart cost 25 to 38 % where many panels read them.
    """
    rows_reused = problem.q_len > 2 * spec.schedule.vectors

    def needed(array: np.ndarray) -> bool:
        size = array.dtype.itemsize
        adjacent = array.shape[-1] <= 1 or array.strides[-1] == size
        dense = array.strides[-2] == array.shape[-1] * size
        return problem.dtype is not problem.dtype.accumulator or not adjacent or (rows_reused and not dense)

    return needed(operands.key), needed(operands.value) or bool(problem.d_v % spec.schedule.value_rows)


def _scratch_bytes(problem: Problem, spec: ForwardSpec, lanes: int) -> int:
    """Of one worker, without its panels: scores of a block, a packed block of keys and one of values."""
    schedule, size = spec.schedule, problem.dtype.accumulator.size
    width = -(-problem.d_v // schedule.value_rows) * schedule.value_rows
    scores = (schedule.block + schedule.score_rows) * schedule.vectors * lanes * size
    packed = schedule.block * ((problem.d_k + width) * size + 2 * 64)
    return -(-(scores + packed + 64) // 64) * 64


def _frame(bound: Bound, output: np.ndarray, lse: np.ndarray | None) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """The words that follow from shapes and strides, and the tables they point to."""
    problem, operands = bound.problem, bound.operands
    frame = np.zeros(len(FRAME), np.int64)
    frame[FRAME["scale"]] = np.float64(problem.scale).view(np.int64)
    words = {
        "heads": problem.heads, "heads_per_kv": problem.groups, "q_len": problem.q_len, "kv_len": problem.kv_len,
        "d_k": problem.d_k, "d_v": problem.d_v,
    }  # fmt: skip
    views = {
        "query": operands.query, "key": operands.key, "value": operands.value, "output": bound.canonical(output),
        "lse": np.empty((*problem.batch_shape, 0, 0, 0)) if lse is None else bound.canonical_rows(lse)[..., None],
    }  # fmt: skip
    keep = []
    for name, view in views.items():
        batch = _batch_offsets(view)
        keep.append(batch)
        words |= {f"{name}_batch": batch.ctypes.data, f"{name}_head": view.strides[-3]}
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
        words += [array.ctypes.data, *array.shape, *array.strides]
    return np.array(words, np.int64)


def _raise_fault(operands: Operands, fault: np.ndarray) -> None:
    _, node, dimension, index, length = (int(word) for word in fault)
    raise BoundsError(
        f"{operands.sites.get(node, 'a captured array')}: expected an index from {-length} to {length - 1} in dimension "
        f"{dimension}, got {index} for a visible pair; clamp the index, or hide the pair with a mask"
    )


