"""Who sees whom, and what happens to scores, said once per array library that a peer computes with."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import rootdk

__all__ = ["CAP", "PATTERNS", "WINDOW", "Pattern", "alibi_slopes"]

WINDOW = 256
CAP = 20.0


def alibi_slopes(heads: int) -> np.ndarray:
    """Slopes [heads] that fall geometrically from 2 ** (-8 / heads) to 2 ** -8."""
    return np.exp2(-8 * np.arange(1, heads + 1) / heads).astype(np.float32)


@dataclass(frozen=True)
class Pattern:
    """A rule on pairs; ``keep`` and ``score`` work on NumPy arrays and on torch tensors alike."""

    options: Callable[[int], dict[str, Any]]
    """heads -> the keyword arguments that ask rootdk.attention for it."""
    keep: Callable[[Any, Any], Any] | None = None
    """(q_idx, kv_idx) -> visible, or None where all are."""
    score: Callable[[Any, Any, Any, Any, Any], Any] | None = None
    """(library, slope, score, q_idx, kv_idx) -> score, or None where scores stay."""

    def pairs(self, q_len: int, kv_len: int) -> int:
        """Visible pairs among q_len queries and kv_len keys."""
        return q_len * kv_len if self.keep is None else _count(self.keep, q_len, kv_len)

    def visible(self, q_len: int, kv_len: int) -> np.ndarray | None:
        """The rule as a boolean array [q_len, kv_len], or None where all pairs are visible."""
        return None if self.keep is None else self.keep(np.arange(q_len)[:, None], np.arange(kv_len))


@lru_cache
def _count(keep: Callable[[Any, Any], Any], q_len: int, kv_len: int) -> int:
    keys = np.arange(kv_len)
    return sum(int(keep(np.arange(i, min(i + 512, q_len))[:, None], keys).sum()) for i in range(0, q_len, 512))


def _causal(q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx <= q_idx


def _window(q_idx: Any, kv_idx: Any) -> Any:
    return (kv_idx <= q_idx) & (q_idx - kv_idx <= WINDOW)


def _alibi(library: Any, slope: Any, score: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score - slope * abs(q_idx - kv_idx)


def _softcap(library: Any, slope: Any, score: Any, q_idx: Any, kv_idx: Any) -> Any:
    return CAP * library.tanh(score / CAP)


PATTERNS = {
    "full": Pattern(lambda heads: {}),
    "causal": Pattern(lambda heads: {"mask": rootdk.causal()}, keep=_causal),
    "window": Pattern(lambda heads: {"mask": rootdk.sliding_window(WINDOW)}, keep=_window),
    "alibi": Pattern(lambda heads: {"score_mod": rootdk.alibi(alibi_slopes(heads))}, score=_alibi),
    "alibi causal": Pattern(
        lambda heads: {"score_mod": rootdk.alibi(alibi_slopes(heads)), "mask": rootdk.causal()},
        keep=_causal,
        score=_alibi,
    ),
    "softcap": Pattern(lambda heads: {"score_mod": rootdk.softcap(CAP)}, score=_softcap),
}
