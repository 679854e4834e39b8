"""The forward of few queries: the lanes are keys for the scores, and values' columns for the outputs.

With queries in the lanes, one query would use one lane of many. Here the queries of all heads that share a key head
are the rows of the micro-kernel, so keys and values are read once, at memory bandwidth. Every sum runs in the order in
which the forward kernel runs it (scores over d, weights and outputs over the keys of a block, chunks merged in order),
so both give the same bits.

    task: a chunk of the keys of one key head
      for each block of keys that somebody may see: scores -> score function and mask -> softmax -> values
      whoever finishes a head's last chunk merges all of them in order, divides and writes
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llvmlite import ir

from rootdk.codegen.builder import I1, I64, POINTER, Builder, Scalar
from rootdk.codegen.elements import store_elements
from rootdk.codegen.frame import Frame
from rootdk.codegen.modules import new_module
from rootdk.codegen.online_softmax import HIDDEN_WEIGHT, LaneStats, Softmax, is_hidden_weight
from rootdk.codegen.panels import Matrix, Rows, copy_row, pack
from rootdk.codegen.tile_matmul import poison_free_matmul, tile_matmul
from rootdk.codegen.tile_scores import Mods, ScoreTile, lane_indices, raw_scores
from rootdk.codegen.visibility import Visibility
from rootdk.codegen.worker import finish_worker
from rootdk.machine import Target
from rootdk.planning.schedule import DECODE_KEY_VECTORS, DecodeSpec

__all__ = ["decode_module"]

_VALUES_AHEAD = 16
_HEIGHTS = (1, 4)
"""Rows of the micro-kernel: a lone row, or four, the last of which may be padding."""


def decode_module(spec: DecodeSpec, target: Target) -> ir.Module:
    """The module that exports ``void decode(frame)``."""
    module = new_module("rootdk_decode", target)
    b = Builder.define(module, spec.ENTRY, [POINTER], (target, spec.dtype.accumulator), export=True)
    finish_worker(b, _Task(b, spec).function)
    return module


@dataclass(frozen=True)
class _RowState:
    """Per row: outputs [width], and a lane vector each of maximum and sum, all lanes equal; adjacent accumulators."""

    b: Builder
    pointer: ir.Value
    width: ir.Value

    @property
    def stride(self) -> ir.Value:
        return self.b.index(self.b.mul(self.b.add(self.width, 2 * self.b.lanes), self.b.size))

    def output(self, row: Scalar) -> ir.Value:
        return self.b.at(self.pointer, self.b.mul(row, self.stride))

    def stats(self, row: Scalar) -> LaneStats:
        return LaneStats(self.b, self.b.at(self.output(row), self.b.mul(self.width, self.b.size)))


class _Task:
    """(frame, scratch, number)."""

    def __init__(self, entry: Builder, spec: DecodeSpec) -> None:
        self.spec, self.schedule, self.vectors = spec, spec.schedule, spec.schedule.column_vectors
        self.mods = Mods(spec.graph, spec.schedule.narrow, spec.proven)
        self.visibility = Visibility(entry, spec.graph)
        self.b = b = Builder.define(entry.function.module, "task", [POINTER, POINTER, I64], entry)
        self.softmax = Softmax(b, log2_scores=spec.graph.score is None)
        pointer, self.scratch, number = b.function.args
        self.frame = frame = Frame(b, pointer)
        self.q_len, self.kv_len, self.d_k, self.d_v = (frame.word(name) for name in ("q_len", "kv_len", "d_k", "d_v"))
        self.rows = b.ir.mul(frame.word("heads_per_kv"), self.q_len)
        self.padded_rows = b.index(b.round_up(self.rows, max(_HEIGHTS)))
        last = b.ir.add(self.kv_len, b.index(self.schedule.chunk - 1))
        self.chunks = b.ir.sdiv(last, b.index(self.schedule.chunk))
        self.head_number, self.chunk = b.ir.sdiv(number, self.chunks), b.ir.srem(number, self.chunks)
        self.batch = b.ir.sdiv(self.head_number, frame.word("kv_heads"))
        self.kv_head = b.ir.srem(self.head_number, frame.word("kv_heads"))
        self._memory()
        self.function = self._body()

    def _memory(self) -> None:
        """Scratch memory: scores of a block, a packed panel of keys, a packed block of values, queries, the totals."""
        b, frame = self.b, self.frame
        self.score_bytes = (self.schedule.block + DECODE_KEY_VECTORS * b.lanes) * b.size
        self.panel = b.at(self.scratch, b.mul(self.padded_rows, self.score_bytes))
        self.value_pack = b.at(self.panel, b.mul(self.d_k, DECODE_KEY_VECTORS * b.lanes * b.size))
        self.width = b.index(b.round_up(self.d_v, b.lanes))
        self.value_stride = b.index(b.mul(self.width, b.size))
        queries = b.at(self.value_pack, b.mul(self.value_stride, self.schedule.block))
        self.query_stride = b.index(b.mul(b.round_up(self.d_k, b.lanes), b.size))
        self.queries = queries
        states = b.at(queries, b.mul(self.query_stride, self.padded_rows))
        self.total = _RowState(b, states, self.width)
        state_bytes = b.mul(self.padded_rows, self.total.stride)
        self.factors = b.at(states, state_bytes)
        self.state_bytes = b.index(state_bytes)
        self.first_state = b.at(frame.address("head_sums"), b.mul(b.mul(self.head_number, self.chunks), state_bytes))
        self.state = self._chunk_state(self.chunk)

    def _chunk_state(self, chunk: ir.Value) -> _RowState:
        """Where a chunk's sums are kept until the head's last chunk is done."""
        return replace(self.total, pointer=self.b.at(self.first_state, self.b.mul(chunk, self.state_bytes)))

    def _body(self) -> ir.Function:
        b, schedule = self.b, self.schedule
        first = b.mul(self.chunk, schedule.chunk)
        end = b.lower_of(b.add(first, schedule.chunk), self.kv_len)
        self._start()
        with b.loop(first, end, schedule.block) as block:
            block_end = b.lower_of(b.add(block, schedule.block), end)
            seen, cut = self._look(block, block_end)
            with b.when(seen):
                self._attend(block, b.sub(block_end, block), cut)
        finished = b.at(self.frame.address("turns"), b.mul(self.head_number, 8))
        before = b.ir.atomic_rmw("add", finished, b.index(1), "acq_rel")
        with b.when(b.ir.icmp_signed("==", before, b.index(b.sub(self.chunks, 1)))):
            self._merge()
            self._write()
        return b.finish()

    def _head(self, row: ir.Value) -> ir.Value:
        return self.b.ir.add(
            self.b.ir.mul(self.kv_head, self.frame.word("heads_per_kv")), self.b.ir.sdiv(row, self.q_len)
        )

    def _operand(self, name: str, head: ir.Value, length: ir.Value, width: ir.Value) -> Rows:
        frame = self.frame
        return Rows(
            self.spec.dtype, frame.head_address(name, self.batch, head), frame.word(f"{name}_row"),
            frame.word(f"{name}_element"), length, width,
        )  # fmt: skip

    def _start(self) -> None:
        """Copy and scale the queries; nothing is seen yet. Rows that only pad hold the last query."""
        b = self.b
        factor = self.frame.query_factor()
        splatted = b.splat(factor)
        with b.loop(0, self.padded_rows) as row:
            real = b.lower_of(row, b.sub(self.rows, 1))
            query = self._operand("query", self._head(real), self.q_len, self.d_k)
            copy_row(
                b, query, b.ir.srem(real, self.q_len), b.at(self.queries, b.mul(row, self.query_stride)), padding=0,
                transform=lambda value: b.ir.fmul(value, splatted if value.type == b.vector else factor),
            )  # fmt: skip
            self._clear(self.state, row)

    def _clear(self, state: _RowState, row: ir.Value) -> None:
        """Nothing seen yet."""
        b = self.b
        state.stats(row).store(b.splat(float("-inf")), b.splat(0.0))
        with b.loop(0, self.value_stride, b.lanes * b.size) as offset:
            b.store(b.splat(0.0), state.output(row), offset, b.size)

    def _look(self, block: ir.Value, block_end: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Whether anybody may see something of the block, and whether anything may be hidden from somebody."""
        b = self.b
        if self.spec.graph.mask is None:
            return ir.Constant(I1, 1), ir.Constant(I1, 0)
        seen, cut = b.slot(ir.Constant(I1, 0)), b.slot(ir.Constant(I1, 0))
        tile = (b.index(0), b.sub(self.q_len, 1), block, b.sub(block_end, 1))
        with b.loop(0, self.frame.word("heads_per_kv")) as which:
            head = b.ir.add(b.ir.mul(self.kv_head, self.frame.word("heads_per_kv")), which)
            here = b.slot(ir.Constant(I1, 0))
            with self.visibility.unless_hidden(b, self.frame, (self.batch, head), tile) as some_hidden:
                here.value, seen.value = ir.Constant(I1, 1), ir.Constant(I1, 1)
                cut.value = b.ir.or_(cut.value, some_hidden)
            # a head that sees nothing needs the mask where another sees something
            cut.value = b.ir.or_(cut.value, b.ir.not_(here.value))
        return seen.value, cut.value

    # One block of keys -----------------------------------------------------------------------------------------------

    def _attend(self, block: ir.Value, count: ir.Value, cut: ir.Value) -> None:
        b = self.b
        lone = b.ir.icmp_signed("==", self.rows, b.index(1))
        self._scores(block, count, lone)
        with b.loop(0, self.rows) as row:
            self._weigh(row, block, count, cut)
        values, stride = self._values(block, count)
        b.choose(
            lone, lambda: self._add_values(values, stride, count, 1), lambda: self._add_values(values, stride, count, 4)
        )

    def _scores(self, block: ir.Value, count: ir.Value, lone: ir.Value) -> None:
        """[rows, keys of the block]: panels of keys are transposed, and all rows of queries broadcast over them."""
        b, width = self.b, DECODE_KEY_VECTORS * self.b.lanes
        keys = self._operand("key", self.kv_head, self.kv_len, self.d_k)
        with b.loop(0, count, width) as j:
            for n in range(DECODE_KEY_VECTORS):
                column = b.at(self.panel, n * b.lanes * b.size)
                first = b.index(b.add(b.ir.add(block, j), n * b.lanes))
                pack(b, keys, first, column, width * b.size, lambda value: value, prefetch=width)
            place = b.at(self.scratch, b.mul(j, b.size))

            def product(height: int, place: ir.Value = place) -> None:
                tile = ScoreTile(b, place, DECODE_KEY_VECTORS, height, self.score_bytes)
                queries = Matrix(self.queries, self.query_stride)
                raw_scores(tile, queries, self.padded_or_one(height), Matrix(self.panel, width * b.size), self.d_k)

            b.choose(lone, lambda: product(1), lambda: product(4))

    def padded_or_one(self, height: int) -> ir.Value:
        return self.b.index(1) if height == 1 else self.padded_rows

    def _weigh(self, row: ir.Value, block: ir.Value, count: ir.Value, cut: ir.Value) -> None:
        """One row's scores to weights; its statistics, and what its outputs so far are to be multiplied by."""
        b = self.b
        scores = b.at(self.scratch, b.mul(row, self.score_bytes))
        if self.spec.graph.score is not None or self.spec.graph.mask is not None:
            if self.spec.graph.mask is None:
                self._modify(row, scores, block, count, masked=False)
            else:
                b.choose(
                    cut,
                    lambda: self._modify(row, scores, block, count, masked=True),
                    lambda: self._modify(row, scores, block, count, masked=False),
                )
        with b.loop(count, b.round_up(count, b.lanes)) as j:
            b.store(b.scalar(float("-inf")), scores, b.mul(j, b.size))
        stats = self.state.stats(row)
        best = b.slot(stats.maximum)
        with b.loop(0, count, b.lanes) as j:
            best.value = b.maximum(b.load_lanes(scores, b.mul(j, b.size)), best.value)
        maximum = self._largest(best.value)
        shift = self.softmax.shift(maximum)
        with b.loop(0, count, b.lanes) as j:
            score = b.load_lanes(scores, b.mul(j, b.size))
            weight = self.softmax.exponential(b.ir.fsub(score, shift))
            if self.mods.graph.may_hide:
                hidden = b.ir.fcmp_ordered("==", score, b.splat(float("-inf")))
                weight = b.ir.select(hidden, b.splat(HIDDEN_WEIGHT), weight)
            b.store_lanes(weight, scores, b.mul(j, b.size))
        total = b.slot(b.scalar(0.0))
        with b.loop(0, count) as j:  # key by key, as the forward kernel adds
            total.value = b.ir.fadd(total.value, b.load(b.real, scores, b.mul(j, b.size)))
        factor = self.softmax.exponential(b.ir.fsub(stats.maximum, shift))
        stats.store(maximum, b.fma(stats.sum, factor, b.splat(total.value)))
        b.store_lanes(factor, self.factors, b.mul(row, b.lanes * b.size))

    def _largest(self, vector: ir.Value) -> ir.Value:
        """The largest lane, in every lane; no lane is NaN."""
        b, distance = self.b, self.b.lanes // 2
        while distance:
            order = [lane ^ distance for lane in range(b.lanes)]
            moved = b.ir.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(ir.IntType(32), b.lanes), order))
            vector = b.maximum(moved, vector)
            distance //= 2
        return vector

    def _modify(self, row: ir.Value, scores: ir.Value, block: ir.Value, count: ir.Value, *, masked: bool) -> None:
        if not masked and self.spec.graph.score is None:
            return
        b = self.b
        query = b.ir.srem(row, self.q_len)
        environment = self.mods.environment(self.frame, {"b": self.batch, "h": self._head(row), "q": query})
        with b.loop(0, count, b.lanes) as j:
            keys = lane_indices(b, b.ir.add(block, j), self.kv_len, self.mods.index_type)
            score = b.load_lanes(scores, b.mul(j, b.size))
            whole = b.ir.icmp_signed("<=", b.ir.add(b.ir.add(block, j), b.index(b.lanes)), self.kv_len)
            leaves = {**environment.leaves, "score": score, "kv": keys}
            here = replace(environment, leaves=leaves, consecutive=("kv", whole))
            b.store_lanes(self.mods.modify(b, score, here, masked=masked), scores, b.mul(j, b.size))

    def _values(self, block: ir.Value, count: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where the block's values are and their stride: in place, or copied where whole vectors cannot be read."""
        b, rows = self.b, self._operand("value", self.kv_head, self.kv_len, self.d_v)
        where = b.slot(b.at(rows.pointer, b.mul(block, rows.row_stride)))
        stride = b.slot(rows.row_stride)
        with b.when(b.ir.icmp_signed("!=", self.frame.word("pack_value"), b.index(0))):
            with b.loop(0, count) as j:
                target = b.at(self.value_pack, b.mul(j, self.value_stride))
                copy_row(b, rows, b.ir.add(block, j), target, padding=0)
                with b.loop(self.d_v, self.width) as column:
                    b.store(b.scalar(0.0), target, b.mul(column, b.size))
            where.value, stride.value = self.value_pack, self.value_stride
        return where.value, stride.value

    def _add_values(self, values: ir.Value, stride: ir.Value, count: ir.Value, height: int) -> None:
        """output = factor * output + weights V, for ``height`` rows and a few vectors of columns at a time."""
        b = self.b
        whole = b.round_down(self.width, self.vectors * b.lanes)
        with b.loop(0, self.padded_or_one(height), height) as row:
            with b.loop(0, whole, self.vectors * b.lanes) as c:
                self._add_columns(row, c, (height, self.vectors), (values, stride), count)
            with b.loop(whole, self.width, b.lanes) as c:
                self._add_columns(row, c, (height, 1), (values, stride), count)

    def _add_columns(
        self, row: ir.Value, c: ir.Value, shape: tuple[int, int], values: tuple[ir.Value, ir.Value], count: ir.Value
    ) -> None:
        b = self.b
        pointer, stride = values
        weights = b.at(self.scratch, b.mul(row, self.score_bytes))
        start = b.at(pointer, b.mul(c, b.size))

        def elements(j: Scalar) -> Iterator[ir.Value]:
            column = b.at(weights, b.mul(j, b.size))
            return (b.splat(b.load(b.real, column, m * self.score_bytes)) for m in range(shape[0]))

        def lanes(j: Scalar) -> list[ir.Value]:
            key = b.at(start, b.mul(j, stride))
            ahead = b.at(key, b.mul(stride, _VALUES_AHEAD))
            for line in range(0, shape[1] * b.lanes * b.size, 64):
                b.prefetch(ahead, line)
            return [b.load(b.vector, key, n * b.lanes * b.size) for n in range(shape[1])]

        if self.mods.graph.may_hide:
            sums = poison_free_matmul(b, count, elements, lanes, shape, lambda weight, _: is_hidden_weight(b, weight))
        else:
            sums = tile_matmul(b, count, elements, lanes, shape)
        for m, vectors in enumerate(sums):
            here = b.index(b.add(row, m))
            factor = b.load_lanes(self.factors, b.mul(here, b.lanes * b.size))
            output = b.at(self.state.output(here), b.mul(c, b.size))
            for n, total in enumerate(vectors):
                offset = n * b.lanes * b.size
                old = b.load(b.vector, output, offset, b.size)
                b.store(b.fma(old, factor, total), output, offset, b.size)

    # Chunks ----------------------------------------------------------------------------------------------------------

    def _merge(self) -> None:
        b = self.b
        with b.loop(0, self.rows) as row:
            self._clear(self.total, row)
            with b.loop(0, self.chunks) as chunk:
                state = self._chunk_state(chunk)
                old, new = self.softmax.merged(self.total.stats(row), state.stats(row))
                sums, additions = self.total.output(row), state.output(row)
                with b.loop(0, self.value_stride, b.lanes * b.size) as offset:
                    added = b.ir.fmul(b.load(b.vector, additions, offset, b.size), new)
                    b.store(b.fma(b.load(b.vector, sums, offset, b.size), old, added), sums, offset, b.size)

    def _write(self) -> None:
        """Divide by the sums, the heads' sinks included, and write outputs and LSE."""
        b, frame = self.b, self.frame
        with b.loop(0, self.rows) as row:
            head, query = self._head(row), b.ir.srem(row, self.q_len)
            sink = self.softmax.sink(frame.address("sinks"), head)
            denominator, lse = self.softmax.normalised(self.total.stats(row), sink)
            output = self._operand("output", head, self.q_len, self.d_v)
            source, target = self.total.output(row), b.at(output.pointer, b.mul(query, output.row_stride))
            own = denominator.of_row()
            with b.loop(0, self.d_v) as c:
                value = own.divide(b.load(b.real, source, b.mul(c, b.size)))
                store_elements(b, self.spec.dtype, value, target, b.mul(c, output.stride))
            with b.when(b.ir.icmp_unsigned("!=", frame.word("lse"), b.index(0))):
                address = b.at(frame.head_address("lse", self.batch, head), b.mul(query, frame.word("lse_row")))
                b.store(b.ir.extract_element(lse, ir.Constant(ir.IntType(32), 0)), address)
