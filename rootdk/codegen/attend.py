"""The forward kernel's inner function: one panel of queries against one block of keys.

The products and the softmax are calls into libraries, by the panel's width. What is left is what the mods ask for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from llvmlite import ir

from rootdk.codegen.block_softmax import BlockSoftmax
from rootdk.codegen.builder import I64, POINTER, Builder, Scalar
from rootdk.codegen.dropout import Dropout
from rootdk.codegen.frame import Frame
from rootdk.codegen.panels import LaneRows, Matrix
from rootdk.codegen.query_panels import QueryPanel, padded_width
from rootdk.codegen.spans import Span
from rootdk.codegen.tile_products import TileProducts
from rootdk.codegen.tile_scores import Mods, lane_indices
from rootdk.dropout import WORDS
from rootdk.planning.schedule import ForwardSpec, Schedule

__all__ = ["Attend"]


class Attend:
    """The function (frame, panel, vectors, scratch memory, keys, key stride, values, value stride, span, first query,
    first key, batch, head): one block of keys, of which the span tells what matters."""

    TYPES = (POINTER, POINTER, I64, POINTER, POINTER, I64, POINTER, I64, POINTER, *[I64] * 4)

    def __init__(self, entry: Builder, spec: ForwardSpec) -> None:
        self._spec, self._schedule = spec, spec.schedule
        self._mods = Mods(spec.graph, spec.schedule.narrow, spec.proven)
        self._products = TileProducts(entry.function.module, spec.products)
        self._softmax = BlockSoftmax(entry.function.module, spec.softmax)
        self.function = self._define(Builder.define(entry.function.module, "attend", self.TYPES, entry))

    def memory(self, b: Builder) -> int:
        """Bytes of a block's scores and copied gathers, and of rescale factors."""
        tiles = 1 + len(self._mods.tile_gathers)
        return (tiles * _tile_rows(self._schedule) + 1) * self._schedule.vectors * b.lanes * b.size

    def _define(self, b: Builder) -> ir.Function:
        frame_pointer, panel_pointer, vectors, scores, keys, key_stride, values, value_stride, span_pointer = (
            b.function.args[:9]
        )
        first, first_key, batch, head = b.function.args[9:]
        frame, span = Frame(b, frame_pointer), Span(b, span_pointer)
        width = padded_width(b, frame, self._schedule.value_rows)
        panel = QueryPanel(b, panel_pointer, vectors, frame.word("d_k"), width)
        block = _Block(frame, LaneRows(b, scores, vectors), span, first, {"b": batch, "h": head, "kv": first_key})
        factors = self._gathers(block, len(self._mods.tile_gathers)).pointer
        stats, output = panel.stats_place(QueryPanel.CHUNK, 0), panel.output(QueryPanel.CHUNK)
        self._products.scores(b, vectors, Matrix(keys, key_stride), span, panel.queries, panel.d_k, scores)
        self._apply_mods(block)
        self._softmax.weigh(b, vectors, scores, span, stats, factors)
        if self._spec.dropout:
            self._drop(block)
        self._products.sums(b, vectors, Matrix(values, value_stride), span, scores, output, width, factors)
        return b.finish()

    # Score function and mask -----------------------------------------------------------------------------------------

    def _apply_mods(self, block: "_Block") -> None:
        b, span = block.b, block.span
        scored, masked = self._mods.graph.score is not None, self._mods.graph.mask is not None
        self._copy_gathers(block)
        if scored and not masked:
            self._modify(block, (span.start, span.end), masked=False)
        elif scored:
            # before and after the cut keys: one loop over both parts keeps the score function's code single
            with b.loop(0, 2) as side:
                before = b.ir.icmp_signed("==", side, b.index(0))
                start = b.ir.select(before, span.start, b.higher_of(span.cut_start, span.cut_end))
                end = b.ir.select(before, span.cut_start, span.end)
                self._modify(block, (start, end), masked=False)
        if masked:
            with span.each_part() as part:
                keys = b.higher_of(part.start, span.cut_start), b.lower_of(part.end, span.cut_end)
                self._modify(block, keys, (part.low, part.high), masked=True)

    def _modify(
        self, block: "_Block", keys: tuple[ir.Value, ir.Value], vectors: tuple[Scalar, Scalar] | None = None,
        *, masked: bool,
    ) -> None:  # fmt: skip
        """Over the stored scores of the ``keys`` [first, end), and of some lane vectors."""
        b, tile = block.b, block.tile
        environment = self._mods.environment(block.frame, block.leaves)
        with block.each_vector(vectors or (0, tile.vectors), self._mods.index_type) as (n, query), b.loop(*keys) as j:
            place = tile.offset(j, n)
            score = b.load_lanes(tile.pointer, place)
            given = {
                number: self._mods.copied(b, number, self._gathers(block, which), j, n)
                for which, number in enumerate(self._mods.tile_gathers)
            }
            leaves = {**block.leaves, "score": score, "q": query, "kv": b.ir.add(block.leaves["kv"], j)}
            here = replace(environment, leaves=leaves, given=given)
            b.store_lanes(self._mods.modify(b, score, here, masked=masked), tile.pointer, place)

    def _gathers(self, block: "_Block", which: int) -> LaneRows:
        """Scratch memory for the ``which``-th copied gather, behind the scores."""
        b, rows = block.b, (1 + which) * _tile_rows(self._schedule)
        offset = rows * self._schedule.vectors * b.lanes * b.size
        return replace(block.tile, pointer=b.at(block.tile.pointer, offset))

    def _copy_gathers(self, block: "_Block") -> None:
        b, span = block.b, block.span
        leaves = {**block.leaves, "q": block.first, "kv": b.ir.add(block.leaves["kv"], span.start)}
        for which, number in enumerate(self._mods.tile_gathers):
            copy = self._gathers(block, which)
            copy = replace(copy, pointer=b.at(copy.pointer, copy.offset(span.start, 0)))
            self._mods.copy_gather(block.frame, number, copy, leaves, b.sub(span.end, span.start))

    # Dropout ---------------------------------------------------------------------------------------------------------

    def _drop(self, block: "_Block") -> None:
        """Zero weights in place, four keys at a time: spans start at multiples of four, and have room for as many."""
        b, tile, leaves, span = block.b, block.tile, block.leaves, block.span
        dropout = Dropout(block.frame, leaves["b"], leaves["h"])
        with (
            block.each_vector((0, tile.vectors), I64) as (n, query),
            b.loop(span.start, span.end, WORDS) as j,
        ):
            for r, words in enumerate(dropout.words_of_queries(query, b.ir.add(leaves["kv"], j))):
                place = tile.offset(b.add(j, r), n)
                weight = dropout.drop(b.load_lanes(tile.pointer, place), dropout.kept(words))
                b.store_lanes(weight, tile.pointer, place)


@dataclass(frozen=True)
class _Block:
    """A block of keys as a panel of queries sees it."""

    frame: Frame
    tile: LaneRows
    """Its scores."""
    span: Span
    first: ir.Value
    """Query."""
    leaves: dict[str, ir.Value]
    """b, h, and kv: the first key."""

    @property
    def b(self) -> Builder:
        return self.tile.b

    @contextmanager
    def each_vector(self, vectors: tuple[Scalar, Scalar], kind: ir.IntType) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Loops over lane vectors: the number, and the queries' indices."""
        b = self.b
        with b.loop(*vectors) as n:
            yield n, lane_indices(b, b.index(b.add(self.first, b.mul(n, b.lanes))), self.frame.word("q_len"), kind)


def _tile_rows(schedule: Schedule) -> int:
    return schedule.block + schedule.score_rows
