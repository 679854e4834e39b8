"""torch.nn.functional.scaled_dot_product_attention, as torch defines it, on rootdk's kernels."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from rootdk.errors import ArgumentError, DTypeError, ShapeError
from rootdk.frontends.torch.arguments import Inputs, Options
from rootdk.frontends.torch.bound_call import Call
from rootdk.frontends.torch.calls import attend, call_for, run
from rootdk.frontends.torch.errors import runtime_errors
from rootdk.frontends.torch.mod_text import dense_text, options_of
from rootdk.frontends.torch.modes import cast_for_autocast, watched
from rootdk.frontends.torch.operators import empty_output
from rootdk.frontends.torch.shapes import with_one_batch
from rootdk.frontends.torch.tensors import is_plain, unreadable
from rootdk.frontends.torch.watched import operate
from rootdk.runtime import threads

__all__ = ["scaled_dot_product_attention"]


@runtime_errors
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Scaled dot-product attention with the signature, the meaning and the output strides of torch's own.

    Args:
        query: [..., q_len, d_k]; any leading dimensions, which broadcast with those of key and value.
        key: [..., kv_len, d_k].
        value: [..., kv_len, d_v].
        attn_mask: broadcasts to [..., q_len, kv_len]: boolean (True = may attend), or floating, which is added to the
            scores; or torch.nn.attention.bias.causal_upper_left / causal_lower_right.
        dropout_p: probability with which a weight is dropped; the pattern comes from torch's generator.
        is_causal: query i sees keys 0 ... i; together with ``attn_mask``, a pair must be visible in both.
        scale: factor of the scores; 1 / sqrt(d_k) unless given.
        enable_gqa: the heads of key and value, dimension -3, may be fewer than those of query, and divide them.

    Returns:
        The output [..., q_len, d_v]. A row that sees no key is 0.

    Raises:
        RootdkError, which is a RuntimeError too: an argument is wrong, or its tensor is not one that rootdk reads.

    >>> x = torch.eye(2)
    >>> rootdk.torch.scaled_dot_product_attention(x, x, x, is_causal=True)
    tensor([[1.0000, 0.0000],
            [0.3302, 0.6698]])
    """
    kind = None if attn_mask is not None or dropout_p else _kind(query, key, value, is_causal, scale, enable_gqa)
    known = None if kind is None else _known.get(kind)
    if known is not None:
        return run(known.call, (query, key, value), known.options, known.empty_output(query))[0]
    _check_tensors(query, key, value)
    attn_mask, causal = _visible(query, key, attn_mask, is_causal)
    inputs = _broadcast(*cast_for_autocast(query, key, value), enable_gqa)
    arrays = [] if attn_mask is None else [attn_mask]
    mods = dense_text(causal, "" if attn_mask is None else "mask" if attn_mask.dtype is torch.bool else "bias")
    memory = "query" if _fused(inputs, dropout_p) else "bhsd"
    # drawn from torch's generator, so that torch.manual_seed repeats it
    seed = torch.randint(2**63 - 1, ()) if dropout_p else None
    if watched() or not all(map(is_plain, (*inputs, *arrays))):
        return operate(inputs, arrays, None, seed, mods, dropout_p, scale, memory)[0]
    number = None if seed is None else int(seed)
    options = options_of(mods, tuple(arrays), seed=number, dropout_p=dropout_p, scale=scale)
    if kind is not None:
        _remember(kind, inputs, options)
    return attend(inputs, options, output=empty_output(inputs[0], inputs[2], memory))[0]


def _fused(inputs: Inputs, dropout_p: float) -> bool:
    """Whether torch takes its fused path, which gives the output query's order of dimensions in memory."""
    query, key, value = inputs
    fits = query.ndim == 4 and value.shape[-1] == query.shape[-1] and not dropout_p and bool(key.shape[-2])
    return fits and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What a kind of call comes to."""

    call: Call
    options: Options
    like_query: bool
    """Whether the output has query's shape and order of dimensions."""

    def empty_output(self, query: Tensor) -> Tensor:
        return torch.empty_like(query) if self.like_query else query.new_empty(self.call.bound.output_shape)


_known: dict[tuple[Any, ...], _Known] = {}
_MOST_KNOWN = 128


def _kind(query: Any, key: Any, value: Any, is_causal: bool, scale: Any, enable_gqa: bool) -> tuple[Any, ...] | None:
    """All that a call without mask or dropout depends on but numbers; None where torch watches or changes it."""
    if watched() or torch.is_autocast_enabled("cpu") or not (scale is None or type(scale) is float):
        return None
    if not (is_plain(query) and is_plain(key) and is_plain(value)):
        return None
    return (
        query.shape, query.stride(), query.dtype, key.shape, key.stride(), key.dtype, value.shape, value.stride(),
        value.dtype, is_causal, scale, enable_gqa, threads.get_num_threads(),
    )  # fmt: skip


def _remember(kind: tuple[Any, ...], inputs: Inputs, options: Options) -> None:
    query, key, value = inputs
    # broadcast or cast, they are not those that the kind is of
    if (query.shape, query.stride(), query.dtype, key.shape, value.shape) == (*kind[:3], kind[3], kind[6]):
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[kind] = _Known(call_for(inputs, options), options, _fused(inputs, 0.0))


def _check_tensors(query: Any, key: Any, value: Any) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise DTypeError(f"{name}: expected a tensor, got {type(tensor).__name__}")
        if tensor.is_nested or tensor.layout is not torch.strided:
            raise unreadable(name, tensor)
        if tensor.ndim < 2:
            raise ShapeError(f"{name}: expected [..., len, d], got shape {tuple(tensor.shape)}")
        if tensor.dtype is not query.dtype:
            raise DTypeError(
                f"{name}: expected {query.dtype}, as query is, got {tensor.dtype}; convert it: {name}.to(query.dtype)"
            )


def _visible(query: Tensor, key: Tensor, attn_mask: Any, is_causal: bool) -> tuple[Tensor | None, str]:
    """The mask, and how query positions are aligned with keys for the causal rule; "" where there is none."""
    causal = "start" if is_causal else ""
    if attn_mask is None:
        return None, causal
    if isinstance(attn_mask, CausalBias):
        return None, _alignment(query, key, attn_mask, is_causal)
    if not isinstance(attn_mask, Tensor):
        raise DTypeError(f"attn_mask: expected a tensor or None, got {type(attn_mask).__name__}")
    if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise DTypeError(
            f"attn_mask: expected bool, float32 or {query.dtype}, as query is, got {attn_mask.dtype}; for a mask of 0 "
            "and 1 pass attn_mask != 0, for numbers to add to the scores attn_mask.to(query.dtype)"
        )
    return attn_mask, causal


def _alignment(query: Tensor, key: Tensor, bias: CausalBias, is_causal: bool) -> str:
    if is_causal:
        raise ArgumentError("is_causal: expected False with a causal attn_mask, got True; drop one of them")
    lengths = query.shape[-2], key.shape[-2]
    if (bias.seq_len_q, bias.seq_len_kv) != lengths:
        raise ShapeError(
            f"attn_mask: expected a causal bias for q_len, kv_len = {lengths}, got {(bias.seq_len_q, bias.seq_len_kv)}"
        )
    return "end" if bias.variant is CausalVariant.LOWER_RIGHT else "start"


def _broadcast(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors as rootdk takes them: leading dimensions that agree, but for fewer heads in key and value."""
    leading = query.shape[:-2]
    if leading == key.shape[:-2] == value.shape[:-2]:
        return query, key, value
    if not enable_gqa:
        return _expand((query, key, value), keep=2)
    if min(query.ndim, key.ndim, value.ndim) < 3:
        raise ShapeError("enable_gqa: expected a dimension of heads, [..., heads, len, d], in each tensor")
    heads, key_heads, value_heads = (tensor.shape[-3] for tensor in (query, key, value))
    for name, kv_heads in (("key", key_heads), ("value", value_heads)):
        if not kv_heads or heads % kv_heads:
            raise ShapeError(f"{name}: expected heads that divide the {heads} of query, got {kv_heads}")
    if key_heads != value_heads:  # each is grouped for itself, so they get one grouping: none
        key, value = (tensor.repeat_interleave(heads // tensor.shape[-3], -3) for tensor in (key, value))
    return _expand((query, key, value), keep=3)


def _expand(tensors: tuple[Tensor, Tensor, Tensor], keep: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views that repeat what broadcasts over all but the last ``keep`` dimensions."""
    try:
        return with_one_batch(tensors, keep)
    except RuntimeError:
        shapes = [tensor.shape[:-keep] for tensor in tensors]
        hint = "" if keep == 3 else "; fewer heads in key and value need enable_gqa=True"
        got = ", ".join(str(tuple(shape)) for shape in shapes)
        raise ShapeError(f"query, key, value: expected leading dimensions that broadcast, got {got}{hint}") from None
