"""What a mask leaves of a problem: tiles that the kernel skips, takes whole, or masks pair by pair.

The same interval analysis as in the kernel, on all tiles at once in NumPy: a tile is a panel of queries by a block of
keys, and is skipped with its whole chunk or block of keys where no query of the task sees any of it.
"""

import math
from dataclasses import dataclass

import numpy as np

from rootdk.mods import bounds, ranges
from rootdk.mods.bounds import Truth
from rootdk.mods.describe import describe
from rootdk.mods.evaluate import evaluate
from rootdk.planning.partition import Partition
from rootdk.planning.schedule import Schedule
from rootdk.problem import Operands, Problem

__all__ = ["Blocker", "Cut", "TileMap", "tile_map"]

_SLAB_TILES = 1 << 17
"""Tiles analysed at a time: some megabytes of intermediate results."""
_MOST_TILES = 1 << 21
"""Tiles analysed at all, a second's work. Of more, every so many tasks are, and counts are scaled up."""
_SAMPLED_TILES = 64
"""Masked tiles of a slab that are looked into, pair by pair."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a problem is cut into tiles."""

    partition: Partition
    schedule: Schedule
    lanes: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """A condition of the mask that interval analysis cannot decide on some tiles, which are therefore masked."""

    text: str
    tiles: int


@dataclass(frozen=True, slots=True)
class TileMap:
    """Tiles and pairs of a call, over all of its batch and heads."""

    skipped: int
    full: int
    masked: int
    computed_pairs: int
    """Of tiles that are not skipped, lanes without a query included."""
    visible_pairs: int
    """In masked tiles by sampling, where there are many."""
    keys_read: int
    """Keys of the blocks that tasks go through: each is read once per task."""
    blockers: tuple[Blocker, ...]
    exact: bool
    """Every tile was analysed; else the counts are scaled up from a part of them."""

    @property
    def tiles(self) -> int:
        return self.skipped + self.full + self.masked


def tile_map(problem: Problem, operands: Operands, tables: tuple[np.ndarray, ...], cut: Cut) -> TileMap:
    """Count what the kernel will do; ``tables`` are the range tables of ``operands.arrays``."""
    blocks = -(-problem.kv_len // cut.schedule.block)
    heads = problem.batch * problem.heads
    if not heads or not blocks or not cut.partition.panels:
        return TileMap(0, 0, 0, 0, 0, 0, (), exact=True)
    # heads that the mask treats alike are counted once
    distinct = heads if _differs_by_head(problem) else 1
    tasks = distinct * cut.partition.tasks_per_head
    per_task = blocks * cut.partition.panels_per_task
    step = max(1, -(-tasks * per_task // _MOST_TILES))
    while math.gcd(step, cut.partition.tasks_per_head) > 1:  # or the same panels of each head would be looked at
        step += 1
    slab = max(1, _SLAB_TILES // per_task) * step
    total = _Counts(np.zeros(len(_FIELDS), np.float64), {})
    for start in range(0, tasks, slab):
        total += _Slab(problem, operands, tables, cut, np.arange(start, min(start + slab, tasks), step)).counts()
    panels = distinct * cut.partition.panels
    scale = heads / distinct * panels * blocks / total.numbers[:3].sum()
    numbers = [round(float(number) * scale) for number in total.numbers]
    found = sorted(total.blockers.items(), key=lambda item: -item[1])
    texts = [(describe(problem.graph, node, operands.constants, operands.names), tiles) for node, tiles in found]
    named = tuple(Blocker(text, round(tiles * scale)) for text, tiles in texts)
    return TileMap(**dict(zip(_FIELDS, numbers, strict=True)), blockers=named, exact=step == 1)


_FIELDS = ("skipped", "full", "masked", "computed_pairs", "visible_pairs", "keys_read")


def _differs_by_head(problem: Problem) -> bool:
    graph = problem.graph
    needed = ranges.reachable(graph, [] if graph.mask is None else [graph.mask])
    return any(graph.nodes[number].op == "index" and graph.nodes[number].attr in ("b", "h") for number in needed)


@dataclass(frozen=True, slots=True)
class _Counts:
    numbers: np.ndarray
    blockers: dict[int, int]

    def __add__(self, other: "_Counts") -> "_Counts":
        nodes = self.blockers.keys() | other.blockers.keys()
        return _Counts(
            self.numbers + other.numbers,
            {node: self.blockers.get(node, 0) + other.blockers.get(node, 0) for node in nodes},
        )


@dataclass(frozen=True)
class _Slab:
    """Some tasks, numbered as in the kernel's grid: head by head, panels in order."""

    problem: Problem
    operands: Operands
    tables: tuple[np.ndarray, ...]
    cut: Cut
    tasks: np.ndarray

    def counts(self) -> _Counts:
        """Of the slab's tiles: numbers in the order of ``_FIELDS``, and tiles by blocking node."""
        partition, kv_len = self.cut.partition, self.problem.kv_len
        group = self.tasks % partition.tasks_per_head
        first_panel = group * partition.panels_per_task
        end_panel = np.minimum(first_panel + partition.panels_per_task, partition.panels)
        # one row per panel; ``owner`` is the row of its task
        sizes = end_panel - first_panel
        owner = np.repeat(np.arange(self.tasks.size), sizes)
        panel = np.arange(owner.size) - np.repeat(np.cumsum(sizes) - sizes, sizes) + first_panel[owner]
        head = self.tasks // partition.tasks_per_head
        blocks = _stretches(kv_len, self.cut.schedule.block)
        read = self._read_blocks(head, first_panel, end_panel, blocks)
        q0, q1 = self._row(panel), np.minimum(self._row(panel + 1), self.problem.q_len) - 1
        found = self._analyse(head[owner], q0, q1, blocks)
        can_hide, can_show = _truth(found, self.problem.graph.mask)
        hidden, shown = can_hide | ~read[owner], can_show & read[owner]
        queries, lanes = q1 - q0 + 1, self._row(panel + 1) - self._row(panel)
        keys = blocks[1] - blocks[0] + 1
        masked = hidden & shown
        visible = queries @ (~hidden @ keys) + self._visible_in(masked, head[owner], q0, q1, blocks)
        kinds = (~shown, ~hidden, masked)
        counts = [*(np.count_nonzero(kind) for kind in kinds), lanes @ (shown @ keys), visible, (read @ keys).sum()]
        if self.problem.graph.mask is None:
            return _Counts(np.array(counts, np.float64), {})
        found[self.problem.graph.mask] = Truth(hidden, shown)
        return _Counts(np.array(counts, np.float64), dict(bounds.blockers(self.problem.graph, found)))

    def _row(self, panel: np.ndarray) -> np.ndarray:
        """The first query of each panel."""
        partition = self.cut.partition
        vectors: np.ndarray = panel * partition.panel_vectors + np.minimum(panel, partition.wide_panels)
        return vectors * self.cut.lanes

    def _read_blocks(
        self, head: np.ndarray, first_panel: np.ndarray, end_panel: np.ndarray, blocks: tuple[np.ndarray, np.ndarray]
    ) -> np.ndarray:
        """[task, block]: whether the task goes through the block, which it does unless it skips it or its chunk."""
        q0, q1 = self._row(first_panel), np.minimum(self._row(end_panel), self.problem.q_len) - 1
        read = np.ones((self.tasks.size, blocks[0].size), bool)
        if self.problem.graph.mask is None:
            return read
        chunk = self.cut.schedule.chunk
        for stretch, column in (
            (_stretches(self.problem.kv_len, chunk), blocks[0] // chunk),
            (blocks, np.arange(blocks[0].size)),
        ):
            _, shown = _truth(self._analyse(head, q0, q1, stretch), self.problem.graph.mask)
            read &= np.broadcast_to(shown, (self.tasks.size, stretch[0].size))[:, column]
        return read

    def _analyse(
        self, head: np.ndarray, q0: np.ndarray, q1: np.ndarray, keys: tuple[np.ndarray, np.ndarray]
    ) -> list[bounds.Range]:
        """The ranges of the graph's nodes over a grid of rows by stretches of keys."""
        b, h = (index[:, None] for index in np.divmod(head, self.problem.heads))
        indices = bounds.tile(q0[:, None], q1[:, None], keys[0], keys[1], b, h)
        accumulator = self.problem.dtype.accumulator
        return bounds.node_ranges(self.problem.graph, self.operands.constants, self.tables, indices, accumulator)

    def _visible_in(
        self, masked: np.ndarray, head: np.ndarray, q0: np.ndarray, q1: np.ndarray,
        blocks: tuple[np.ndarray, np.ndarray],
    ) -> float:  # fmt: skip
        """Visible pairs in the masked tiles [panel, block], from evaluating some of them."""
        rows, columns = np.nonzero(masked)
        if not rows.size:
            return 0.0
        step = -(-rows.size // _SAMPLED_TILES)
        sample = list(zip(rows[::step], columns[::step], strict=True))
        seen = sum(self._count(head[row], q0[row], q1[row], blocks[0][at], blocks[1][at]) for row, at in sample)
        return seen * rows.size / len(sample)

    def _count(self, head: int, q0: int, q1: int, k0: int, k1: int) -> int:
        graph, operands = self.problem.graph, self.operands
        assert graph.mask is not None
        b, h = divmod(int(head), self.problem.heads)
        q, kv = np.arange(q0, q1 + 1)[:, None], np.arange(k0, k1 + 1)
        values = evaluate(graph, operands.constants, operands.arrays, b=b, h=h, q=q, kv=kv)
        return int(np.count_nonzero(np.broadcast_to(values[graph.mask], (q.size, kv.size))))


def _stretches(length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last key of each block or chunk."""
    first = np.arange(0, length, size)
    return first, np.minimum(first + size, length) - 1


def _truth(found: list[bounds.Range], mask: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Whether pairs can be hidden, and whether they can be visible; without a mask all are."""
    if mask is None:
        return np.array(False), np.array(True)
    truth = found[mask]
    assert isinstance(truth, Truth)
    return truth.can_be_false, truth.can_be_true
