"""What a call costs: arithmetic, memory traffic, and the least time that a machine needs for them."""

from dataclasses import dataclass

from rootdk.planning.tile_map import TileMap
from rootdk.problem import Problem

__all__ = ["Cost", "Peaks", "cost"]


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a machine can do at most, per second."""

    flops: float
    """In float32; half of it in float64."""
    bytes: float
    """Read from memory."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Work and traffic of one call."""

    flops: int
    """Computed: of all tiles that are not skipped. A multiply-add counts as two."""
    useful_flops: int
    """Of visible pairs."""
    bytes: int
    """Query, key, value and output, each once: what must move between memory and the cores."""
    reread_bytes: int
    """What tasks read of keys and values, from caches where these hold a head's."""
    naive_bytes: int
    """What moves where the score matrix is written, its softmax computed in place, and read again."""
    accumulator_size: int

    @property
    def intensity(self) -> float:
        """Useful operations per byte."""
        return self.useful_flops / self.bytes if self.bytes else 0.0

    def seconds(self, peaks: Peaks) -> float:
        """The roofline: no less than the arithmetic takes at its peak, nor than the traffic at its own."""
        return max(self.flops / (peaks.flops * 4 / self.accumulator_size), self.bytes / peaks.bytes)


def cost(problem: Problem, tiles: TileMap) -> Cost:
    """Of a forward pass."""
    size, accumulator = problem.dtype.size, problem.dtype.accumulator.size
    width = problem.d_k + problem.d_v
    query_rows = problem.batch * problem.heads * problem.q_len
    key_rows = problem.batch * problem.kv_heads * problem.kv_len
    once = (query_rows + key_rows) * width * size
    scores = query_rows * problem.kv_len * accumulator
    return Cost(
        flops=2 * tiles.computed_pairs * width,
        useful_flops=2 * tiles.visible_pairs * width,
        bytes=once,
        reread_bytes=tiles.keys_read * width * size,
        naive_bytes=once + 4 * scores,
        accumulator_size=accumulator,
    )
