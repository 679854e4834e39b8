"""The mask functions that transformers builds, in each of the ways in which it calls them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tracing import dense_mask
from transformers import masking_utils as hf

SHAPE = (2, 2, 13, 13)
PADDING = torch.ones(2, 13, dtype=torch.bool)
PADDING[1, :4] = False
PACKED = torch.tensor([[0] * 5 + [1] * 8, [0] * 9 + [1] * 4])
POSITIONS = torch.cat([torch.arange(5), torch.arange(8)]).expand(2, 13)
GROUPS = torch.tensor([[-1] * 3 + [0] * 4 + [-1] * 2 + [1] * 4, [-1] * 13])

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "causal": hf.causal_mask_function,
    "bidirectional": hf.bidirectional_mask_function,
    "sliding": hf.sliding_window_causal_mask_function(4),
    "sliding, bidirectional": hf.sliding_window_bidirectional_mask_function(3),
    "chunked": hf.chunked_causal_mask_function(4, torch.tensor([0, 4])),
    "padding": hf.and_masks(hf.causal_mask_function, hf.padding_mask_function(PADDING)),
    "packed": hf.and_masks(hf.causal_mask_function, hf.packed_sequence_mask_function(PACKED)),
    "blockwise": hf.or_masks(hf.causal_mask_function, hf.blockwise_overlay(GROUPS)),
    "remapped": hf.remap_positions_for_packed_sequence(hf.sliding_window_causal_mask_function(3), POSITIONS),
    "offset": hf.add_offsets_to_mask_function(hf.causal_mask_function, 3, 1),
    "offset by tensors": hf.add_offsets_to_mask_function(hf.causal_mask_function, torch.tensor(3), 1),
}


def expected(function: Callable[..., Any]) -> np.ndarray:
    mapped = hf._vmap_expansion_sdpa(function)
    with hf.TransformGetItemToIndex():
        mask: np.ndarray = mapped(*(torch.arange(size) for size in SHAPE)).numpy()
    return mask


@pytest.mark.parametrize("name", FUNCTIONS)
def test_mask_function(name: str) -> None:
    np.testing.assert_array_equal(dense_mask(FUNCTIONS[name], SHAPE), expected(FUNCTIONS[name]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_already_mapped_over_the_dimensions(name: str) -> None:
    mapped = hf._vmap_expansion_sdpa(FUNCTIONS[name])
    np.testing.assert_array_equal(dense_mask(mapped, SHAPE), expected(FUNCTIONS[name]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_called_on_broadcast_indices(name: str) -> None:
    def broadcasting(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return FUNCTIONS[name](*hf._non_vmap_expansion_sdpa(b, h, q_idx, kv_idx))

    np.testing.assert_array_equal(dense_mask(broadcasting, SHAPE), expected(FUNCTIONS[name]))
