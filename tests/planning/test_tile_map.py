"""Tile maps: what they count is what the kernel's loops go through, and what a dense mask shows."""

from dataclasses import dataclass

import numpy as np
import pytest
from tracing import masked

import rootdk
from rootdk import problem
from rootdk.machine import AVX2
from rootdk.mods import bounds, ranges
from rootdk.mods.trace import Traced
from rootdk.planning import tile_map as module
from rootdk.planning.partition import partition
from rootdk.planning.schedule import schedule_for
from rootdk.planning.tile_map import Blocker, Cut, TileMap, tile_map

LANES = 8
IDS = np.repeat([0, 1, 2, -1], [200, 333, 500, 67])
MASKS = {
    "all": None,
    "causal": rootdk.causal(),
    "window": rootdk.sliding_window(200),
    "sink": rootdk.sliding_window(100) | rootdk.sink_tokens(4),
    "documents": rootdk.causal() & rootdk.documents(IDS),
    "by head": rootdk.mask(lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx) & (kv_idx + 500 * h >= q_idx)),
    "lengths": rootdk.lengths(np.array([700])),
    "nothing": rootdk.lengths(np.array([0])),
}


@dataclass
class Case:
    bound: problem.Bound
    tables: tuple[np.ndarray, ...]
    cut: Cut

    def map(self) -> TileMap:
        return tile_map(self.bound.problem, self.bound.operands, self.tables, self.cut)


def case(mask: object, q_len: int = 1100, kv_len: int = 1100, heads: int = 2) -> Case:
    query, key = np.zeros((1, heads, q_len, 4), np.float32), np.zeros((1, heads, kv_len, 4), np.float32)
    bound = problem.bind(query, key, key, mask=mask)
    schedule = schedule_for(AVX2, narrow=True)
    cut = Cut(partition(q_len, heads, schedule, LANES, threads=1, most_panels=4), schedule, LANES)
    return Case(bound, ranges.build_all(bound.problem.graph, bound.operands.arrays), cut)


def dense(case: Case) -> np.ndarray:
    """[heads, q_len, kv_len]."""
    problem, operands = case.bound.problem, case.bound.operands
    traced = Traced(problem.graph, operands.constants, operands.arrays, operands.names, operands.sites)
    return masked(traced, (1, problem.heads, problem.q_len, problem.kv_len))[0]


def by_loops(case: Case) -> dict[str, int]:
    """The forward kernel's loops over tasks, chunks, blocks and panels, one tile at a time."""
    problem, partition, schedule = case.bound.problem, case.cut.partition, case.cut.schedule
    counts = dict.fromkeys(("skipped", "full", "masked", "computed_pairs", "keys_read"), 0)

    def look(h: int, q: tuple[int, int], kv: tuple[int, int]) -> tuple[bool, bool]:
        ends = q[0], min(q[1], problem.q_len) - 1, kv[0], min(kv[1], problem.kv_len) - 1
        hidden, shown = bounds.analyse(problem.graph, case.bound.operands.constants, case.tables, *ends, 0, h)
        return bool(hidden), bool(shown)

    for h in range(problem.heads):
        for first in range(0, partition.panels, partition.panels_per_task):
            end = min(first + partition.panels_per_task, partition.panels)
            rows = [partition.first_query(panel, LANES) for panel in range(first, end + 1)]
            for block in range(0, problem.kv_len, schedule.block):
                keys = min(block + schedule.block, problem.kv_len) - block
                chunk = block // schedule.chunk * schedule.chunk
                stretches = (chunk, chunk + schedule.chunk), (block, block + schedule.block)
                read = all(look(h, (rows[0], rows[-1]), stretch)[1] for stretch in stretches)
                counts["keys_read"] += keys * read
                for panel in range(end - first):
                    hidden, shown = look(h, (rows[panel], rows[panel + 1]), (block, block + keys))
                    kind = "skipped" if not (read and shown) else "masked" if hidden else "full"
                    counts[kind] += 1
                    counts["computed_pairs"] += (rows[panel + 1] - rows[panel]) * keys * (read and shown)
    return counts


@pytest.mark.parametrize("name", MASKS)
def test_counts_are_those_of_the_kernel_s_loops(name):
    some = case(MASKS[name])
    found = some.map()
    assert {field: getattr(found, field) for field in by_loops(some)} == by_loops(some)
    assert found.exact


@pytest.mark.parametrize("name", MASKS)
def test_visible_pairs(name):
    some = case(MASKS[name], 300, 300) if name != "documents" else case(MASKS[name])
    assert some.map().visible_pairs == pytest.approx(np.count_nonzero(dense(some)), rel=0.02)


def test_sampling_does_not_fall_into_step_with_the_mask():
    # every 16th panel of 24 queries begins a block of 128 keys: the same tiles again
    found = case(rootdk.sliding_window(256), 4096, 4096, heads=1).map()
    assert found.visible_pairs == pytest.approx(4096 * 257 - 256 * 257 / 2, rel=0.01)


def test_few_masked_tiles_are_all_counted_pair_by_pair():
    some = case(rootdk.causal(), 300, 300, heads=1)
    assert some.map().masked < 64
    assert some.map().visible_pairs == 300 * 301 // 2


def test_blockers_are_named_with_the_tiles_that_they_mask():
    mask = rootdk.mask(lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx) & (kv_idx * q_idx % 3 == 0))
    found = case(mask, heads=1).map()
    assert found.full == 0
    assert found.blockers[0] == Blocker("kv * q % 3 == 0", found.masked)
    assert found.blockers[1].text == "kv <= q"
    assert 0 < found.blockers[1].tiles < found.masked


def test_heads_that_look_alike_are_analysed_once(monkeypatch):
    monkeypatch.setattr(module, "_MOST_TILES", 200)
    one, many = case(rootdk.causal(), 256, 256, heads=1).map(), case(rootdk.causal(), 256, 256, heads=64).map()
    assert many.exact
    assert (many.skipped, many.full, many.masked) == tuple(64 * n for n in (one.skipped, one.full, one.masked))


def test_a_huge_grid_is_sampled(monkeypatch):
    exact = case(MASKS["by head"], heads=16).map()
    monkeypatch.setattr(module, "_MOST_TILES", 2000)
    monkeypatch.setattr(module, "_SLAB_TILES", 300)
    found = case(MASKS["by head"], heads=16).map()
    assert not found.exact
    assert found.tiles == pytest.approx(exact.tiles, abs=2)
    assert found.skipped == pytest.approx(exact.skipped, rel=0.1)
    assert found.visible_pairs == pytest.approx(exact.visible_pairs, rel=0.1)


def test_heads_that_share_keys_skip_and_mask_together():
    mask = rootdk.mask(lambda b, h, q_idx, kv_idx: kv_idx < 128 * h)
    query, key = np.zeros((1, 4, 1, 4), np.float32), np.zeros((1, 2, 512, 4), np.float32)
    bound = problem.bind(query, key, key, mask=mask)
    found = tile_map(bound.problem, bound.operands, (), Cut(None, schedule_for(AVX2, narrow=True), LANES))
    # heads 0 and 1 see 0 and 1 of the 4 blocks, heads 2 and 3 see 2 and 3; where only one sees a block, both mask
    assert (found.skipped, found.full, found.masked) == (2 * 3 + 2, 2 * 2, 2 + 2)
    assert found.keys_read == 128 * (1 + 3)
    assert found.computed_pairs == 2 * 128 * (1 + 3)
    assert found.visible_pairs == 128 * (0 + 1 + 2 + 3)
    assert found.blockers == ()


@pytest.mark.parametrize("sizes", [(0, 5, 1), (5, 0, 1), (5, 5, 0)])
def test_an_empty_problem_has_no_tiles(sizes):
    assert case(None, *sizes).map().tiles == 0
