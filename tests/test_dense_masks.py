"""Dense boolean masks skip tiles as masks that are expressions do, and mean the same."""

from collections.abc import Callable

import numpy as np
import pytest
from attention_checks import assert_right, random

import rootdk
from rootdk.mods.values import Mask

HEADS, Q_LEN, KV_LEN = 2, 400, 700
CAUSAL = np.tri(Q_LEN, KV_LEN, KV_LEN - Q_LEN, dtype=bool)
BLOCKS = (np.random.default_rng(0).random((HEADS, 4, 6)) < 0.4).repeat(100, axis=1).repeat(128, axis=2)[..., :KV_LEN]

MASKS: dict[str, np.ndarray] = {
    "shared": CAUSAL,
    "of every head": np.stack([CAUSAL, CAUSAL & ~np.tri(Q_LEN, KV_LEN, 100, dtype=bool)]),
    "broadcast": np.broadcast_to(CAUSAL, (3, HEADS, Q_LEN, KV_LEN)),
    "transposed in memory": np.asfortranarray(CAUSAL),
    "every other element": CAUSAL.repeat(2, axis=1)[:, ::2],
    "blocks": BLOCKS,
    "nothing visible": np.zeros_like(CAUSAL),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_equal_to_the_reference(mask: np.ndarray) -> None:
    arrays = random((3, HEADS, Q_LEN, 16), (3, HEADS, KV_LEN, 16), (3, HEADS, KV_LEN, 8))
    assert_right(*arrays, mask=mask)
    assert_right(*arrays, mask=mask & ~rootdk.sliding_window(30, 30, align="end"))


@pytest.mark.parametrize(("dense", "expression"), [
    (lambda: np.tri(1000, dtype=bool), rootdk.causal),
    (lambda: abs(np.subtract.outer(np.arange(1000), np.arange(1000))) <= 150, lambda: rootdk.sliding_window(150, 150)),
], ids=["causal", "window"])  # fmt: skip
def test_tiles_are_skipped(dense: Callable[[], np.ndarray], expression: Callable[[], Mask]) -> None:
    arrays = random(*[(1, HEADS, 1000, 16)] * 3)
    found, best = (rootdk.plan(*arrays, mask=mask).tiles for mask in (dense(), expression()))
    assert best.skipped >= found.skipped >= 0.8 * best.skipped > 0
    assert best.full >= found.full >= 0.8 * best.full > 0
