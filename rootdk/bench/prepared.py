"""What a peer hands back when it is asked to run a case."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rootdk.bench.cases import Case
from rootdk.bench.patterns import alibi_slopes

__all__ = ["Prepared", "UnavailableError", "heads_first", "lengths_first", "slope_column"]


class UnavailableError(Exception):
    """A peer can't run a case, or is not installed; the message is the reason."""


@dataclass(frozen=True)
class Prepared:
    """A peer on one case, everything but the attention itself already done."""

    call: Callable[[], Any]
    """Runs the attention; this is what is timed."""
    output: Callable[[Any], np.ndarray]
    """What ``call`` returned -> a NumPy array [batch, heads, q_len, d_v]."""


def heads_first(array: np.ndarray, layout: str) -> np.ndarray:
    """[batch, heads, len, d] whatever the layout; a view."""
    return array if layout == "bhsd" else array.swapaxes(1, 2)


def lengths_first(array: np.ndarray, layout: str) -> np.ndarray:
    """[batch, len, heads, d] whatever the layout; a view."""
    return array if layout == "bshd" else array.swapaxes(1, 2)


def slope_column(case: Case) -> np.ndarray:
    """ALiBi's slopes as [heads, 1, 1], to meet scores [..., heads, q_len, kv_len]."""
    return alibi_slopes(case.heads)[:, None, None]
