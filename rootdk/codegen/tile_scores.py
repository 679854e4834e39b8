"""The scores of one tile: K Q^T, then the score function and the mask; what forward and backward passes share."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from llvmlite import ir

from rootdk.codegen.builder import I32, I64, POINTER, Builder, Scalar
from rootdk.codegen.frame import Frame
from rootdk.codegen.gather import table_offset
from rootdk.codegen.lower_expr import Environment, lower
from rootdk.codegen.panels import LaneRows, Matrix, Rows, pack
from rootdk.codegen.tile_matmul import tile_matmul
from rootdk.dtypes import Kind
from rootdk.mods.expr import Graph
from rootdk.mods.tile_gathers import tile_gathers

__all__ = ["Mods", "ScoreTile", "lane_indices", "raw_scores"]


@dataclass(frozen=True)
class ScoreTile(LaneRows):
    """Where a tile of scores goes: [rows, vectors * lanes] accumulators, in tiles of ``tile_rows`` rows."""

    vectors: int
    tile_rows: int
    row_bytes: Scalar | None = None
    """From row to row, where rows are longer than the tile."""

    @property
    def stride(self) -> Scalar:
        return super().stride if self.row_bytes is None else self.row_bytes


def raw_scores(tile: ScoreTile, rows: Matrix, count: ir.Value, packed: Matrix, depth: ir.Value) -> None:
    """tile[j, lanes] = sum over r of rows[j][r] * packed[r, lanes] for ``count`` rows.

    The last tile reads its missing rows from the last row there is: scratch memory has room for what they give, and
    nobody reads it.
    """
    b, height = tile.b, tile.tile_rows
    last = b.sub(count, 1)
    with b.loop(0, count, height) as j:
        pointers = [rows.part(b, b.lower_of(b.add(j, m), last)).pointer for m in range(height)]

        def elements(r: Scalar, pointers: Sequence[ir.Value] = pointers) -> Iterator[ir.Value]:
            return (b.splat(b.load(b.real, pointer, b.mul(r, b.size))) for pointer in pointers)

        def lanes(r: Scalar) -> list[ir.Value]:
            row = packed.part(b, r).pointer
            return [b.load_lanes(row, n * b.lanes * b.size) for n in range(tile.vectors)]

        for m, row in enumerate(tile_matmul(b, depth, elements, lanes, (height, tile.vectors))):
            for n, value in enumerate(row):
                b.store_lanes(value, tile.pointer, tile.offset(b.add(j, m), n))


def lane_indices(b: Builder, first: ir.Value, length: ir.Value, kind: ir.IntType) -> ir.Value:
    """first, first + 1, ... in the lanes, held at the last index: lanes past the end repeat the last row."""
    vector = ir.VectorType(kind, b.lanes)

    def every_lane(value: ir.Value) -> ir.Value:
        return b.splat(value if kind is I64 else b.ir.trunc(value, kind))

    wanted = b.ir.add(every_lane(first), b.lane_numbers(kind))
    last = every_lane(b.index(b.sub(length, 1)))
    assert wanted.type == vector
    return b.ir.select(b.ir.icmp_signed("<", wanted, last), wanted, last)


@dataclass(frozen=True)
class Mods:
    """The score function and mask of a problem, applied to stored scores."""

    graph: Graph
    narrow: bool
    proven: frozenset[int]
    """Gathers whose indices are in range wherever the problem evaluates them."""

    @property
    def index_type(self) -> ir.IntType:
        return I32 if self.narrow else I64

    @cached_property
    def tile_gathers(self) -> tuple[int, ...]:
        """Gathers that are copied tile by tile before the score function and the mask run."""
        return tile_gathers(self.graph, self.proven)

    def environment(self, frame: Frame, leaves: Mapping[str, ir.Value]) -> Environment:
        """Indices are 64-bit scalars, or lanes of ``index_type``."""
        return Environment(
            leaves, frame.address("constants"), frame.address("arrays"), self.index_type,
            fault=frame.address("fault"), proven=self.proven,
        )  # fmt: skip

    def copy_gather(
        self,
        frame: Frame,
        number: int,
        tile: LaneRows,
        leaves: Mapping[str, ir.Value],
        keys: ir.Value,
    ) -> None:
        """A tile of the array that gather ``number`` reads, as accumulators, to the place of ``tile``.

        The lanes are queries; ``leaves`` are the tile's b, h, first q and first kv, ``keys`` its rows.
        """
        b, node = tile.b, self.graph.nodes[number]
        assert isinstance(node.attr, int)
        array = self.graph.arrays[node.attr]
        table = b.at(frame.address("arrays"), table_offset(self.graph.arrays, node.attr))
        base, *words = (b.load(I64, table, 8 * word, 8) for word in range(1 + 2 * array.rank))
        strides: dict[str, ir.Value] = {}
        indices = lower(b, self.graph, node.args, self.environment(frame, {**leaves, "q": b.index(0)}))
        for arg, index, length, stride in zip(node.args, indices, words, words[array.rank :], strict=False):
            leaf = self.graph.nodes[arg].attr if self.graph.nodes[arg].op == "index" else None
            if leaf in ("q", "kv"):
                strides[str(leaf)] = stride
            negative = b.ir.icmp_signed("<", index, b.index(0))
            index = b.ir.select(negative, b.ir.add(index, length), index)
            base = b.ir.add(base, b.ir.mul(index, stride))
        q_len = frame.word("q_len")
        rows = Rows(array.dtype, b.ir.inttoptr(base, POINTER), strides["q"], strides["kv"], q_len, keys)
        with b.loop(0, tile.vectors) as n:
            row = b.index(b.add(leaves["q"], b.mul(n, b.lanes)))
            pack(b, rows, row, b.at(tile.pointer, tile.offset(0, n)), tile.stride, lambda value: value)

    def copied(self, b: Builder, number: int, tile: LaneRows, row: ir.Value, n: Scalar) -> ir.Value:
        """What ``copy_gather`` has put into a tile, as the mods see it."""
        value = b.load_lanes(tile.pointer, tile.offset(row, n))
        if self.graph.nodes[number].kind is Kind.BOOL:
            return b.ir.fcmp_unordered("!=", value, b.splat(0.0))
        return value

    def modify(self, b: Builder, score: ir.Value, environment: Environment, *, masked: bool) -> ir.Value:
        """The score of one lane vector after score function and mask; the mask comes first, so that what it hides
        cannot fault, and its verdict is selected last, so that no score function can undo it."""
        visible = None
        if masked:
            assert self.graph.mask is not None
            (visible,) = lower(b, self.graph, [self.graph.mask], environment)
            environment = replace(environment, visible=visible)
        if self.graph.score is not None:
            (score,) = lower(b, self.graph, [self.graph.score], environment)
        if visible is None:
            return b.splat(score)
        return b.ir.select(b.splat(visible), b.splat(score), b.splat(float("-inf")))
