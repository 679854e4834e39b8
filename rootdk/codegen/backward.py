"""The backward kernel: keys in the lanes, one outer loop over groups of keys, all five products from one micro-kernel.

    task: some consecutive items; an item is a chunk of the keys of one key head
      for each group of 96 keys of the chunk
        for each query head that reads this key head, for each block of its queries that may see the group
          for each panel of the group: scores -> weights -> score gradients; dV and dK grow
          dQ of the block += score gradients x keys
        write dK and dV
      when it is the item's turn: add the chunk's dQ to the head's; after the last chunk, write dQ

Nothing is atomic: dQ is summed over the keys of a group, groups of a chunk, and chunks, each in order; turns keep that
order between threads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from llvmlite import ir

from rootdk.codegen.backward_panel import PanelGradients
from rootdk.codegen.builder import I64, POINTER, Builder, Scalar
from rootdk.codegen.elements import store_elements
from rootdk.codegen.frame import Frame
from rootdk.codegen.key_panels import KeyPanel, KeyPanelRoutines
from rootdk.codegen.modules import new_module
from rootdk.codegen.online_softmax import HIDDEN_WEIGHT
from rootdk.codegen.panels import Rows, copy_row
from rootdk.codegen.query_gradients import QueryGradients
from rootdk.codegen.row_blocks import RowBlocks
from rootdk.codegen.tile_products import TileProducts
from rootdk.codegen.tile_scores import Mods
from rootdk.codegen.trimming import QUERIES
from rootdk.codegen.turns import finish_turn, wait_for_turn
from rootdk.codegen.visibility import Visibility
from rootdk.codegen.worker import finish_worker
from rootdk.machine import Target
from rootdk.planning.schedule import KEY_CHUNK, KEY_GROUP, BackwardSpec

__all__ = ["backward_module"]


def backward_module(spec: BackwardSpec, target: Target) -> ir.Module:
    """The module that exports ``void backward(frame)``."""
    module = new_module("rootdk_backward", target)
    b = Builder.define(module, spec.ENTRY, [POINTER], (target, spec.dtype.accumulator), export=True)
    routines = _Routines(b, spec)
    finish_worker(b, _Task(b, spec, _Item(b, spec, routines).function).function)
    return module


class _Routines:
    """The functions that an item's loops call."""

    def __init__(self, entry: Builder, spec: BackwardSpec) -> None:
        module = entry.function.module
        self.row_blocks = RowBlocks(module, spec.panels)
        self.key_panels = KeyPanelRoutines(module, spec.panels)
        self.query_gradients = QueryGradients(module, spec.query_gradients)
        self.trimmed = Visibility(entry, spec.graph).trimmed(QUERIES)
        mods = Mods(spec.graph, spec.schedule.narrow, spec.proven)
        products = TileProducts(module, spec.products)
        self.panels = [
            PanelGradients(entry, spec, mods, products, vectors) for vectors in range(1, spec.schedule.vectors + 1)
        ]


class _Task:
    """(frame, scratch, number): the items of a task, one after the other."""

    def __init__(self, entry: Builder, spec: BackwardSpec, item: ir.Function) -> None:
        b = Builder.define(entry.function.module, "task", [POINTER, POINTER, I64], entry)
        pointer, scratch, number = b.function.args
        frame = Frame(b, pointer)
        first = b.mul(number, frame.word("items_per_task"))
        end = b.lower_of(b.add(first, frame.word("items_per_task")), frame.word("items"))
        words = sum(1 + 2 * array.rank for array in spec.graph.arrays)
        captured = b.at(frame.address("grad_arrays"), b.mul(number, 8 * words))
        with b.loop(first, end) as i:
            b.ir.call(item, [pointer, scratch, captured, i])
        self.function = b.finish()


class _Item:
    """(frame, scratch, captured arrays' gradients, number): one chunk of one key head's keys."""

    def __init__(self, entry: Builder, spec: BackwardSpec, routines: _Routines) -> None:
        self.spec, self.schedule, self.routines = spec, spec.schedule, routines
        self.b = b = Builder.define(entry.function.module, "item", [POINTER, POINTER, POINTER, I64], entry)
        pointer, self.scratch, self.captured, number = b.function.args
        self.frame = frame = Frame(b, pointer)
        self.kv_len, self.d_k, self.d_v = (frame.word(name) for name in ("kv_len", "d_k", "d_v"))
        self.groups = frame.word("heads_per_kv")
        chunks = b.ir.sdiv(b.ir.add(self.kv_len, b.index(KEY_CHUNK - 1)), b.index(KEY_CHUNK))
        self.turn = b.ir.sdiv(number, chunks)
        self.chunk = b.ir.srem(number, chunks)
        self.last_chunk = b.sub(chunks, 1)
        self.batch = b.ir.sdiv(self.turn, frame.word("kv_heads"))
        self.kv_head = b.ir.srem(self.turn, frame.word("kv_heads"))
        self._memory()
        self.function = self._body()

    def _memory(self) -> None:
        """Scratch memory: a row block, the group's score gradients, tiles, a group of keys, panels, the chunk's dQ."""
        b, frame, schedule = self.b, self.frame, self.schedule
        self.block, end = self.routines.row_blocks.memory(b, frame, self.scratch)
        rows = schedule.query_block + schedule.score_rows
        self.score_gradients = self._aligned(end)
        self.tiles = b.at(self.score_gradients, rows * KEY_GROUP * b.size)
        self.keys = b.at(self.tiles, PanelGradients.memory(b, schedule))
        self.key_vectors = b.ir.sdiv(b.index(b.round_up(self.d_k, b.lanes)), b.index(b.lanes))
        self.key_stride = b.index(b.mul(self.key_vectors, b.lanes * b.size))
        self.panels = b.at(self.keys, b.mul(self.key_stride, KEY_GROUP))
        # per lane: K, V, dK, dV; as many lanes as a group has keys, in however many panels
        panel_rows = b.add(b.mul(b.add(self.d_k, self.d_v), 2), 2 * schedule.value_rows)
        self.lane_bytes = b.index(b.mul(panel_rows, b.lanes * b.size))
        self.chunk_sums = b.at(self.panels, b.mul(self.lane_bytes, KEY_GROUP // b.lanes))
        self.head_sums_bytes = b.index(b.mul(frame.word("padded_q_len"), self.key_stride))

    def _aligned(self, pointer: ir.Value) -> ir.Value:
        b = self.b
        address = b.ir.and_(b.ir.add(b.ir.ptrtoint(pointer, I64), b.index(63)), b.index(-64))
        return b.ir.inttoptr(address, POINTER)

    def _body(self) -> ir.Function:
        b = self.b
        self._clear(self.chunk_sums, b.mul(self.groups, self.head_sums_bytes))
        first = b.mul(self.chunk, KEY_CHUNK)
        end = b.lower_of(b.add(first, KEY_CHUNK), self.kv_len)
        with b.loop(first, end, KEY_GROUP) as group:
            self._group(group, b.lower_of(b.add(group, KEY_GROUP), end))
        self._add_in_turn()
        return b.finish()

    def _clear(self, memory: ir.Value, size: Scalar) -> None:
        """Whole vectors of zeros."""
        with self.b.loop(0, size, self.b.lanes * self.b.size) as offset:
            self.b.store(self.b.splat(0.0), memory, offset, self.b.size)

    # One group of keys -----------------------------------------------------------------------------------------------

    def _group(self, group: ir.Value, end: ir.Value) -> None:
        b = self.b
        self.group, self.group_end, self.group_count = group, end, b.sub(end, group)
        keys = self._operand("key", self.d_k)
        with b.loop(0, self.group_count) as j:
            target = b.at(self.keys, b.mul(j, self.key_stride))
            copy_row(b, keys, b.ir.add(group, j), target, padding=0)
            # the last vector of a row may be part padding
            with b.loop(self.d_k, b.mul(self.key_vectors, b.lanes)) as r:
                b.store(b.scalar(0.0), target, b.mul(r, b.size))
        self._partition()
        self._call_for_panels(self.routines.key_panels.start, "key", "value")
        with b.loop(0, self.groups) as which:
            head = b.ir.add(b.ir.mul(self.kv_head, self.groups), which)
            sums = b.at(self.chunk_sums, b.mul(which, self.head_sums_bytes))
            with b.loop(0, self.frame.word("q_len"), self.schedule.query_block) as query:
                query_end = b.lower_of(b.add(query, self.schedule.query_block), self.frame.word("q_len"))
                tile = (query, b.sub(query_end, 1), group, b.sub(end, 1))
                with self.routines.trimmed.span(
                    b, self.frame, (self.batch, head), tile, self.schedule.query_block
                ) as span:
                    first, last = b.ir.add(query, span.start), b.ir.add(query, span.end)
                    self._block(head, first, last, b.at(sums, b.mul(first, self.key_stride)))
        self._call_for_panels(self.routines.key_panels.finish, "grad_key", "grad_value")

    def _partition(self) -> None:
        """The group's panels, as equal as can be."""
        b, widest = self.b, self.schedule.vectors
        vectors = b.ir.sdiv(b.ir.add(self.group_count, b.index(b.lanes - 1)), b.index(b.lanes))
        self.panel_count = b.ir.sdiv(b.ir.add(vectors, b.index(widest - 1)), b.index(widest))
        self.panel_vectors = b.ir.sdiv(vectors, self.panel_count)
        self.wide_panels = b.ir.srem(vectors, self.panel_count)

    @contextmanager
    def _each_panel(self) -> Iterator[tuple[KeyPanel, ir.Value, ir.Value]]:
        """Loops over the group's panels: the panel, its first key, and that key's place in the group."""
        b = self.b
        with b.loop(0, self.panel_count) as number:
            before = b.add(b.mul(number, self.panel_vectors), b.lower_of(number, self.wide_panels))
            vectors = b.ir.add(self.panel_vectors, b.ir.zext(b.less(number, self.wide_panels), I64))
            memory = b.at(self.panels, b.mul(before, self.lane_bytes))
            place = b.index(b.mul(before, b.lanes))
            panel = KeyPanel(b, memory, vectors, self.d_k, self.d_v, self.schedule.value_rows)
            yield panel, b.ir.add(self.group, place), place

    def _block(self, head: ir.Value, query: ir.Value, query_end: ir.Value, sums: ir.Value) -> None:
        """Some of a block of one head's queries against the group."""
        b, routines, count = self.b, self.routines, self.b.sub(query_end, query)
        seen_start, seen_end = b.slot(self.group_count), b.slot(b.index(0))  # keys of the panels that some row sees
        routines.row_blocks.load(b, self.frame, self.scratch, (self.batch, head), query, count)
        with self._each_panel() as (panel, first, place):
            own = b.at(self.score_gradients, b.mul(place, b.size))
            last = b.lower_of(b.add(first, b.mul(panel.vectors, b.lanes)), self.group_end)
            self._hide(own, panel.vectors)
            tile = (query, b.sub(query_end, 1), first, b.sub(last, 1))
            with routines.trimmed.span(b, self.frame, (self.batch, head), tile, self.schedule.query_block) as span:
                self._by_width(
                    panel, *self.block.arguments, panel.pointer, self.tiles, own, self.captured, span.pointer, query,
                    first, self.batch, head,
                )  # fmt: skip
                seen_start.value, seen_end.value = b.lower_of(seen_start.value, place), b.sub(last, self.group)
        seen = b.higher_of(b.ir.sub(seen_end.value, seen_start.value), 0)
        b.ir.call(
            routines.query_gradients.function,
            [b.at(self.score_gradients, b.mul(seen_start.value, b.size)),
             b.at(self.keys, b.mul(seen_start.value, self.key_stride)), self.key_stride, sums, self.key_stride, count,
             seen, self.key_vectors],
        )  # fmt: skip

    def _hide(self, gradients: ir.Value, vectors: ir.Value) -> None:
        """Gradients of a panel that no row sees, and of rows past the last, which tiles read."""
        b, rows = self.b, self.schedule.query_block + self.schedule.score_rows
        with b.loop(0, rows) as i, b.loop(0, vectors) as n:
            offset = b.add(b.mul(i, KEY_GROUP * b.size), b.mul(n, b.lanes * b.size))
            b.store(b.splat(HIDDEN_WEIGHT), gradients, offset, b.size)

    def _by_width(self, panel: KeyPanel, *arguments: ir.Value) -> None:
        calls = [
            partial(self.b.ir.call, kernel.function, (self.frame.pointer, *arguments))
            for kernel in self.routines.panels
        ]
        self.b.by_number(panel.vectors, calls)

    def _operand(self, name: str, width: ir.Value) -> Rows:
        frame = self.frame
        return Rows(
            self.spec.dtype, frame.head_address(name, self.batch, self.kv_head), frame.word(f"{name}_row"),
            frame.word(f"{name}_element"), self.kv_len, width,
        )  # fmt: skip

    def _call_for_panels(self, routine: ir.Function, keys: str, values: str) -> None:
        """A routine of ``KeyPanelRoutines`` for every panel of the group, on two operands of the frame."""
        b = self.b
        operands = [self.frame.head_address(name, self.batch, self.kv_head) for name in (keys, values)]
        with self._each_panel() as (panel, first, _):
            b.ir.call(routine, [self.frame.pointer, panel.pointer, panel.vectors, *operands, first])

    # dQ --------------------------------------------------------------------------------------------------------------

    def _add_in_turn(self) -> None:
        """The chunk's dQ into the head's, chunk after chunk; the last one writes the result."""
        b, frame = self.b, self.frame
        wait_for_turn(b, frame, self.turn, self.chunk)
        size = b.mul(self.groups, self.head_sums_bytes)
        sums = b.at(frame.address("head_sums"), b.mul(self.turn, size))
        with b.loop(0, size, b.lanes * b.size) as offset:
            total = b.ir.fadd(b.load(b.vector, sums, offset, b.size), b.load(b.vector, self.chunk_sums, offset, b.size))
            b.store(total, sums, offset, b.size)
        with b.when(b.ir.icmp_signed("==", self.chunk, self.last_chunk)), b.loop(0, self.groups) as which:
            self._write_query_gradients(which, b.at(sums, b.mul(which, self.head_sums_bytes)))
        finish_turn(b, frame, self.turn, self.chunk)

    def _write_query_gradients(self, which: ir.Value, sums: ir.Value) -> None:
        b, frame = self.b, self.frame
        head = b.ir.add(b.ir.mul(self.kv_head, self.groups), which)
        scale = b.narrowed(frame.scale())
        rows = Rows(
            self.spec.dtype, frame.head_address("grad_query", self.batch, head), frame.word("grad_query_row"),
            frame.word("grad_query_element"), frame.word("q_len"), self.d_k,
        )  # fmt: skip
        whole = rows.whole(b, b.lanes)
        with b.loop(0, rows.count) as i:
            source, target = b.at(sums, b.mul(i, self.key_stride)), b.at(rows.pointer, b.mul(i, rows.row_stride))
            with b.loop(0, whole, b.lanes) as r:
                value = b.ir.fmul(b.load(b.vector, source, b.mul(r, b.size), b.size), b.splat(scale))
                store_elements(b, rows.dtype, value, target, b.mul(r, rows.dtype.size))
            with b.loop(whole, rows.width) as r:
                value = b.ir.fmul(b.load(b.real, source, b.mul(r, b.size)), scale)
                store_elements(b, rows.dtype, value, target, b.mul(r, rows.stride))
