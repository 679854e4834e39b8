"""The same problem given to rootdk and to others; each peer says why it can't take a case instead of failing."""

from collections.abc import Callable
from functools import partial

import numpy as np

import rootdk
from rootdk.bench import jax_peer, onnx_peers, openvino_peer, torch_peers
from rootdk.bench.cases import Arrays, Case
from rootdk.bench.prepared import Prepared, UnavailableError, heads_first, slope_column

__all__ = ["RIVALS", "UnavailableError", "naive", "prepare"]

_NAIVE_LIMIT = 2 << 30
"""Bytes of scores above which the naive way is not tried."""


def prepare(peer: str, case: Case, arrays: Arrays) -> Prepared:
    """``peer`` ("rootdk" or one of ``RIVALS``) made ready to run ``case``.

    Raises:
        UnavailableError: it can't; the message is the reason.
    """
    try:
        return _PEERS[peer](case, arrays)
    except ModuleNotFoundError as error:
        raise UnavailableError(f"{error.name} is not installed") from error


def naive(case: Case, arrays: Arrays) -> np.ndarray:
    """Attention as one writes it in NumPy: whole score matrix, softmax, product. Returns [batch, heads, q_len, d_v]."""
    work = np.dtype(np.float64 if case.dtype == "float64" else np.float32)
    query, key, value = (heads_first(array, case.layout).astype(work, copy=False) for array in arrays)
    if case.heads != case.kv_heads:
        key, value = (np.repeat(array, case.heads // case.kv_heads, axis=1) for array in (key, value))
    scores = query @ key.swapaxes(-1, -2) * case.d_k**-0.5
    if case.rule.score is not None:
        q_idx, kv_idx = np.arange(case.q_len)[:, None], np.arange(case.kv_len)
        scores = case.rule.score(np, slope_column(case), scores, q_idx, kv_idx)
    visible = case.rule.visible(case.q_len, case.kv_len)
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    output: np.ndarray = weights @ value
    return output.astype(arrays[0].dtype, copy=False)


def _rootdk(case: Case, arrays: Arrays) -> Prepared:
    call = partial(rootdk.attention, *arrays, layout=case.layout, **case.rule.options(case.heads))
    return Prepared(call, partial(heads_first, layout=case.layout))


def _numpy(case: Case, arrays: Arrays) -> Prepared:
    size = case.batch * case.heads * case.q_len * case.kv_len * 4
    if size > _NAIVE_LIMIT:
        raise UnavailableError(f"the score matrix alone would take {size / 2**30:.1f} GiB")
    return Prepared(partial(naive, case, arrays), np.asarray)


_PEERS: dict[str, Callable[[Case, Arrays], Prepared]] = {
    "rootdk": _rootdk,
    "numpy": _numpy,
    "torch": torch_peers.sdpa,
    "flex": torch_peers.flex,
    "ort": onnx_peers.attention,
    "ort-mha": onnx_peers.multi_head_attention,
    "openvino": openvino_peer.sdpa,
    "jax": jax_peer.dot_product_attention,
}
RIVALS = tuple(name for name in _PEERS if name != "rootdk")
"""Whom rootdk can be compared with."""
