"""What is measured: shapes, element types and patterns, with the speed that the design asks of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rootdk.bench.patterns import PATTERNS, Pattern

__all__ = ["Arrays", "Case", "draw", "numpy_dtype"]

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One attention problem to time."""

    name: str
    batch: int = 1
    heads: int = 12
    kv_heads: int = 12
    q_len: int = 2048
    kv_len: int = 2048
    d_k: int = 64
    d_v: int = 64
    dtype: str = "float32"
    pattern: str = "full"
    """A key of ``PATTERNS``."""
    layout: str = "bhsd"
    targets: Mapping[str, float] = field(default_factory=dict)
    """Least ratio to a peer or variant; under "peak" and "bandwidth", least fraction of what the machine can do."""
    variants: Mapping[str, "Case"] = field(default_factory=dict)
    """rootdk itself on other cases, to be compared with at equal visible pairs."""

    @property
    def rule(self) -> Pattern:
        return PATTERNS[self.pattern]

    @cached_property
    def pairs(self) -> int:
        """Visible (query, key) pairs of one head."""
        return self.rule.pairs(self.q_len, self.kv_len)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the two products, over visible pairs only."""
        return 2 * self.batch * self.heads * self.pairs * (self.d_k + self.d_v)

    @property
    def key_value_bytes(self) -> int:
        """Bytes of key and value, each read once."""
        return self.batch * self.kv_heads * self.kv_len * (self.d_k + self.d_v) * numpy_dtype(self.dtype).itemsize

    @property
    def output_bytes(self) -> int:
        return self.batch * self.heads * self.q_len * self.d_v * numpy_dtype(self.dtype).itemsize

    def shorter(self, limit: int = 256) -> "Case":
        """The same case with lengths of at most ``limit``, for a quick look."""
        return replace(self, q_len=min(self.q_len, limit), kv_len=min(self.kv_len, limit))


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype called ``name``; "bfloat16" needs ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    dtype: np.dtype = np.dtype(name)
    return dtype


def draw(case: Case, seed: int = 0) -> Arrays:
    """Query, key and value of ``case`` with standard normal entries, stored in the case's layout."""
    random = np.random.default_rng(seed)

    def normal(heads: int, length: int, width: int) -> np.ndarray:
        shape = (case.batch, heads, length, width) if case.layout == "bhsd" else (case.batch, length, heads, width)
        return random.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(case.dtype))

    return (
        normal(case.heads, case.q_len, case.d_k),
        normal(case.kv_heads, case.kv_len, case.d_k),
        normal(case.kv_heads, case.kv_len, case.d_v),
    )
