"""Plans: what the engine would do with a call, counted, priced and put into words."""

from collections.abc import Callable
from typing import Any

from rootdk import engine, second_order
from rootdk.mods import ranges
from rootdk.planning.cost import cost
from rootdk.planning.packing import decode_packing_reasons, packing_reasons
from rootdk.planning.partition import flops_of, worth_threads
from rootdk.planning.plan import Plan, si
from rootdk.planning.schedule import DecodeSpec
from rootdk.planning.tile_map import Cut, tile_map
from rootdk.problem import Bound
from rootdk.roofline import peaks
from rootdk.runtime import threads
from rootdk.runtime.cache import Counters, kernels

__all__ = ["plan"]


def plan(bound: Bound, run: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], *, return_lse: bool) -> Plan:
    """How a bound call will run; its kernel is compiled.

    ``run`` is what calling the plan calls, on arrays of the caller's library of these ``shapes``.
    """
    operands = bound.operands
    tables = ranges.build_all(bound.problem.graph, operands.arrays)
    before = kernels().counters()
    prepared = engine.prepare(bound, *engine.allocate(bound, lse=return_lse), tables)
    origin = _origin(before, kernels().counters())
    few = isinstance(prepared.spec, DecodeSpec)
    schedule, lanes = prepared.spec.schedule, prepared.target.lanes(bound.problem.dtype.accumulator.size)
    cut = Cut(None if few else prepared.partition, schedule, lanes)
    tiles = tile_map(bound.problem, operands, tables, cut)
    if few:
        packing = decode_packing_reasons(bound.problem, operands, lanes)
        path, why = "fused decode", f"{lanes} lanes of keys, as {bound.problem.q_len} of queries would leave most idle"
    else:
        packing = packing_reasons(bound.problem, operands, schedule)
        path, why = "fused forward", f"{lanes} lanes of queries"
    return Plan(
        problem=bound.problem,
        path=path,
        reason=f"{prepared.target.name}, {why}; {_thread_reason(prepared)}",
        derivatives=(f"fused backward: {lanes} lanes of keys", second_order.REASON),
        threads=prepared.threads,
        tasks=prepared.tasks,
        cut=cut,
        tiles=tiles,
        packing=packing,
        cost=cost(bound.problem, tiles),
        peaks=peaks(prepared.threads),
        kernel=origin,
        shapes=shapes,
        run=run,
    )


def _thread_reason(prepared: engine.Prepared) -> str:
    allowed, used = threads.get_num_threads(), prepared.threads
    count = "1 thread" if used == 1 else f"{used} threads"
    if used == allowed:
        return f"{count} for {prepared.tasks} tasks"
    if not worth_threads(prepared.problem):
        return f"{count}, as {si(flops_of(prepared.problem), 'FLOP')} take it no longer than waking another would"
    return f"{count}, as there {'is 1 task' if prepared.tasks == 1 else f'are {prepared.tasks} tasks'}"


def _origin(before: Counters, after: Counters) -> str:
    if after.compilations > before.compilations:
        return "compiled now"
    return "loaded from disk" if after.disk_hits > before.disk_hits else "in memory"
