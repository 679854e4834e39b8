"""The forward kernel: queries in the lanes, keys and values in their natural layout.

    task: the panels of a few dozen queries of one head
      for each chunk of keys that some of them may see
        for each block of the chunk that some of them may see
          for each panel: scores -> score function and mask -> softmax -> values
        merge the chunk's sums into the panels'
      divide by the sums, write output and log-sum-exp

A panel holds its queries transposed and scaled, its weights and its outputs in L1 while keys and values stream past.
Nothing a row does depends on other rows: see docs/design.md, "Bits".
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.attend import Attend
from rootdk.codegen.builder import I64, POINTER, Builder
from rootdk.codegen.frame import Frame
from rootdk.codegen.modules import new_module
from rootdk.codegen.panels import Rows, copy_row
from rootdk.codegen.query_panels import QueryPanelRoutines, padded_width
from rootdk.codegen.trimming import KEYS, Tile
from rootdk.codegen.visibility import Visibility
from rootdk.codegen.worker import finish_worker
from rootdk.machine import Target
from rootdk.planning.schedule import ForwardSpec

__all__ = ["forward_module"]


def forward_module(spec: ForwardSpec, target: Target) -> ir.Module:
    """The module that exports ``void forward(frame)``: one worker, which takes tasks until none is left."""
    module = new_module("rootdk_forward", target)
    b = Builder.define(module, spec.ENTRY, [POINTER], (target, spec.dtype.accumulator), export=True)
    finish_worker(b, _Task(b, spec).function)
    return module


class _Task:
    """One task's function: (frame, scratch, number)."""

    def __init__(self, entry: Builder, spec: ForwardSpec) -> None:
        self.spec, self.schedule = spec, spec.schedule
        self.routines = QueryPanelRoutines(entry.function.module, spec.panels)
        self.attend = Attend(entry, spec)
        self.visibility = Visibility(entry, spec.graph)
        self.trimmed = self.visibility.trimmed(KEYS)
        self.b = b = Builder.define(entry.function.module, "task", [POINTER, POINTER, I64], entry)
        frame_pointer, self.scratch, number = b.function.args
        self.frame = Frame(b, frame_pointer)
        self._place(number)
        self._memory()
        self.function = self._body()

    def _place(self, number: ir.Value) -> None:
        """Which head and which panels. Panels go from the last to the first: under a causal mask the last have the
        most to do, and a long task at the end would leave other workers idle."""
        b, frame = self.b, self.frame
        per_head, heads = frame.word("tasks_per_head"), frame.word("heads")
        head_number = b.ir.sdiv(number, per_head)
        group = b.sub(b.sub(per_head, 1), b.ir.srem(number, per_head))
        self.batch, self.head = b.ir.sdiv(head_number, heads), b.ir.srem(head_number, heads)
        self.kv_head = b.ir.sdiv(self.head, frame.word("heads_per_kv"))
        self.first_panel = b.index(b.mul(group, frame.word("panels_per_task")))
        self.end_panel = b.lower_of(b.add(self.first_panel, frame.word("panels_per_task")), frame.word("panels"))

    def _memory(self) -> None:
        """Scratch memory: what ``Attend`` needs, a packed block of keys, one of values, the panels."""
        b, frame, schedule = self.b, self.frame, self.schedule
        self.key_pack_stride = b.add(b.mul(frame.word("d_k"), b.size), 64)
        self.width = padded_width(b, frame, schedule.value_rows)
        self.value_pack_stride = b.add(b.mul(self.width, b.size), 64)
        self.key_pack = b.at(self.scratch, self.attend.memory(b))
        self.value_pack = b.at(self.key_pack, b.mul(self.key_pack_stride, schedule.block))
        panels = b.at(self.value_pack, b.mul(self.value_pack_stride, schedule.block))
        aligned = b.ir.and_(b.ir.add(b.ir.ptrtoint(panels, I64), b.index(63)), b.index(-64))
        self.panels = b.ir.inttoptr(aligned, POINTER)

    def _body(self) -> ir.Function:
        b, frame, schedule = self.b, self.frame, self.schedule
        kv_len = frame.word("kv_len")
        first, end = self._row(self.first_panel), b.lower_of(self._row(self.end_panel), frame.word("q_len"))
        queries = frame.head_address("query", self.batch, self.head)
        keys = self._rows("key", "d_k")
        values = self._rows("value", "d_v")
        with self._each_panel() as panel:
            self._call(self.routines.start, panel, queries, panel.first)
        with b.loop(0, kv_len, schedule.chunk) as chunk:
            chunk_end = b.lower_of(b.add(chunk, schedule.chunk), kv_len)
            with self._unless_hidden((first, b.sub(end, 1), chunk, b.sub(chunk_end, 1))):
                with b.when(b.less(0, chunk)), self._each_panel() as panel:
                    self._call(self.routines.clear_chunk, panel)
                with b.loop(chunk, chunk_end, schedule.block) as block:
                    block_end = b.lower_of(b.add(block, schedule.block), chunk_end)
                    with self._unless_hidden((first, b.sub(end, 1), block, b.sub(block_end, 1))):
                        self._attend_block(keys, values, block, block_end)
                with b.when(b.less(schedule.chunk, kv_len)), self._each_panel() as panel:
                    self._call(self.routines.merge, panel)
        output = frame.head_address("output", self.batch, self.head)
        lse = frame.head_address("lse", self.batch, self.head)
        with self._each_panel() as panel:
            self._call(self.routines.finish, panel, output, lse, panel.first, self.head)
        return b.finish()

    def _attend_block(self, keys: Rows, values: Rows, block: ir.Value, block_end: ir.Value) -> None:
        """Every panel of the task on one block of keys."""
        b, count = self.b, self.b.sub(block_end, block)
        key, key_stride = self._block_rows("pack_key", keys, block, count, self.key_pack, self.key_pack_stride)
        value, value_stride = self._block_rows(
            "pack_value", values, block, count, self.value_pack, self.value_pack_stride
        )
        with self._each_panel() as panel:
            last = b.lower_of(self._row(b.index(b.add(panel.number, 1))), self.frame.word("q_len"))
            tile = (panel.first, b.sub(last, 1), block, b.sub(block_end, 1))
            with self.trimmed.span(b, self.frame, (self.batch, self.head), tile, self.schedule.block) as span:
                self._call(
                    self.attend.function, panel, self.scratch, key, key_stride, value, value_stride, span.pointer,
                    panel.first, block, self.batch, self.head,
                )  # fmt: skip

    def _unless_hidden(self, tile: Tile) -> AbstractContextManager[ir.Value]:
        return self.visibility.unless_hidden(self.b, self.frame, (self.batch, self.head), tile)

    # Panels ------------------------------------------------------------------------------------------------------

    def _row(self, panel: ir.Value) -> ir.Value:
        """The first query of a panel."""
        b, frame = self.b, self.frame
        narrow = b.mul(panel, frame.word("panel_vectors"))
        vectors = b.add(narrow, b.lower_of(panel, frame.word("wide_panels")))
        return b.index(b.mul(vectors, b.lanes))

    @contextmanager
    def _each_panel(self) -> Iterator["_Panel"]:
        """Loops over the task's panels."""
        b, frame = self.b, self.frame
        with b.loop(self.first_panel, self.end_panel) as number:
            memory = b.at(self.panels, b.mul(b.sub(number, self.first_panel), frame.word("panel_bytes")))
            wide = b.ir.zext(b.less(number, frame.word("wide_panels")), I64)
            yield _Panel(number, self._row(number), b.index(b.add(frame.word("panel_vectors"), wide)), memory)

    def _call(self, routine: ir.Function, panel: "_Panel", *arguments: ir.Value) -> None:
        self.b.ir.call(routine, [self.frame.pointer, panel.memory, panel.vectors, *arguments])

    # Keys and values -----------------------------------------------------------------------------------------------

    def _rows(self, operand: str, width: str) -> Rows:
        frame = self.frame
        return Rows(
            self.spec.dtype, frame.head_address(operand, self.batch, self.kv_head), frame.word(f"{operand}_row"),
            frame.word(f"{operand}_element"), frame.word("kv_len"), frame.word(width),
        )  # fmt: skip

    def _block_rows(
        self, packed: str, rows: Rows, block: ir.Value, count: ir.Value, memory: ir.Value, memory_stride: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Where a block's rows are and their stride: in place, or copied to ``memory`` as accumulators."""
        b = self.b
        where = b.slot(b.at(rows.pointer, b.mul(block, rows.row_stride)))
        stride = b.slot(rows.row_stride)
        with b.when(b.ir.icmp_signed("!=", self.frame.word(packed), b.index(0))):
            with b.loop(0, count) as j:
                target = b.at(memory, b.mul(j, memory_stride))
                copy_row(b, rows, b.ir.add(block, j), target, padding=self.schedule.value_rows)
            where.value, stride.value = memory, memory_stride
        return where.value, stride.value


@dataclass(frozen=True)
class _Panel:
    number: ir.Value
    first: ir.Value
    vectors: ir.Value
    memory: ir.Value
