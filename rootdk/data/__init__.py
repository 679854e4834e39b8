"""Small files that ship with rootdk; NOTICE.md says where each comes from."""

from dataclasses import dataclass
from importlib.resources import as_file, files

import numpy as np

__all__ = ["Layer", "minilm_layer"]


@dataclass(frozen=True, eq=False)
class Layer:
    """What one trained attention layer computed with on one sentence."""

    query: np.ndarray
    """[heads, tokens, d_k], float32; key and value likewise."""
    key: np.ndarray
    value: np.ndarray
    tokens: tuple[str, ...]
    number: int
    """Which layer of the model, from 0."""


def minilm_layer() -> Layer:
    """One layer of all-MiniLM-L6-v2 (12 heads, 41 tokens, d_k 32) on an English sentence."""
    with as_file(files(__name__) / "minilm_layer.npz") as path, np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return Layer(
        arrays["query"], arrays["key"], arrays["value"], tuple(map(str, arrays["tokens"])), int(arrays["layer"])
    )
