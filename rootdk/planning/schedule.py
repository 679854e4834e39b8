"""How a problem is cut up: tile sizes, as one frozen value that shapes the code."""

from dataclasses import dataclass
from typing import ClassVar

from rootdk.dtypes import DType
from rootdk.machine import Target
from rootdk.mods.expr import Graph

__all__ = ["ForwardSpec", "Schedule", "TileShape", "schedule_for"]


@dataclass(frozen=True, slots=True)
class TileShape:
    """Accumulator rows of the micro-kernel for a panel of some width: rows of keys for scores, columns for values."""

    score_rows: int
    value_rows: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything about the cut that the generated code depends on."""

    tiles: tuple[TileShape, ...]
    """Tile of a panel one, two, ... vectors wide; the last is the widest panel."""
    block: int = 128
    """Keys per block: scores of a panel and a block stay in L1. 64 measured 0.98, 32 0.95."""
    chunk: int = 1024
    """Keys per chunk, a whole number of blocks. Sums restart at every chunk and chunks merge in order, so a row's bits
    do not depend on how chunks are shared out. It is part of the result: changing it changes rounding."""
    narrow: bool = True
    """Every integer of the mods fits 32 bits, proven for this problem: indices then fill lanes as floats do."""

    @property
    def vectors(self) -> int:
        return len(self.tiles)

    @property
    def value_rows(self) -> int:
        """What d_v is padded to in scratch memory."""
        return max(tile.value_rows for tile in self.tiles)

    @property
    def score_rows(self) -> int:
        return max(tile.score_rows for tile in self.tiles)


@dataclass(frozen=True, slots=True)
class ForwardSpec:
    """All that shapes the code of a forward kernel: its key, together with the target."""

    dtype: DType
    graph: Graph
    proven: frozenset[int]
    """Gathers whose indices are in range wherever the problem evaluates them."""
    schedule: Schedule

    ENTRY: ClassVar = "forward"


def schedule_for(target: Target, *, narrow: bool) -> Schedule:
    """The measured best cut for a register file.

    16 registers hold 4 x 3 accumulators, 3 lane vectors and a broadcast. 32 registers hold 8 x 3. A panel one vector
    wide has no reuse of broadcasts, and takes rows enough to keep two FMA pipes of latency four busy.
    """
    if target.registers >= 32:
        return Schedule((TileShape(8, 8), TileShape(8, 8), TileShape(8, 8)), narrow=narrow)
    return Schedule((TileShape(8, 8), TileShape(4, 4), TileShape(4, 4)), narrow=narrow)
