"""The forward kernel's hot loops: one panel of queries against one block of keys."""

from dataclasses import replace

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder
from rootdk.codegen.dropout import Dropout
from rootdk.codegen.frame import Frame
from rootdk.codegen.online_softmax import Softmax
from rootdk.codegen.panels import Matrix
from rootdk.codegen.query_panels import QueryPanel, padded_width
from rootdk.codegen.spans import Span
from rootdk.codegen.tile_products import TileProducts
from rootdk.codegen.tile_scores import Mods, ScoreTile, lane_indices
from rootdk.dropout import WORDS
from rootdk.planning.schedule import ForwardSpec, Schedule

__all__ = ["AttendKernel"]


class AttendKernel:
    """The hot loops for panels ``vectors`` wide: one panel against one block of keys."""

    def __init__(self, entry: Builder, spec: ForwardSpec, mods: Mods, products: TileProducts, vectors: int) -> None:
        self.entry, self.spec, self.schedule, self.mods, self.vectors = entry, spec, spec.schedule, mods, vectors
        self.products = products
        self.shape = self.schedule.tiles[vectors - 1]
        self.function = self._attend()

    @staticmethod
    def memory(b: Builder, schedule: Schedule, mods: Mods) -> int:
        """Bytes of a block's scores and copied gathers, and of rescale factors."""
        rows = (1 + len(mods.tile_gathers)) * (schedule.block + schedule.score_rows) + 1
        return rows * schedule.vectors * b.lanes * b.size

    def _attend(self) -> ir.Function:
        """(frame, panel, scratch memory, keys, key stride, values, value stride, span, first query, first key, batch,
        head): one block of keys, of which the span tells what matters."""
        types = [POINTER, POINTER, POINTER, POINTER, I64, POINTER, I64, POINTER, *[I64] * 4]
        b = Builder.define(self.entry.function.module, f"attend_{self.vectors}", types, self.entry)
        frame_pointer, panel_pointer, scores, keys, key_stride, values, value_stride, span_pointer, *rest = (
            b.function.args
        )
        first, first_key, batch, head = rest
        frame, span = Frame(b, frame_pointer), Span(b, span_pointer)
        width = padded_width(b, frame, self.schedule.value_rows)
        panel = QueryPanel(b, panel_pointer, self.vectors, frame.word("d_k"), width)
        tile = ScoreTile(b, scores, self.vectors, self.shape.score_rows)
        key_rows, value_rows = Matrix(keys, key_stride), Matrix(values, value_stride)
        self.products.scores(b, self.vectors, key_rows, span, panel.queries, panel.d_k, tile.pointer)
        leaves = {"b": batch, "h": head, "kv": first_key}

        scored, masked = self.mods.graph.score is not None, self.mods.graph.mask is not None
        self._copy_gathers(frame, tile, span, {**leaves, "q": first})
        if scored and not masked:
            self._modify(frame, tile, (span.start, span.end), first, leaves, masked=False)
        elif scored:
            # before and after the cut keys: one loop over both parts keeps the score function's code single
            with b.loop(0, 2) as part:
                before = b.ir.icmp_signed("==", part, b.index(0))
                start = b.ir.select(before, span.start, b.higher_of(span.cut_start, span.cut_end))
                end = b.ir.select(before, span.cut_start, span.end)
                self._modify(frame, tile, (start, end), first, leaves, masked=False)
        if masked:
            self._modify(frame, tile, (span.cut_start, span.cut_end), first, leaves, masked=True)
        softmax = Softmax(b, log2_scores=self.mods.graph.score is None)
        stats = [panel.stats(QueryPanel.CHUNK, n) for n in range(self.vectors)]
        factors = softmax.block(scores, (span.start, span.end), self.vectors, stats, hides=self.mods.graph.may_hide)
        if self.spec.dropout:
            self._drop(frame, tile, span, first, leaves)
        memory = self._gather_tile(tile, len(self.mods.tile_gathers)).pointer
        for n, factor in enumerate(factors):
            b.store_lanes(factor, memory, n * b.lanes * b.size)
        output = panel.output(QueryPanel.CHUNK)
        self.products.sums(b, self.vectors, value_rows, span, tile.pointer, output, width, memory)
        return b.finish()

    def _gather_tile(self, tile: ScoreTile, which: int) -> ScoreTile:
        """Scratch memory for the ``which``-th copied gather, behind the scores."""
        rows = (1 + which) * (self.schedule.block + self.schedule.score_rows)
        widest = self.schedule.vectors * tile.b.lanes * tile.b.size
        return replace(tile, pointer=tile.b.at(tile.pointer, rows * widest))

    def _copy_gathers(self, frame: Frame, tile: ScoreTile, span: Span, leaves: dict[str, ir.Value]) -> None:
        b, first = tile.b, {**leaves, "kv": tile.b.ir.add(leaves["kv"], span.start)}
        for which, number in enumerate(self.mods.tile_gathers):
            copy = self._gather_tile(tile, which)
            copy = replace(copy, pointer=b.at(copy.pointer, copy.offset(span.start, 0)))
            self.mods.copy_gather(frame, number, copy, first, b.sub(span.end, span.start))

    def _modify(
        self,
        frame: Frame,
        tile: ScoreTile,
        keys: tuple[ir.Value, ir.Value],
        first: ir.Value,
        leaves: dict[str, ir.Value],
        *,
        masked: bool,
    ) -> None:
        """Score function and mask over the stored scores of the keys in a range of the block."""
        b, kind = tile.b, self.mods.index_type
        queries = [
            lane_indices(b, b.index(b.add(first, n * b.lanes)), frame.word("q_len"), kind) for n in range(self.vectors)
        ]
        environment = self.mods.environment(frame, leaves)
        with b.loop(*keys) as j:
            key = b.ir.add(leaves["kv"], j)
            for n, query in enumerate(queries):
                score = b.load_lanes(tile.pointer, tile.offset(j, n))
                given = {
                    number: self.mods.copied(b, number, self._gather_tile(tile, which), j, n)
                    for which, number in enumerate(self.mods.tile_gathers)
                }
                here = replace(environment, leaves={**leaves, "score": score, "q": query, "kv": key}, given=given)
                b.store_lanes(self.mods.modify(b, score, here, masked=masked), tile.pointer, tile.offset(j, n))

    def _drop(self, frame: Frame, tile: ScoreTile, span: Span, first: ir.Value, leaves: dict[str, ir.Value]) -> None:
        """Zero weights in place, four keys at a time: spans start at multiples of four, and have room for as many."""
        b, dropout = tile.b, Dropout(frame, leaves["b"], leaves["h"])
        queries = [
            lane_indices(b, b.index(b.add(first, n * b.lanes)), frame.word("q_len"), I64) for n in range(self.vectors)
        ]
        with b.loop(span.start, span.end, WORDS) as j:
            for n, query in enumerate(queries):
                for r, words in enumerate(dropout.words_of_queries(query, b.ir.add(leaves["kv"], j))):
                    offset = tile.offset(b.add(j, r), n)
                    weight = dropout.drop(b.load_lanes(tile.pointer, offset), dropout.kept(words))
                    b.store_lanes(weight, tile.pointer, offset)
