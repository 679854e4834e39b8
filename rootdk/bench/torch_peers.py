"""torch's fused attention, and its compiled FlexAttention."""

import shutil
from functools import partial
from typing import Any

import numpy as np

from rootdk.bench.cases import Arrays, Case
from rootdk.bench.patterns import alibi_slopes
from rootdk.bench.prepared import Prepared, UnavailableError, heads_first, slope_column

__all__ = ["flex", "sdpa"]


def sdpa(case: Case, arrays: Arrays) -> Prepared:
    """torch.nn.functional.scaled_dot_product_attention; what it has no option for becomes a dense mask or bias."""
    import torch

    query, key, value = _tensors(case, arrays)
    attend = partial(
        torch.nn.functional.scaled_dot_product_attention,
        query,
        key,
        value,
        enable_gqa=case.heads != case.kv_heads,
        **_sdpa_options(case, query.dtype),
    )
    return Prepared(attend, _to_numpy)


def _sdpa_options(case: Case, dtype: Any) -> dict[str, Any]:
    import torch

    if case.pattern == "softcap":
        raise UnavailableError("has no softcap")
    if case.pattern == "full":
        return {}
    if case.pattern == "causal":
        return {"is_causal": True}
    visible = case.rule.visible(case.q_len, case.kv_len)
    if case.rule.score is None:
        return {"attn_mask": torch.from_numpy(visible)}
    zero, q_idx, kv_idx = np.float32(0), np.arange(case.q_len)[:, None], np.arange(case.kv_len)
    bias = case.rule.score(np, slope_column(case), zero, q_idx, kv_idx)
    if visible is not None:
        bias = np.where(visible, bias, -np.inf)
    return {"attn_mask": torch.from_numpy(np.asarray(bias[None], np.float32)).to(dtype)}


def flex(case: Case, arrays: Arrays) -> Prepared:
    """torch.compile of flex_attention; preparing it takes the seconds that the compiler takes."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if case.dtype == "float64":
        raise UnavailableError("compiled FlexAttention takes no float64")
    if shutil.which("g++") is None:
        raise UnavailableError("compiled FlexAttention needs g++")
    keep, score, slopes = case.rule.keep, case.rule.score, torch.from_numpy(alibi_slopes(case.heads))

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        assert keep is not None
        return keep(q_idx, kv_idx)

    def score_mod(value: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        assert score is not None
        return score(torch, slopes[h], value, q_idx, kv_idx)

    # Dynamo gives up on a function after a handful of recompilations; every case is to get a compiled one.
    torch.compiler.reset()
    block_mask = keep and create_block_mask(mask_mod, None, None, case.q_len, case.kv_len, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)
    query, key, value = _tensors(case, arrays)
    grouped = case.heads != case.kv_heads
    attend = partial(
        compiled, query, key, value, score_mod=score and score_mod, block_mask=block_mask, enable_gqa=grouped
    )
    with torch.inference_mode():
        attend()
    return Prepared(attend, _to_numpy)


def _tensors(case: Case, arrays: Arrays) -> list[Any]:
    """[batch, heads, len, d] tensors on the arrays' own memory."""
    import torch

    def tensor(array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    return [tensor(heads_first(array, case.layout)) for array in arrays]


def _to_numpy(output: Any) -> np.ndarray:
    wide = output.double() if output.element_size() == 8 else output.float()
    return wide.numpy()  # type: ignore[no-any-return]
