"""rootdk.torch.flex_attention against torch's eager one, on attn_gym's functions and on block masks of every make."""

from collections.abc import Callable, Iterator
from typing import Any

import attn_gym.masks as masks
import attn_gym.mods as mods
import pytest
import torch
import torch.nn.attention.flex_attention as torchs
from torch.nn.attention.flex_attention import AuxRequest, BlockMask

import rootdk
from rootdk.torch import and_masks, create_block_mask, flex_attention, or_masks

LENGTH = 61
Mod = Callable[..., Any]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


QUERY, KEY, VALUE = random(2, 4, LENGTH, 16), random(2, 2, LENGTH, 16), random(2, 2, LENGTH, 24)
OFFSETS = torch.tensor([0, 20, 50, LENGTH], dtype=torch.int32)
LENGTHS = torch.tensor([9, 40])


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch's function without its compiler, which takes seconds for each call."""
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    yield


def visible(block_mask: BlockMask, mask_mod: Mod) -> torch.Tensor:
    """Every pair that ``mask_mod`` shows, as booleans."""
    batch, heads, *lengths = block_mask.shape
    return torchs.create_mask(mask_mod, batch, heads, *lengths, device="cpu")


MASKS: dict[str, Mod] = {
    "causal": masks.causal_mask,
    "window": masks.generate_sliding_window(8),
    "dilated": masks.generate_dilated_sliding_window(8, 3),
    "documents": masks.generate_doc_mask_mod(masks.causal_mask, OFFSETS),
    "prefix": masks.generate_prefix_lm_mask(11),
    "natten": masks.generate_natten(8, 8, 3, 5),
    "block diffusion": masks.generate_block_diffusion_mask(31, 4),
    "lengths": lambda b, h, q, kv: (kv < LENGTHS[b]) & (q >= h),
    "noop": torchs.noop_mask,
    "and": and_masks(masks.causal_mask, masks.generate_sliding_window(8)),
    "or": or_masks(masks.generate_sliding_window(3), lambda b, h, q, kv: kv < 2),
}
SCORES: dict[str, Mod] = {
    "alibi": mods.generate_alibi_bias(4),
    "softcap": mods.generate_tanh_softcap(5, approx=False),
    "sandwich": mods.generate_sandwich_bias(4, LENGTH, 8),
    "relative": lambda score, b, h, q, kv: score + (q - kv) * 0.1,
    "causal": lambda score, b, h, q, kv: torch.where(q >= kv, score, -float("inf")),
}


@pytest.mark.parametrize("block_size", [16, (32, 8), 128])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str, block_size: Any):
    block_mask = torchs.create_block_mask(MASKS[mask], 2, 4, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=block_size)
    found, expected = (
        call(QUERY, KEY, VALUE, block_mask=block_mask, enable_gqa=True, return_aux=AuxRequest(lse=True))
        for call in (flex_attention, torchs.flex_attention)
    )
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=2e-6)
    torch.testing.assert_close(found[1].lse, expected[1].lse, rtol=0, atol=5e-6)
    assert found[1].max_scores is None


@pytest.mark.parametrize("score_mod", SCORES)
def test_score_functions(score_mod: str):
    block_mask = create_block_mask(MASKS["window"], None, None, LENGTH, LENGTH)
    options = {"score_mod": SCORES[score_mod], "block_mask": block_mask, "enable_gqa": True, "scale": 0.3}
    found, expected = (call(QUERY, KEY, VALUE, **options) for call in (flex_attention, torchs.flex_attention))
    torch.testing.assert_close(found, expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", [(None, None, 61, 61), (2, 4, 61, 61), (2, 1, 64, 96), (1, 3, 7, 200)])
@pytest.mark.parametrize("block_size", [32, (16, 64)])
def test_create_block_mask_equals_torchs(mask: str, sizes: tuple[Any, ...], block_size: Any):
    if mask in ("documents", "natten", "block diffusion") and sizes[2] != LENGTH:
        pytest.skip("made for other lengths")
    found = create_block_mask(MASKS[mask], *sizes, BLOCK_SIZE=block_size)
    expected = torchs.create_block_mask(MASKS[mask], *sizes, device="cpu", BLOCK_SIZE=block_size)
    assert (found.shape, found.BLOCK_SIZE, found.mask_mod) == (expected.shape, expected.BLOCK_SIZE, MASKS[mask])
    for name in ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices"):
        for prefix in ("", "full_"):
            ours, theirs = getattr(found, prefix + name), getattr(expected, prefix + name)
            assert ours.dtype is theirs.dtype
            assert torch.equal(ours, theirs), prefix + name


def test_create_block_mask_needs_no_dense_mask():
    block_mask = create_block_mask(MASKS["causal"], None, None, 2**15, 2**15)
    assert block_mask.kv_num_blocks.sum() == 256
    assert block_mask.full_kv_num_blocks.sum() == 256 * 255 // 2
    assert (
        create_block_mask(MASKS["causal"], 1, 1, 64, 64, BLOCK_SIZE=32, separate_full_blocks=False).full_kv_indices
        is None
    )


def blocks(columns: int, *rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """num_blocks [1, 1, rows] and indices [1, 1, rows, columns]: of each row what is listed, then what is not."""
    indices = [row + [number for number in range(columns) if number not in row] for row in rows]
    counts = torch.tensor([[[len(row) for row in rows]]], dtype=torch.int32)
    return counts, torch.tensor([[indices]], dtype=torch.int32)


def test_full_blocks_skip_mask_mod_and_partial_blocks_apply_it():
    query = random(1, 1, 40, 8)
    partial, full = blocks(3, [1, 2], [0, 1]), blocks(3, [0], [2])
    block_mask = BlockMask.from_kv_blocks(
        *partial, *full, BLOCK_SIZE=16, mask_mod=MASKS["causal"], seq_lengths=(32, 40)
    )
    rule = torch.ones(32, 40, dtype=torch.bool).tril()
    rule[:16, :16] = True
    rule[16:, 32:] = True
    expected = torch.nn.functional.scaled_dot_product_attention(query[:, :, :32], query, query, attn_mask=rule)
    torch.testing.assert_close(flex_attention(query[:, :, :32], query, query, block_mask=block_mask), expected)


def test_blocks_without_a_function_are_visible_whole():
    query = random(1, 2, 32, 8)
    block_mask = BlockMask.from_kv_blocks(*blocks(2, [1], []), BLOCK_SIZE=16)
    output = flex_attention(query, query, query, block_mask=block_mask)
    second = query[:, :, 16:]
    torch.testing.assert_close(output[:, :, :16], flex_attention(query[:, :, :16], second, second))
    assert not output[:, :, 16:].any()


def test_a_sliced_mask_serves_decoding_once_it_has_a_function():
    query, offset = random(1, 4, 1, 16), torch.tensor(37)
    block_mask = torchs.create_block_mask(MASKS["causal"], None, None, 64, 64, device="cpu", BLOCK_SIZE=16)[:, :, 2]
    with pytest.raises(RuntimeError):
        flex_attention(query, KEY[:1, :, :60], VALUE[:1, :, :60], block_mask=block_mask, enable_gqa=True)
    block_mask.seq_lengths = (1, 64)
    block_mask.mask_mod = lambda b, h, q, kv: q + offset >= kv
    key, value = random(1, 2, 64, 16), random(1, 2, 64, 8)
    found = flex_attention(query, key, value, block_mask=block_mask, enable_gqa=True)
    seen = slice(0, 38)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key[:, :, seen], value[:, :, seen], enable_gqa=True
    )
    torch.testing.assert_close(found, expected)


def test_max_scores_are_of_visible_pairs():
    block_mask = create_block_mask(MASKS["lengths"], 2, 4, LENGTH, LENGTH)
    cap = SCORES["softcap"]
    _, aux = flex_attention(
        QUERY, KEY, VALUE, cap, block_mask, enable_gqa=True, return_aux=AuxRequest(lse=True, max_scores=True)
    )
    scores = cap(QUERY @ KEY.repeat_interleave(2, 1).mT / 4, *[None] * 4)
    hidden = ~visible(block_mask, MASKS["lengths"])
    expected = scores.masked_fill(hidden, -torch.inf).amax(-1)
    assert aux.max_scores.dtype is torch.float32
    torch.testing.assert_close(aux.max_scores, expected)
    assert aux.max_scores.isneginf().sum() == aux.lse.isneginf().sum() == 2 * (1 + 2 + 3)


@pytest.mark.parametrize("d_v", [16, 24])
def test_strides_follow_torch(d_v: int):
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (2, 1, 0, 3)):
        back = [order.index(axis) for axis in range(4)]
        query = QUERY.permute(order).contiguous().permute(back)
        found, expected = (
            call(query, KEY, VALUE[..., :d_v], enable_gqa=True) for call in (flex_attention, torchs.flex_attention)
        )
        assert found.stride() == expected.stride()


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "heads": (lambda: flex_attention(QUERY, KEY, VALUE), "enable_gqa"),
    "three dimensions": (lambda: flex_attention(QUERY[0], KEY[0], VALUE[0]), "batch, heads"),
    "batch": (lambda: flex_attention(QUERY, KEY[:1], VALUE[:1], enable_gqa=True), "batch size"),
    "other lengths": (
        lambda: flex_attention(QUERY, QUERY, QUERY, block_mask=create_block_mask(MASKS["causal"], 1, 1, 60, 61)),
        "61",
    ),
    "both kinds of auxiliary results": (
        lambda: flex_attention(QUERY, QUERY, QUERY, return_lse=True, return_aux=AuxRequest(lse=True)),
        "return_aux",
    ),
    "a function for a block mask": (
        lambda: flex_attention(QUERY, QUERY, QUERY, block_mask=MASKS["causal"]),
        "BlockMask",
    ),
    "a score function that returns nothing": (
        lambda: flex_attention(QUERY, QUERY, QUERY, lambda score, b, h, q, kv: None),
        "returned None",
    ),
    "negative size": (lambda: create_block_mask(MASKS["causal"], 1, 1, -1, 5), "Q_LEN = -1"),
    "empty blocks": (lambda: create_block_mask(MASKS["causal"], 1, 1, 5, 5, BLOCK_SIZE=0), "BLOCK_SIZE = 0"),
}


@pytest.mark.parametrize("call, words", WRONG.values(), ids=WRONG.keys())
def test_mistakes_are_runtime_errors_that_help(call: Callable[[], Any], words: str):
    with pytest.raises(rootdk.RootdkError, match=words) as caught:
        call()
    assert isinstance(caught.value, RuntimeError)
