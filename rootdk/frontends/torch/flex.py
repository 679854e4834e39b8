"""torch.nn.attention.flex_attention, as torch defines it, on rootdk's kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask

from rootdk.errors import ArgumentError, DTypeError, ModError, ShapeError
from rootdk.frontends.torch import block_masks
from rootdk.frontends.torch.arguments import Options
from rootdk.frontends.torch.errors import runtime_errors
from rootdk.frontends.torch.max_scores import max_scores
from rootdk.frontends.torch.routes import attend

__all__ = ["flex_attention"]


@runtime_errors
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any = None, block_mask: BlockMask | None = None,
    scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None, *,
    return_aux: AuxRequest | None = None,
) -> Any:  # fmt: skip
    """FlexAttention with torch's signature and meaning, compiled in a fraction of a second, without a C++ compiler.

    Args:
        query: [batch, heads, q_len, d_k].
        key: [batch, kv_heads, kv_len, d_k].
        value: [batch, kv_heads, kv_len, d_v].
        score_mod: f(score, b, h, q_idx, kv_idx) -> score, after the scale; ``h`` counts query heads.
        block_mask: of torch's or of rootdk.torch's create_block_mask, or of BlockMask.from_kv_blocks. Full blocks skip
            its mask_mod, partial blocks apply it, what is in neither is hidden.
        scale: factor of the scores; 1 / sqrt(d_k) unless given.
        enable_gqa: kv_heads may be fewer than heads, and divide them.
        return_lse: also return the LSE.
        kernel_options: of torch's GPU kernels; without effect here.
        return_aux: AuxRequest(lse, max_scores).

    Returns:
        The output [batch, heads, q_len, d_v]; with ``return_lse`` (output, lse); with ``return_aux`` (output,
        AuxOutput), what was not asked for being None. lse and max_scores are [batch, heads, q_len]: natural
        log, and the greatest score that a row sees; both are -inf for a row that sees no key.

    Raises:
        RootdkError, which is a RuntimeError too: an argument is wrong, or a function cannot be compiled.
    """
    if return_aux is not None and return_aux.max_scores and torch.compiler.is_dynamo_compiling():
        return _outside_graphs(
            query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, return_aux=return_aux
        )
    if return_lse and return_aux is not None:
        raise ArgumentError("return_lse: expected False with return_aux, got True; ask for AuxRequest(lse=True)")
    _check(query, key, value, block_mask, enable_gqa)
    mask = None if block_mask is None else block_masks.as_mask(block_mask, (query.shape[-2], key.shape[-2]))
    options = Options(mask=mask, score_mod=score_mod, scale=scale)
    inputs = query, key, value
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    output, lse = attend(inputs, options, like_query=True, return_lse=wants_lse)
    if return_aux is None:
        return (output, lse) if return_lse else output
    return output, AuxOutput(lse=lse, max_scores=max_scores(inputs, options) if return_aux.max_scores else None)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # where torch isn't installed
def _outside_graphs(*args: Any, **kwargs: Any) -> Any:
    """The greatest scores are found by a second pass in NumPy, which is none for graphs."""
    return flex_attention(*args, **kwargs)


def _check(query: Any, key: Any, value: Any, block_mask: Any, enable_gqa: bool) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise DTypeError(f"{name}: expected a tensor, got {type(tensor).__name__}")
        if tensor.ndim != 4:
            raise ShapeError(f"{name}: expected [batch, heads, len, d], got shape {tuple(tensor.shape)}")
    if block_mask is not None and not hasattr(block_mask, "kv_num_blocks"):
        raise ModError(
            f"block_mask: expected a BlockMask, got {type(block_mask).__name__}; make one: create_block_mask(...)"
        )
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ShapeError(
            f"key: expected the {query.shape[1]} heads of query, got {key.shape[1]}; fewer need enable_gqa=True"
        )
    if query.shape[0] != key.shape[0] and (block_mask is None or block_mask.kv_num_blocks.shape[0] != query.shape[0]):
        raise ShapeError(
            f"key: expected the batch size {query.shape[0]} of query, got {key.shape[0]}; it may be 1 where a "
            "block_mask has query's batch size"
        )
