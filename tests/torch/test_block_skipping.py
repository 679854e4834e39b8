"""Tiles that a torch BlockMask leaves empty or full are skipped or taken whole, and results are torch's."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import scaled_dot_product_attention

import rootdk.torch
from rootdk.frontends.torch.block_masks import as_mask
from rootdk.mods import bounds, ranges
from rootdk.mods.trace import Tracer

LENGTH, BLOCK, HEADS = 700, 64, 2
TILE = 24, 64
IDS = torch.arange(LENGTH) // 130


def windowed(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q - kv).abs() < 40 * (h + 1)


def documents(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (IDS[q] == IDS[kv]) & (q >= kv)


def scattered() -> BlockMask:
    """Blocks in no order, as sparse-attention methods choose them, all full."""
    blocks = -(-LENGTH // BLOCK)
    chosen = torch.from_numpy(np.random.default_rng(0).random((1, HEADS, blocks, blocks)) < 0.3)
    indices = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True).int()
    counts = chosen.sum(-1).int()
    return BlockMask.from_kv_blocks(
        torch.zeros_like(counts), indices, counts, indices, BLOCK_SIZE=BLOCK, seq_lengths=(LENGTH, LENGTH)
    )


def visible(block_mask: BlockMask) -> Tensor:
    """[heads, q_len, kv_len], from the dense form of the blocks."""
    q, kv = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    batch, heads = torch.tensor(0), torch.arange(HEADS)[:, None, None]
    rule = block_mask.mask_mod(batch, heads, q, kv)
    blocks = block_mask.to_dense()[0].bool()
    return blocks[:, q // BLOCK, kv // BLOCK] & rule


@pytest.mark.parametrize("block_mask", [
    create_block_mask(windowed, 1, HEADS, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=BLOCK),
    create_block_mask(documents, 1, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=BLOCK),
    scattered(),
], ids=["window", "documents", "scattered"])  # fmt: skip
def test_tiles_of_a_block_mask(block_mask: BlockMask) -> None:
    shown = visible(block_mask)
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, HEADS, LENGTH, 16) for _ in range(3))
    found = rootdk.torch.flex_attention(query, key, value, block_mask=block_mask)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=shown[None]).nan_to_num(0.0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

    mask = as_mask(block_mask, (LENGTH, LENGTH))
    assert mask is not None
    tracer = Tracer(LENGTH, LENGTH, HEADS, (1,))
    traced = tracer.finish(None, mask.trace(tracer, *tracer.indices))
    tables = ranges.build_all(traced.graph, traced.arrays)
    q0, k0 = (np.arange(0, LENGTH, size) for size in TILE)
    q1, k1 = (np.minimum(start + size, LENGTH) - 1 for start, size in zip((q0, k0), TILE, strict=True))
    hidden, seen = bounds.analyse(
        traced.graph, traced.constants, tables, q0[:, None], q1[:, None], k0, k1, 0, np.arange(HEADS)[:, None, None]
    )
    hidden, seen = (np.broadcast_to(truth, (HEADS, q0.size, k0.size)) for truth in (hidden, seen))
    pairs = shown.expand(HEADS, LENGTH, LENGTH).numpy()
    any_seen = np.logical_or.reduceat(np.logical_or.reduceat(pairs, q0, axis=1), k0, axis=2)
    any_hidden = ~np.logical_and.reduceat(np.logical_and.reduceat(pairs, q0, axis=1), k0, axis=2)
    assert (seen >= any_seen).all() and (hidden >= any_hidden).all()
    assert (~seen).sum() >= 0.98 * (~any_seen).sum() > 0
    assert (~hidden).sum() >= 0.98 * (~any_hidden).sum()
