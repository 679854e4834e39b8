"""Pictures of masks, drawn from the expressions that kernels are compiled from."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rootdk.errors import ArgumentError
from rootdk.mods.evaluate import evaluate
from rootdk.mods.trace import Tracer

if TYPE_CHECKING:
    from rootdk.mods.values import Mask

__all__ = ["Picture", "draw"]

_MOST = 64
"""Rows and columns drawn: beyond, a picture is cut to its corner."""
_CELL = 10
"""Width of a pair in the SVG, in its own units."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Picture:
    """A corner of a score matrix, queries down and keys across; prints as text, and as SVG in a notebook."""

    title: str
    visible: np.ndarray
    """Booleans [queries, keys]: the pairs of the corner."""
    shape: tuple[int, int]
    """q_len and kv_len of the whole matrix."""

    def __repr__(self) -> str:
        lines = [" ".join("■" if pair else "·" for pair in row) for row in self.visible.tolist()]
        return "\n".join([self._caption(), *lines])

    def _repr_html_(self) -> str:
        return f"<figure>{self.svg()}<figcaption><code>{_escaped(self._caption())}</code></figcaption></figure>"

    def svg(self) -> str:
        """The picture alone, in the colour of the text around it."""
        rows, columns = self.visible.shape
        width, height = columns * _CELL, rows * _CELL
        boxes = [
            f'<rect x="{first * _CELL}" y="{row * _CELL}" width="{(end - first) * _CELL}" height="{_CELL}"/>'
            for row in range(rows)
            for first, end in _runs(self.visible[row])
        ]
        grid = [f"M{x} 0V{height}" for x in range(0, width + 1, _CELL)]
        grid += [f"M0 {y}H{width}" for y in range(0, height + 1, _CELL)]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 {width + 2} {height + 2}" width="{width}">'
            f"<title>{_escaped(self._caption())}</title>"
            f'<g fill="#3b7dd8">{"".join(boxes)}</g><path d="{"".join(grid)}" stroke="#8888" fill="none"/></svg>'
        )

    def _caption(self) -> str:
        cut = "" if self.visible.shape == self.shape else ", its first corner"
        return f"{self.title}: {self.shape[0]} queries × {self.shape[1]} keys{cut}"


def draw(mask: "Mask", shape: tuple[int, int, int, int], b: int, h: int) -> Picture:
    """The mask of batch element ``b`` and head ``h`` in a problem of ``shape`` = [batch, heads, q_len, kv_len].

    Raises:
        ArgumentError: a size below 1, or ``b`` or ``h`` outside the shape. What tracing the mask raises passes through.
    """
    batch, heads, q_len, kv_len = shape
    if min(shape) < 1 or not (0 <= b < batch and 0 <= h < heads):
        raise ArgumentError(
            f"picture: expected sizes of at least 1, and b and h inside them, got batch {batch}, heads {heads}, "
            f"q_len {q_len}, kv_len {kv_len}, b {b}, h {h}"
        )
    tracer = Tracer(q_len, kv_len, heads, (batch,))
    traced = tracer.finish(None, mask.trace(tracer, *tracer.indices))
    q, kv = np.arange(min(q_len, _MOST))[:, None], np.arange(min(kv_len, _MOST))
    visible = np.array(True)
    if traced.graph.mask is not None:
        visible = evaluate(traced.graph, traced.constants, traced.arrays, b=b, h=h, q=q, kv=kv)[traced.graph.mask]
    return Picture(repr(mask), np.broadcast_to(visible, (q.size, kv.size)), (q_len, kv_len))


def _escaped(text: str) -> str:
    # not html.escape: loading its table of entities would slow every import of rootdk
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _runs(row: np.ndarray) -> list[tuple[int, int]]:
    """First and end of each stretch of visible pairs.

    >>> _runs(np.array([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(np.int8)))
    return [(int(first), int(end)) for first, end in edges.reshape(-1, 2)]
