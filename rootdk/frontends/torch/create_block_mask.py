"""create_block_mask without the dense mask: interval analysis decides most blocks, the rest are evaluated in turns."""

# ruff: noqa: N803 - the argument names are torch's

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from rootdk.errors import ArgumentError
from rootdk.frontends.torch.errors import runtime_errors
from rootdk.frontends.torch.modes import outside_graphs
from rootdk.mods import bounds, ranges
from rootdk.mods.evaluate import evaluate
from rootdk.mods.trace import Traced, Tracer

__all__ = ["create_block_mask"]

_EMPTY, _PARTIAL, _FULL = 0, 1, 2
_TILES_AT_ONCE = 2**16
_PAIRS_AT_ONCE = 2**20


@outside_graphs
@runtime_errors
def create_block_mask(
    mask_mod: Callable[..., Any], B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = "cpu",
    BLOCK_SIZE: int | tuple[int, int] = 128, _compile: bool = False, separate_full_blocks: bool = True,
) -> BlockMask:  # fmt: skip
    """torch's BlockMask of ``mask_mod``, equal to the one that torch's create_block_mask makes, in memory O(blocks).

    Args:
        mask_mod: f(b, h, q_idx, kv_idx) -> bool, True = may attend.
        B: batch size; None for 1, which broadcasts.
        H: query heads; None for 1, which broadcasts.
        Q_LEN: number of queries.
        KV_LEN: number of keys.
        device: of the result's tensors.
        BLOCK_SIZE: of a block, one number or (queries, keys).
        _compile: without effect; torch's function has it.
        separate_full_blocks: list blocks without a hidden pair apart, so that mask_mod is not asked in them.

    Raises:
        RootdkError, which is a RuntimeError too: ``mask_mod`` cannot be traced, or a size makes no sense.
    """
    q_block, kv_block = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    batch, heads = 1 if B is None else B, 1 if H is None else H
    sizes = {"B": batch, "H": heads, "Q_LEN": Q_LEN, "KV_LEN": KV_LEN}
    wrong = [f"{name} = {size}" for name, size in sizes.items() if size < 0]
    if wrong or min(q_block, kv_block) < 1:
        given = ", ".join(wrong) or f"BLOCK_SIZE = {BLOCK_SIZE}"
        raise ArgumentError(f"create_block_mask: expected sizes that are not negative and positive blocks, got {given}")
    traced = _trace(mask_mod, batch, heads, Q_LEN, KV_LEN)
    grid = _Grid(traced, batch, heads, Q_LEN, KV_LEN, q_block, kv_block)
    status = torch.from_numpy(grid.status()).to(device)
    partial = status == _PARTIAL if separate_full_blocks else status != _EMPTY
    full = _ordered(status == _FULL) if separate_full_blocks else (None, None)
    return BlockMask.from_kv_blocks(
        *_ordered(partial), *full, BLOCK_SIZE=(q_block, kv_block), mask_mod=mask_mod, seq_lengths=(Q_LEN, KV_LEN)
    )


def _trace(mask_mod: Callable[..., Any], batch: int, heads: int, q_len: int, kv_len: int) -> Traced:
    tracer = Tracer(q_len, kv_len, heads, (batch,))
    return tracer.finish(None, tracer.call(mask_mod, *tracer.indices, what="mask"))


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row are set, and the row's columns, the set ones first."""
    indices = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), indices.to(torch.int32)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The blocks of a traced mask."""

    traced: Traced
    batch: int
    heads: int
    q_len: int
    kv_len: int
    q_block: int
    kv_block: int

    def status(self) -> np.ndarray:
        """[batch, heads, query blocks, key blocks]: empty, partial or full; a block cut by the end is never full."""
        rows, columns = -(-self.q_len // self.q_block), -(-self.kv_len // self.kv_block)
        read = {node.attr for node in self.traced.graph.nodes if node.op == "index"}
        # heads and batch elements that the mask does not tell apart are computed once
        batch, heads = (
            self.batch if "b" in read else min(self.batch, 1),
            self.heads if "h" in read else min(self.heads, 1),
        )
        found = np.empty((batch, heads, rows, columns), np.uint8)
        tables = ranges.build_all(self.traced.graph, self.traced.arrays)
        step = max(1, _TILES_AT_ONCE // max(columns, 1))
        for b, h in np.ndindex(batch, heads):
            for row in range(0, rows, step):
                part = found[b, h, row : row + step]
                self._decide(part, b, h, np.arange(row, row + len(part)), tables)
        return np.broadcast_to(found, (self.batch, self.heads, rows, columns)).copy()

    def _decide(self, part: np.ndarray, b: int, h: int, rows: np.ndarray, tables: tuple[np.ndarray, ...]) -> None:
        """Fill ``part``, the blocks of ``rows``."""
        if not part.size:
            return
        columns = np.arange(part.shape[1])
        q0, k0 = rows[:, None] * self.q_block, columns * self.kv_block
        q1, k1 = q0 + self.q_block - 1, k0 + self.kv_block - 1
        whole = (q1 < self.q_len) & (k1 < self.kv_len)
        q1, k1 = np.minimum(q1, self.q_len - 1), np.minimum(k1, self.kv_len - 1)
        traced = self.traced
        hidden, visible = bounds.analyse(traced.graph, traced.constants, tables, q0, q1, k0, k1, b, h)
        part[...] = np.where(visible, np.where(hidden | ~whole, _PARTIAL, _FULL), _EMPTY)
        row, column = np.nonzero(hidden & visible)
        step = max(1, _PAIRS_AT_ONCE // (self.q_block * self.kv_block))
        for start in range(0, len(row), step):
            some = slice(start, start + step)
            part[row[some], column[some]] = self._evaluate(b, h, rows[row[some]], columns[column[some]])

    def _evaluate(self, b: int, h: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Status of the blocks (rows[i], columns[i]), from every pair in them."""
        q = rows[:, None, None] * self.q_block + np.arange(self.q_block)[:, None]
        kv = columns[:, None, None] * self.kv_block + np.arange(self.kv_block)
        traced = self.traced
        values = evaluate(
            traced.graph, traced.constants, traced.arrays, b=b, h=h,
            q=np.minimum(q, self.q_len - 1), kv=np.minimum(kv, self.kv_len - 1),
        )  # fmt: skip
        assert traced.graph.mask is not None  # a mask of True alone leaves no block undecided
        visible = values[traced.graph.mask] & (q < self.q_len) & (kv < self.kv_len)
        count = np.broadcast_to(visible, (len(rows), self.q_block, self.kv_block)).sum(axis=(1, 2))
        return np.where(count == 0, _EMPTY, np.where(count == self.q_block * self.kv_block, _FULL, _PARTIAL))
