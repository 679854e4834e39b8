"""torch's BlockMask as a mask: full blocks are visible, in partial ones its mask_mod decides, the rest is hidden."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rootdk.errors import ArgumentError, ShapeError
from rootdk.frontends.torch.modes import watched
from rootdk.frontends.torch.tensors import as_view
from rootdk.mods.symbols import Sym
from rootdk.mods.trace import Tracer
from rootdk.mods.values import Mask

__all__ = ["Blocks", "as_mask", "block_table"]

_PARTIAL, _FULL = 1, 2
_LARGE = 1 << 30
"""torch's block size for one block that holds everything, whatever the lengths."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Blocks(Mask):
    """A table [1 or batch, 1 or heads, query blocks, key blocks] of what is visible, and the rule of partial blocks."""

    table: np.ndarray | Tensor
    block: tuple[int, int]
    mask_mod: Callable[..., Any]

    @property
    def fixed(self) -> bool:
        return False

    def trace(self, tracer: Tracer, b: Sym, h: Sym, q: Sym, kv: Sym) -> Sym:
        table = tracer.array(self.table, "blocks")
        visible: Sym = self.visible(table, tracer.call(self.mask_mod, b, h, q, kv, what="mask"), b, h, q, kv)
        return visible

    def visible(self, table: Any, rule: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        """Whether a pair is visible by ``table`` where ``rule`` is what mask_mod says."""
        batch, heads = self.table.shape[:2]
        status = table[b if batch > 1 else 0, h if heads > 1 else 0, q // self.block[0], kv // self.block[1]]
        # not status == _PARTIAL: a tile over blocks of both kinds is seen to be full where the rule shows it all
        return (status == _FULL) | ((status >= _PARTIAL) & rule)

    def __repr__(self) -> str:
        return f"BlockMask of {list(self.table.shape)} blocks"


def as_mask(block_mask: Any, lengths: tuple[int, int]) -> Mask | None:
    """``block_mask`` for scores of ``lengths`` = (q_len, kv_len); None where nothing is hidden."""
    _check_lengths(block_mask, lengths)
    block = tuple(block_mask.BLOCK_SIZE)
    counts = tuple(-(-length // size) for length, size in zip(lengths, block, strict=True))
    rows = block_mask.kv_num_blocks.shape
    if len(rows) != 3 or rows[2] < counts[0]:
        raise ShapeError(
            f"block_mask: expected kv_num_blocks [batch, heads, query blocks] with at least {counts[0]} query blocks "
            f"of {block[0]} for q_len = {lengths[0]}, got shape {tuple(rows)}"
        )
    listed = block_mask.kv_num_blocks, block_mask.kv_indices
    full = block_mask.full_kv_num_blocks, block_mask.full_kv_indices
    table = (block_table if watched() else _table)(*listed, *full, counts[1])
    return Blocks(table, (block[0], block[1]), block_mask.mask_mod)


def _table(
    num_blocks: Tensor, indices: Tensor, full_num_blocks: Tensor | None, full_indices: Tensor | None, columns: int
) -> np.ndarray:
    table = np.zeros((*num_blocks.shape, columns), np.uint8)
    _enter(table, _PARTIAL, num_blocks, indices)
    if full_num_blocks is not None:
        _enter(table, _FULL, full_num_blocks, full_indices)
    return table


@torch.library.custom_op("rootdk::block_table", mutates_args=(), device_types="cpu")  # type: ignore[untyped-decorator]
def block_table(
    num_blocks: Tensor, indices: Tensor, full_num_blocks: Tensor | None, full_indices: Tensor | None, columns: int
) -> Tensor:
    """[batch, heads, query blocks, ``columns`` key blocks]: what is hidden, partial or full."""
    return torch.from_numpy(_table(num_blocks, indices, full_num_blocks, full_indices, columns))


@block_table.register_fake  # type: ignore[untyped-decorator]
def _(num_blocks: Tensor, indices: Tensor, full_num_blocks: Any, full_indices: Any, columns: int) -> Tensor:
    return num_blocks.new_empty((*num_blocks.shape, columns), dtype=torch.uint8)


def _check_lengths(block_mask: Any, lengths: tuple[int, int]) -> None:
    """Refuse a BlockMask that was made for other lengths, as torch does."""
    made_for = tuple(block_mask.shape[-2:])
    if made_for != lengths and set(block_mask.BLOCK_SIZE) != {_LARGE}:
        raise ShapeError(
            f"block_mask: expected one for q_len, kv_len = {lengths}, got one for {made_for}; create it for "
            "these lengths, or after slicing set block_mask.seq_lengths and block_mask.mask_mod"
        )


def _enter(table: np.ndarray, status: int, num_blocks: Tensor, indices: Any) -> None:
    """Mark the first ``num_blocks`` key blocks that ``indices`` [..., query blocks, entries] lists for each row."""
    counts, columns = as_view("num_blocks", num_blocks), as_view("indices", indices)
    listed = np.arange(columns.shape[-1]) < counts[..., None]
    rows, chosen = np.nonzero(listed)[:-1], columns[listed]
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < table.shape[-1]:
        raise ArgumentError(
            f"block_mask: expected key blocks from 0 to {table.shape[-1] - 1}, got {chosen.min()} to {chosen.max()}"
        )
    table[(*rows, chosen)] = status
