"""What the forward kernel does to one panel of queries."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder, Scalar
from rootdk.codegen.dropout import Dropout
from rootdk.codegen.frame import Frame
from rootdk.codegen.online_softmax import LaneStats, Softmax
from rootdk.codegen.panels import LaneRows, Matrix, Rows, pack, unpack
from rootdk.codegen.spans import Span
from rootdk.codegen.tile_products import SpanProducts, Sums, TileProducts
from rootdk.codegen.tile_scores import Mods, ScoreTile, lane_indices
from rootdk.dropout import WORDS
from rootdk.planning.schedule import ForwardSpec, Schedule

__all__ = ["AttendKernel", "PanelRoutines", "padded_width"]


def padded_width(b: Builder, frame: Frame, rows: int) -> ir.Value:
    """d_v rounded up to whole tiles of ``rows`` columns."""
    return b.index(b.round_down(b.add(frame.word("d_v"), rows - 1), rows))


@dataclass(frozen=True)
class PanelMemory(LaneRows):
    """One panel's scratch memory: its queries, and two sets of running sums, the chunk's and the total."""

    d_k: ir.Value
    width: ir.Value
    """Padded d_v."""

    CHUNK: ClassVar = 0
    TOTAL: ClassVar = 1

    @property
    def queries(self) -> ir.Value:
        return self.pointer

    def output(self, which: Scalar) -> ir.Value:
        """[width, lanes] unnormalised outputs of the chunk or the total."""
        return self.b.at(self.pointer, self.b.mul(self.b.add(self.d_k, self.b.mul(self.width, which)), self.stride))

    def stats(self, which: Scalar, n: Scalar) -> LaneStats:
        rows = self.b.add(self.b.add(self.d_k, self.b.mul(self.width, 2)), self.b.mul(2, which))
        start = self.b.at(self.pointer, self.b.mul(rows, self.stride))
        return LaneStats(self.b, self.b.at(start, self.b.mul(n, 2 * self.b.lanes * self.b.size)))

    @contextmanager
    def columns(self, n: ir.Value) -> Iterator[ir.Value]:
        """Loops over one lane vector of the output's rows; yields the offset in either set of sums."""
        with self.b.loop(0, self.width) as c:
            yield self.b.index(self.offset(c, n))

    def clear(self, which: int) -> None:
        """Nothing seen yet."""
        b, output = self.b, self.output(which)
        with b.loop(0, self.vectors) as n:
            with self.columns(n) as offset:
                b.store_lanes(b.splat(0.0), output, offset)
            self.stats(which, n).store(b.splat(float("-inf")), b.splat(0.0))


class PanelRoutines:
    """What happens to a panel outside the hot loops: functions of (frame, panel, vectors, ...) for every width."""

    def __init__(self, entry: Builder, spec: ForwardSpec, mods: Mods) -> None:
        self.entry, self.spec, self.dtype, self.value_rows = entry, spec, spec.dtype, spec.schedule.value_rows
        # Without a score function the factor log2 e of exp(x) = exp2(x log2 e) rides on the queries' scale.
        self.log2_scores = mods.graph.score is None
        self.start = self._start()
        self.clear_chunk = self._clear_chunk()
        self.merge = self._merge()
        self.finish = self._finish()

    def _define(self, name: str, *extra: ir.Type) -> tuple[Builder, Frame, PanelMemory, Sequence[ir.Value]]:
        b = Builder.define(self.entry.function.module, name, [POINTER, POINTER, I64, *extra], self.entry)
        frame_pointer, panel_pointer, vectors, *rest = b.function.args
        frame = Frame(b, frame_pointer)
        width = padded_width(b, frame, self.value_rows)
        return b, frame, PanelMemory(b, panel_pointer, vectors, frame.word("d_k"), width), rest

    def _start(self) -> ir.Function:
        """(..., queries, first): pack and scale the queries, forget everything else."""
        b, frame, panel, (queries, first) = self._define("start", POINTER, I64)
        rows = Rows(
            self.dtype, queries, frame.word("query_row"), frame.word("query_element"), frame.word("q_len"), panel.d_k
        )
        scale = frame.query_factor(self.log2_scores)
        splatted = b.splat(scale)

        def scaled(value: ir.Value) -> ir.Value:
            return b.ir.fmul(value, splatted if value.type == b.vector else scale)

        with b.loop(0, panel.vectors) as n:
            row = b.index(b.add(first, b.mul(n, b.lanes)))
            pack(b, rows, row, b.at(panel.queries, panel.offset(0, n)), panel.stride, scaled)
        panel.clear(PanelMemory.CHUNK)
        with b.when(self._several_chunks(b, frame)):
            panel.clear(PanelMemory.TOTAL)
        return b.finish()

    def _several_chunks(self, b: Builder, frame: Frame) -> ir.Value:
        """Where there is one, its sums are the total: merging them would be an exact copy."""
        return b.less(self.spec.schedule.chunk, frame.word("kv_len"))

    def _clear_chunk(self) -> ir.Function:
        b, _, panel, _ = self._define("clear_chunk")
        panel.clear(PanelMemory.CHUNK)
        return b.finish()

    def _merge(self) -> ir.Function:
        """Add the chunk's sums to the total."""
        b, _, panel, _ = self._define("merge")
        softmax = Softmax(b, self.log2_scores)
        sums, additions = panel.output(PanelMemory.TOTAL), panel.output(PanelMemory.CHUNK)
        with b.loop(0, panel.vectors) as n:
            old, new = softmax.merged(panel.stats(PanelMemory.TOTAL, n), panel.stats(PanelMemory.CHUNK, n))
            with panel.columns(n) as offset:
                added = b.ir.fmul(b.load_lanes(additions, offset), new)
                b.store_lanes(b.fma(b.load_lanes(sums, offset), old, added), sums, offset)
        return b.finish()

    def _finish(self) -> ir.Function:
        """(..., output, lse, first, head): divide by the sum, the head's sink included, and write the rows."""
        b, frame, panel, (output, lse, first, head) = self._define("finish", POINTER, POINTER, I64, I64)
        softmax = Softmax(b, self.log2_scores)
        sink = softmax.sink(frame.address("sinks"), head)
        rows = Rows(
            self.dtype, output, frame.word("output_row"), frame.word("output_element"), frame.word("q_len"),
            frame.word("d_v"),
        )  # fmt: skip
        total = b.ir.zext(self._several_chunks(b, frame), I64)  # PanelMemory.TOTAL or CHUNK
        with b.loop(0, panel.vectors) as n:
            row = b.index(b.add(first, b.mul(n, b.lanes)))
            denominator, row_lse = softmax.normalised(panel.stats(total, n), sink)
            if self.spec.dropout:
                denominator = denominator.scaled(b.splat(frame.dropout_scale()))
            self._store_lse(b, frame, lse, row, row_lse)
            column = b.at(panel.output(total), panel.offset(0, n))
            unpack(b, column, panel.stride, rows, row, denominator.divide)
        return b.finish()

    def _store_lse(self, b: Builder, frame: Frame, lse: ir.Value, first: ir.Value, value: ir.Value) -> None:
        """One per row; nowhere if nobody asked."""
        with b.when(b.ir.icmp_unsigned("!=", frame.word("lse"), b.index(0))):
            rows = Rows(self.dtype, lse, frame.word("lse_row"), b.index(0), frame.word("q_len"), b.index(1))
            for x, pointer in enumerate(rows.lane_pointers(b, first, b.lanes)):
                b.store(b.ir.extract_element(value, ir.Constant(ir.IntType(32), x)), pointer)


class AttendKernel:
    """The hot loops for panels ``vectors`` wide: one panel against one block of keys."""

    def __init__(self, entry: Builder, spec: ForwardSpec, mods: Mods, products: TileProducts, vectors: int) -> None:
        self.entry, self.spec, self.schedule, self.mods, self.vectors = entry, spec, spec.schedule, mods, vectors
        self.products = products
        self.shape = self.schedule.tiles[vectors - 1]
        self.function = self._attend()

    @staticmethod
    def memory(b: Builder, schedule: Schedule, mods: Mods, width: Scalar) -> Scalar:
        """Bytes of a block's scores and copied gathers, of sums [width] in the making, and of rescale factors."""
        rows = (1 + len(mods.tile_gathers)) * (schedule.block + schedule.score_rows) + 1
        return b.mul(b.add(width, rows), schedule.vectors * b.lanes * b.size)

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
        count = b.sub(span.end, span.start)
        width = padded_width(b, frame, self.schedule.value_rows)
        panel = PanelMemory(b, panel_pointer, self.vectors, frame.word("d_k"), width)
        tile = ScoreTile(b, scores, self.vectors, self.shape.score_rows)
        products = SpanProducts(self.products, b, span, self.vectors, self.mods.graph.mask is not None)
        products.scores(Matrix(keys, key_stride).part(b, span.start), panel.matrix, panel.d_k, tile.matrix)
        leaves = {"b": batch, "h": head, "kv": b.ir.add(first_key, span.start)}
        cut_start, cut_end = b.sub(span.cut_start, span.start), b.sub(span.cut_end, span.start)

        scored, masked = self.mods.graph.score is not None, self.mods.graph.mask is not None
        self._copy_gathers(frame, tile, count, {**leaves, "q": first})
        if scored and not masked:
            self._modify(frame, tile, (b.index(0), count), first, leaves, masked=False)
        elif scored:
            # before and after the cut keys: one loop over both parts keeps the score function's code single
            with b.loop(0, 2) as part:
                before = b.ir.icmp_signed("==", part, b.index(0))
                start = b.ir.select(before, b.index(0), b.higher_of(cut_start, cut_end))
                end = b.ir.select(before, cut_start, count)
                self._modify(frame, tile, (start, end), first, leaves, masked=False)
        if masked:
            self._modify(frame, tile, (cut_start, cut_end), first, leaves, masked=True)
        softmax = Softmax(b, log2_scores=self.mods.graph.score is None)
        stats = [panel.stats(PanelMemory.CHUNK, n) for n in range(self.vectors)]
        factors = softmax.block(scores, count, self.vectors, stats, hides=self.mods.may_hide)
        if self.spec.dropout:
            self._drop(frame, tile, count, first, leaves)
        memory = self._gather_tile(tile, len(self.mods.tile_gathers)).pointer
        for n, factor in enumerate(factors):
            b.store_lanes(factor, memory, n * b.lanes * b.size)
        sums = Sums(
            Matrix(panel.output(PanelMemory.CHUNK), panel.stride), width, memory,
            chain=Matrix(b.at(memory, self.vectors * b.lanes * b.size), panel.stride),
        )  # fmt: skip
        products.sums(Matrix(values, value_stride).part(b, span.start), tile.matrix, sums)
        return b.finish()

    def _gather_tile(self, tile: ScoreTile, which: int) -> ScoreTile:
        """Scratch memory for the ``which``-th copied gather, behind the scores."""
        rows = (1 + which) * (self.schedule.block + self.schedule.score_rows)
        widest = self.schedule.vectors * tile.b.lanes * tile.b.size
        return replace(tile, pointer=tile.b.at(tile.pointer, rows * widest))

    def _copy_gathers(self, frame: Frame, tile: ScoreTile, count: ir.Value, leaves: dict[str, ir.Value]) -> None:
        for which, number in enumerate(self.mods.tile_gathers):
            self.mods.copy_gather(frame, number, self._gather_tile(tile, which), leaves, count)

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

    def _drop(
        self, frame: Frame, tile: ScoreTile, count: ir.Value, first: ir.Value, leaves: dict[str, ir.Value]
    ) -> None:
        """Zero weights in place, four keys at a time: blocks start at multiples of four, and have room for as many."""
        b, dropout = tile.b, Dropout(frame, leaves["b"], leaves["h"])
        queries = [
            lane_indices(b, b.index(b.add(first, n * b.lanes)), frame.word("q_len"), I64) for n in range(self.vectors)
        ]
        with b.loop(0, count, WORDS) as j:
            for n, query in enumerate(queries):
                for r, words in enumerate(dropout.words_of_queries(query, b.ir.add(leaves["kv"], j))):
                    offset = tile.offset(b.add(j, r), n)
                    weight = dropout.drop(b.load_lanes(tile.pointer, offset), dropout.kept(words))
                    b.store_lanes(weight, tile.pointer, offset)
