"""What a mask leaves of a problem: tiles that the kernel skips, takes whole, or masks pair by pair.

The same interval analysis as in the kernels, on many tiles at once in NumPy. In the forward kernel a tile is a panel of
queries by a block of keys, and is skipped with a chunk or block of keys of which no query of the task sees anything. In
the decode kernel it is the queries of one head by a block, and heads that share keys skip, or mask, together.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

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
"""Masked tiles of a slab that are looked into, pair by pair; where there are more, one query of each of some."""

_SAMPLED_QUERIES = 2048
"""So many of a slab: of a window, within 1 %."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a problem is cut into tiles."""

    partition: Partition | None
    """None in the decode kernel, where all queries of a head are one panel."""
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
    tiles = problem.batch * problem.heads * (cut.partition.panels if cut.partition else 1)
    tiles *= -(-problem.kv_len // cut.schedule.block)
    if not tiles or not problem.q_len:
        return TileMap(0, 0, 0, 0, 0, 0, (), exact=True)
    kind = _Tasks if cut.partition else _KeyHeads
    # heads that the mask treats alike are counted once
    units = kind.per_key_head(problem, cut) * (problem.batch * problem.kv_heads if _differs_by_head(problem) else 1)
    per_unit = max(1, tiles // (kind.per_key_head(problem, cut) * problem.batch * problem.kv_heads))
    step = max(1, -(-units * per_unit // _MOST_TILES))
    while math.gcd(step, kind.per_key_head(problem, cut)) > 1:  # or the same panels of each head would be looked at
        step += 1
    slab = max(1, _SLAB_TILES // per_unit) * step
    total = _Counts(np.zeros(len(_FIELDS), np.float64), {})
    for start in range(0, units, slab):
        total += kind(problem, operands, tables, cut, np.arange(start, min(start + slab, units), step)).counts()
    scale = tiles / total.numbers[:3].sum()
    numbers = [round(float(number) * scale) for number in total.numbers]
    found = sorted(total.blockers.items(), key=lambda item: -item[1])
    texts = [(describe(problem.graph, node, operands.constants, operands.names), count) for node, count in found]
    named = tuple(Blocker(text, round(count * scale)) for text, count in texts)
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


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of tiles: their head, first and last query, and how many queries are computed for them."""

    head: np.ndarray
    first: np.ndarray
    last: np.ndarray
    computed: np.ndarray


@dataclass(frozen=True)
class _Slab(ABC):
    """Some units of work, all of whose tiles are analysed at once."""

    problem: Problem
    operands: Operands
    tables: tuple[np.ndarray, ...]
    cut: Cut
    units: np.ndarray

    @staticmethod
    @abstractmethod
    def per_key_head(problem: Problem, cut: Cut) -> int:
        """Units for each head of keys."""

    @abstractmethod
    def rows(self) -> _Rows: ...

    @abstractmethod
    def decide(self, can_hide: np.ndarray, can_show: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Which tiles [row, block] the kernel masks or skips, which it masks or takes whole, and the keys it reads."""

    def counts(self) -> _Counts:
        """Numbers in the order of ``_FIELDS``, and tiles by blocking node."""
        rows, blocks, graph = self.rows(), self.blocks, self.problem.graph
        found = self._analyse(rows.head, rows.first, rows.last, blocks)
        shape = (rows.head.size, blocks[0].size)
        can_hide, can_show = (np.broadcast_to(possible, shape) for possible in _truth(found, graph.mask))
        hidden, shown, keys_read = self.decide(can_hide, can_show)
        keys = blocks[1] - blocks[0] + 1
        visible = (rows.last - rows.first + 1) @ (~hidden @ keys) + self._visible_in(hidden & shown, rows)
        kinds = (~shown, ~hidden, hidden & shown)
        counts = [*(np.count_nonzero(kind) for kind in kinds), rows.computed @ (shown @ keys), visible, keys_read]
        if graph.mask is None:
            return _Counts(np.array(counts, np.float64), {})
        found[graph.mask] = Truth(hidden & can_hide, shown & can_show)
        return _Counts(np.array(counts, np.float64), dict(bounds.blockers(graph, found)))

    @property
    def blocks(self) -> tuple[np.ndarray, np.ndarray]:
        return _stretches(self.problem.kv_len, self.cut.schedule.block)

    def _analyse(
        self, head: np.ndarray, q0: np.ndarray, q1: np.ndarray, keys: tuple[np.ndarray, np.ndarray]
    ) -> list[bounds.Range]:
        """The ranges of the graph's nodes over a grid of rows by stretches of keys."""
        b, h = (index[:, None] for index in np.divmod(head, self.problem.heads))
        indices = bounds.tile(q0[:, None], q1[:, None], keys[0], keys[1], b, h)
        accumulator = self.problem.dtype.accumulator
        return bounds.node_ranges(self.problem.graph, self.operands.constants, self.tables, indices, accumulator)

    def _visible_in(self, masked: np.ndarray, rows: _Rows) -> float:
        """Visible pairs in the masked tiles [row, block], from evaluating all of few, or some of many."""
        row, block = np.nonzero(masked)
        if not row.size:
            return 0.0
        sizes = rows.last[row] - rows.first[row] + 1
        if row.size <= _SAMPLED_TILES:
            tile = np.repeat(np.arange(row.size), sizes)
            place = np.arange(tile.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            return float(self._seen(rows.head[row[tile]], rows.first[row[tile]] + place, block[tile]).sum())
        # At random, as what a mask hides has a period, and so have strides; the same for each plan.
        rng = np.random.default_rng(0)
        tile = rng.choice(row.size, min(_SAMPLED_QUERIES, row.size), replace=False)
        query = rows.first[row[tile]] + rng.integers(sizes[tile])
        return float(self._seen(rows.head[row[tile]], query, block[tile]) @ sizes[tile] * (row.size / tile.size))

    def _seen(self, head: np.ndarray, query: np.ndarray, block: np.ndarray) -> np.ndarray:
        """How many keys of a block each query sees."""
        graph, operands = self.problem.graph, self.operands
        assert graph.mask is not None
        b, h = (index[:, None] for index in np.divmod(head, self.problem.heads))
        first, last = (ends[block][:, None] for ends in self.blocks)
        keys = first + np.arange(self.cut.schedule.block)
        kv = np.minimum(keys, last)
        values = evaluate(graph, operands.constants, operands.arrays, b=b, h=h, q=query[:, None], kv=kv)
        seen: np.ndarray = (values[graph.mask] & (keys <= last)).sum(axis=1)
        return seen


class _Tasks(_Slab):
    """Tasks of the forward kernel, numbered as in its grid: head by head, panels in order."""

    @staticmethod
    def per_key_head(problem: Problem, cut: Cut) -> int:
        assert cut.partition is not None
        return cut.partition.tasks_per_head * problem.groups

    @cached_property
    def _panels(self) -> tuple[np.ndarray, np.ndarray]:
        """First and end panel of each task."""
        assert self.cut.partition is not None
        partition = self.cut.partition
        first = self.units % partition.tasks_per_head * partition.panels_per_task
        return first, np.minimum(first + partition.panels_per_task, partition.panels)

    @property
    def _head(self) -> np.ndarray:
        assert self.cut.partition is not None
        return self.units // self.cut.partition.tasks_per_head

    @cached_property
    def _owner(self) -> np.ndarray:
        """The task of each panel."""
        first, end = self._panels
        return np.repeat(np.arange(self.units.size), end - first)

    def rows(self) -> _Rows:
        first, end = self._panels
        sizes = end - first
        panel = np.arange(self._owner.size) - np.repeat(np.cumsum(sizes) - sizes, sizes) + first[self._owner]
        q0, q1 = self._query(panel), self._query(panel + 1)
        return _Rows(self._head[self._owner], q0, np.minimum(q1, self.problem.q_len) - 1, q1 - q0)

    def decide(self, can_hide: np.ndarray, can_show: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        blocks, chunk = self.blocks, self.cut.schedule.chunk
        read = np.ones((self.units.size, blocks[0].size), bool)
        q0, q1 = self._query(self._panels[0]), np.minimum(self._query(self._panels[1]), self.problem.q_len) - 1
        for stretch, column in (
            (_stretches(self.problem.kv_len, chunk), blocks[0] // chunk),
            (blocks, np.arange(blocks[0].size)),
        ):
            _, shown = _truth(self._analyse(self._head, q0, q1, stretch), self.problem.graph.mask)
            read &= np.broadcast_to(shown, (self.units.size, stretch[0].size))[:, column]
        keys_read = int((read @ (blocks[1] - blocks[0] + 1)).sum())
        return can_hide | ~read[self._owner], can_show & read[self._owner], keys_read

    def _query(self, panel: np.ndarray) -> np.ndarray:
        """The first query of each panel."""
        assert self.cut.partition is not None
        partition = self.cut.partition
        vectors: np.ndarray = panel * partition.panel_vectors + np.minimum(panel, partition.wide_panels)
        return vectors * self.cut.lanes


class _KeyHeads(_Slab):
    """Heads of keys in the decode kernel, with all the query heads that read them."""

    @staticmethod
    def per_key_head(problem: Problem, cut: Cut) -> int:
        return 1

    def rows(self) -> _Rows:
        groups = self.problem.groups
        head = (self.units[:, None] * groups + np.arange(groups)).reshape(-1)
        queries = np.full(head.size, self.problem.q_len)
        return _Rows(head, queries * 0, queries - 1, queries)

    def decide(self, can_hide: np.ndarray, can_show: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        together = (self.units.size, self.problem.groups, -1)
        shown = can_show.reshape(together).any(axis=1)
        # a head that sees nothing needs the mask where another sees something
        hidden = (can_hide | ~can_show).reshape(together).any(axis=1)
        keys_read = int((shown @ (self.blocks[1] - self.blocks[0] + 1)).sum())
        return np.repeat(hidden, together[1], axis=0), np.repeat(shown, together[1], axis=0), keys_read


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
