"""Every mask and score function of attn_gym, unmodified, traced and equal to what torch makes of it."""

from collections.abc import Callable
from typing import Any

import attn_gym.masks as masks
import attn_gym.masks.document_mask as document_mask
import attn_gym.masks.shared_prefix as shared_prefix
import attn_gym.masks.vsa as vsa
import attn_gym.mods as mods
import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import _vmap_for_bhqkv, create_mask, noop_mask
from tracing import dense_mask, dense_score

Mod = Callable[..., Any]


def flags(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.3


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


OFFSETS = torch.tensor([0, 20, 50, 61], dtype=torch.int32)
TOPK = torch.tensor([[0, 2], [1, 3], [2, 0], [3, 1]]).expand(2, 2, 4, 2)

MASKS: dict[str, Mod] = {
    "noop": noop_mask,
    "causal": masks.causal_mask,
    "sliding window": masks.generate_sliding_window(8),
    "dilated window": masks.generate_dilated_sliding_window(8, 3),
    "documents": masks.generate_doc_mask_mod(masks.causal_mask, OFFSETS),
    "documents, windowed": masks.generate_doc_mask_mod(masks.generate_sliding_window(4), OFFSETS),
    "documents, all": masks.generate_doc_mask_mod(noop_mask, OFFSETS),
    "packed causal documents": masks.generate_packed_causal_doc_mask_mod(OFFSETS),
    "prefix": masks.generate_prefix_lm_mask(11),
    "global window": masks.generate_global_sliding_window(5, flags(61)),
    "natten": masks.generate_natten(8, 8, 3, 5),
    "tiled natten": masks.generate_tiled_natten(8, 8, 3, 3, 2, 2),
    "morton natten": masks.generate_morton_natten(8, 8, 3, 3),
    "sta 2d": masks.generate_sta_mask_mod_2d((8, 6), (4, 6), (2, 2), text_seq_len=9),
    "sta 3d": masks.generate_sta_mask_mod_3d((4, 4, 3), (2, 4, 3), (2, 2, 1), text_seq_len=7),
    "svg spatial": masks.generate_spatial_head_mask_mod(5, 4, 14, 1, round_width=4),
    "svg spatial with sink": masks.generate_spatial_head_mask_mod(5, 4, 14, 1, attn_sink=True, round_width=4),
    "svg temporal": masks.generate_temporal_head_mask_mod(5, 4, 14, 2),
    "flamingo": masks.generate_vision_cross_attention_mask_mod(
        torch.tensor([[0, 7], [1, 7], [7, 12], [20, 60]], dtype=torch.int32), 16
    ),
    "shared prefix": masks.generate_shared_prefix_mask_mod(
        shared_prefix.length_to_offsets([13, 12, 9, 20, 7], "cpu"), torch.tensor([0, 0, 0, 3, 3])
    ),
    "block diffusion": masks.generate_block_diffusion_mask(31, 4),
    "jetspec training": masks.generate_jetspec_training_mask_mod(13, 6),
    "jetspec tree": masks.generate_jetspec_tree_causal_mask_mod(
        40, masks.build_tree_ancestor_matrix([-1, 0, 0, 1, 1, 2, 5], device="cpu")
    ),
    "vsa": masks.generate_vsa_mask_mod(TOPK, 16),
    "vsa, edge tiles": masks.generate_vsa_mask_mod(TOPK, 16, torch.tensor([16, 9, 16, 3])),
    "vsa padding": vsa.generate_vsa_padding_mask_mod(torch.tensor([16, 9, 16, 3]), 16),
    "batchify": masks.batchify_mask_mod(masks.causal_mask, 7),
    "batchified documents": masks.batchify_mask_mod(masks.generate_prefix_lm_mask(3), 7),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask_is_what_torch_creates(name: str) -> None:
    shape = (2, 2, 7, 47) if name == "jetspec tree" else (2, 2, 61, 61)
    expected = create_mask(MASKS[name], *shape, device="cpu")
    np.testing.assert_array_equal(dense_mask(MASKS[name], shape), expected.numpy())


def test_lengths_to_offsets_feed_documents() -> None:
    offsets = document_mask.length_to_offsets([3, 1, 4], "cpu")
    function = masks.generate_doc_mask_mod(masks.causal_mask, offsets)
    np.testing.assert_array_equal(
        dense_mask(function, (1, 1, 8, 8)), create_mask(function, 1, 1, 8, 8, device="cpu").numpy()
    )


ADJACENCY = flags(2, 12, 12) | flags(2, 12, 12).transpose(1, 2)
DISTANCES = mods.shortest_path_distances(ADJACENCY, 4)
TYPES, PATHS = mods.shortest_path_edge_types(ADJACENCY, torch.arange(288).reshape(2, 12, 12) % 5, 3)

SCORES: dict[str, Mod] = {
    "alibi": mods.generate_alibi_bias(3),
    "softcap": mods.generate_tanh_softcap(30),
    "softcap, approximate": mods.generate_tanh_softcap(30, approx=True),
    "gelu": mods.generate_activation_score_mod(torch.nn.functional.gelu),
    "relu": mods.generate_activation_score_mod(torch.nn.functional.relu),
    "sigmoid": mods.generate_activation_score_mod(torch.sigmoid, offset=0.5),
    "graphormer spatial": mods.generate_graphormer_spatial_bias(numbers(3, 6), DISTANCES),
    "graphormer edges": mods.generate_graphormer_edge_bias(numbers(3, 3, 5), TYPES, PATHS),
    "sandwich": mods.generate_sandwich_bias(3, 12),
    "mla rope": mods.generate_mla_rope_score_mod(numbers(2, 3, 12, 8), numbers(2, 1, 12, 8), 3, scale=0.3),
}


@pytest.mark.parametrize("name", SCORES)
def test_score_is_what_torch_computes(name: str) -> None:
    score = numbers(2, 3, 12, 12) * 20
    indices = (torch.arange(size) for size in score.shape)
    expected = _vmap_for_bhqkv(SCORES[name], prefix=(0,))(score, *indices)
    np.testing.assert_allclose(dense_score(SCORES[name], score.numpy()), expected.numpy(), rtol=2e-6, atol=1e-6)
