"""How a problem is cut up: tile sizes, as one frozen value that shapes the code."""

from dataclasses import dataclass
from typing import ClassVar

from rootdk.dtypes import DType
from rootdk.machine import Target
from rootdk.mods.expr import Graph

__all__ = [
    "DECODE_KEY_VECTORS", "KEY_CHUNK", "KEY_GROUP", "BackwardSpec", "DecodeSpec", "Derivative", "ForwardSpec",
    "KeyPanelsSpec", "ProductsSpec", "QueryGradientsSpec", "QueryPanelsSpec", "Schedule", "SoftmaxSpec", "TileShape",
    "schedule_for",
]  # fmt: skip

KEY_GROUP = 96
"""Keys of the backward pass whose panels share one product for dQ: whole vectors of every lane count, four panels of
AVX2's 24 lanes. Part of the result, as ``Schedule.chunk`` is: dQ is summed group by group."""

KEY_CHUNK = 10 * KEY_GROUP
"""Keys that one task of the backward pass takes; part of the result too."""

DECODE_KEY_VECTORS = 2
"""Vectors of keys that decoding transposes at a time; 4 measured no better."""


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
    query_block: int = 64
    """Queries per block of the backward pass: its scores and their gradients stay in L1."""
    column_vectors: int = 2
    """Vectors of values' columns that four queries are multiplied with at a time when decoding."""
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
class ProductsSpec:
    """All that shapes the products of a tile of scores, a library of forward and backward kernels."""

    accumulator: DType
    tiles: tuple[TileShape, ...]
    hides: bool
    """Weights of hidden pairs are marked as such, and what they would be multiplied with is not looked at."""

    @property
    def widths(self) -> range:
        """Of tiles, in lane vectors."""
        return range(1, len(self.tiles) + 1)

    @property
    def functions(self) -> tuple[str, ...]:
        return tuple(f"{name}_{vectors}" for name in ("scores", "sums") for vectors in self.widths)


@dataclass(frozen=True, slots=True)
class SoftmaxSpec:
    """All that shapes how a forward kernel turns a block of scores into weights, as a library."""

    accumulator: DType
    vectors: int
    """Of the widest tile."""
    log2_scores: bool
    """Scores come multiplied by log2 e, as they do without a score function."""
    hides: bool
    """As in ``ProductsSpec``."""

    @property
    def functions(self) -> tuple[str, ...]:
        return tuple(f"softmax_{vectors}" for vectors in range(1, self.vectors + 1))


@dataclass(frozen=True, slots=True)
class QueryPanelsSpec:
    """All that shapes what a forward kernel does to panels of queries outside its hot loops, as a library."""

    dtype: DType
    value_rows: int
    chunk: int

    functions: ClassVar = ("start_panel", "clear_chunk", "merge_chunk", "finish_panel")


@dataclass(frozen=True, slots=True)
class KeyPanelsSpec:
    """All that shapes what a backward kernel does to rows of queries and panels of keys outside its hot loops."""

    dtype: DType
    value_rows: int
    block_rows: int
    """Of a block of queries, with those past its end that tiles read."""

    functions: ClassVar = ("load_rows", "start_panel", "finish_panel")


@dataclass(frozen=True, slots=True)
class QueryGradientsSpec:
    """All that shapes the product of score gradients and keys, a library of backward kernels."""

    accumulator: DType
    tiles: tuple[TileShape, ...]
    hides: bool
    """As in ``ProductsSpec``."""

    functions: ClassVar = ("query_gradients",)


@dataclass(frozen=True, slots=True)
class ForwardSpec:
    """All that shapes the code of a forward kernel: its key, together with the target."""

    dtype: DType
    graph: Graph
    proven: frozenset[int]
    """Gathers whose indices are in range wherever the problem evaluates them."""
    schedule: Schedule
    dropout: bool

    ENTRY: ClassVar = "forward"

    @property
    def products(self) -> ProductsSpec:
        return ProductsSpec(self.dtype.accumulator, self.schedule.tiles, self.graph.may_hide)

    @property
    def softmax(self) -> SoftmaxSpec:
        graph = self.graph
        return SoftmaxSpec(self.dtype.accumulator, self.schedule.vectors, graph.score is None, graph.may_hide)

    @property
    def panels(self) -> QueryPanelsSpec:
        return QueryPanelsSpec(self.dtype, self.schedule.value_rows, self.schedule.chunk)


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """All that shapes the code of a decode kernel: the forward of few queries, key by key the same arithmetic."""

    dtype: DType
    graph: Graph
    proven: frozenset[int]
    schedule: Schedule

    ENTRY: ClassVar = "decode"


@dataclass(frozen=True, slots=True)
class Derivative:
    """A score function's derivatives as nodes behind its own."""

    graph: Graph
    score: int | None
    """The node that is d modified score / d score; None where it does not depend on it."""
    captured: tuple[tuple[int, int], ...]
    """(gather node, node that is d modified score / d element) for each gather whose gradient is wanted."""
    once: frozenset[int]
    """Array slots that no two pairs read the same element of, as of a bias of [batch, heads, q_len, kv_len]: their
    gradients are stored in the accumulator's type, those of the others are summed in float64."""


@dataclass(frozen=True, slots=True)
class BackwardSpec:
    """All that shapes the code of a backward kernel."""

    dtype: DType
    graph: Graph
    proven: frozenset[int]
    schedule: Schedule
    derivative: Derivative | None
    """None where the graph has no score function."""
    dropout: bool

    ENTRY: ClassVar = "backward"

    @property
    def products(self) -> ProductsSpec:
        return ProductsSpec(self.dtype.accumulator, self.schedule.tiles, self.graph.may_hide)

    @property
    def panels(self) -> KeyPanelsSpec:
        schedule = self.schedule
        return KeyPanelsSpec(self.dtype, schedule.value_rows, schedule.query_block + schedule.score_rows)

    @property
    def query_gradients(self) -> QueryGradientsSpec:
        return QueryGradientsSpec(self.dtype.accumulator, self.schedule.tiles, self.graph.may_hide)

    @property
    def needs_raw_scores(self) -> bool:
        return self.derivative is not None


def schedule_for(target: Target, *, narrow: bool) -> Schedule:
    """The measured best cut for a register file.

    16 registers hold 4 x 3 accumulators, 3 lane vectors and a broadcast. 32 registers hold 8 x 3. A panel one vector
    wide has no reuse of broadcasts, and takes rows enough to keep two FMA pipes of latency four busy. Without FMA a
    product needs a register of its own, and 4 x 3 would spill. So would 8 x 3 scores on NEON, whose elements LLVM loads
    two steps at a time.
    """
    if not target.fma:
        return Schedule((TileShape(4, 4), TileShape(4, 4)), narrow=narrow)
    if target.registers < 32:
        return Schedule((TileShape(8, 8), TileShape(4, 4), TileShape(4, 4)), narrow=narrow)
    widest = TileShape(6 if target.vector_bits == 128 else 8, 8)
    return Schedule((TileShape(8, 8), TileShape(8, 8), widest), column_vectors=4, narrow=narrow)
