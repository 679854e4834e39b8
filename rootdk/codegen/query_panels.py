"""What the forward kernel does to a panel of queries outside its hot loops, as a library of functions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder, Scalar
from rootdk.codegen.frame import Frame
from rootdk.codegen.modules import new_module
from rootdk.codegen.online_softmax import LaneStats, Softmax
from rootdk.codegen.panels import LaneRows, Rows, pack, unpack
from rootdk.machine import Target
from rootdk.planning.schedule import QueryPanelsSpec

__all__ = ["QueryPanel", "QueryPanelRoutines", "padded_width", "query_panels_module"]


def query_panels_module(spec: QueryPanelsSpec, target: Target) -> ir.Module:
    """The module that exports ``spec.functions``."""
    module = new_module("rootdk_query_panels", target)
    QueryPanelRoutines(module, spec).define(target)
    return module


def padded_width(b: Builder, frame: Frame, rows: int) -> ir.Value:
    """d_v rounded up to whole tiles of ``rows`` columns."""
    return b.index(b.round_down(b.add(frame.word("d_v"), rows - 1), rows))


@dataclass(frozen=True)
class QueryPanel(LaneRows):
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
        return LaneStats(self.b, self.stats_place(which, n))

    def stats_place(self, which: Scalar, n: Scalar) -> ir.Value:
        """Of lane vector ``n``; those of further ones follow."""
        rows = self.b.add(self.b.add(self.d_k, self.b.mul(self.width, 2)), self.b.mul(2, which))
        start = self.b.at(self.pointer, self.b.mul(rows, self.stride))
        return self.b.at(start, self.b.mul(n, 2 * self.b.lanes * self.b.size))

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


class QueryPanelRoutines:
    """What happens to a panel outside the hot loops: functions of (frame, panel, vectors, ...) for every width."""

    def __init__(self, module: ir.Module, spec: QueryPanelsSpec) -> None:
        self._spec = spec
        extra: tuple[list[ir.Type], ...] = ([POINTER, I64], [], [], [POINTER, POINTER, I64, I64])
        self.start, self.clear_chunk, self.merge, self.finish = (
            Builder.declare(module, name, [POINTER, POINTER, I64, *types])
            for name, types in zip(spec.functions, extra, strict=True)
        )

    def define(self, target: Target) -> None:
        """Give the functions their bodies."""
        bodies: dict[ir.Function, Callable[..., None]] = {
            self.start: self._start, self.clear_chunk: self._clear_chunk, self.merge: self._merge,
            self.finish: self._finish,
        }  # fmt: skip
        for function, body in bodies.items():
            b = Builder(function, target, self._spec.dtype.accumulator)
            frame_pointer, panel_pointer, vectors, *extra = function.args
            frame = Frame(b, frame_pointer)
            width = padded_width(b, frame, self._spec.value_rows)
            body(b, frame, QueryPanel(b, panel_pointer, vectors, frame.word("d_k"), width), *extra)
            b.finish()

    def _start(self, b: Builder, frame: Frame, panel: QueryPanel, queries: ir.Value, first: ir.Value) -> None:
        """Pack and scale the queries, forget everything else."""
        rows = Rows(
            self._spec.dtype, queries, frame.word("query_row"), frame.word("query_element"), frame.word("q_len"),
            panel.d_k,
        )  # fmt: skip
        scale = frame.query_factor()
        splatted = b.splat(scale)

        def scaled(value: ir.Value) -> ir.Value:
            return b.ir.fmul(value, splatted if value.type == b.vector else scale)

        with b.loop(0, panel.vectors) as n:
            row = b.index(b.add(first, b.mul(n, b.lanes)))
            pack(b, rows, row, b.at(panel.queries, panel.offset(0, n)), panel.stride, scaled)
        panel.clear(QueryPanel.CHUNK)
        with b.when(self._several_chunks(b, frame)):
            panel.clear(QueryPanel.TOTAL)

    def _several_chunks(self, b: Builder, frame: Frame) -> ir.Value:
        """Where there is one, its sums are the total: merging them would be an exact copy."""
        return b.less(self._spec.chunk, frame.word("kv_len"))

    @staticmethod
    def _clear_chunk(_b: Builder, _frame: Frame, panel: QueryPanel) -> None:
        panel.clear(QueryPanel.CHUNK)

    @staticmethod
    def _merge(b: Builder, frame: Frame, panel: QueryPanel) -> None:
        """Add the chunk's sums to the total."""
        softmax = Softmax(b, frame.log2_scores())
        sums, additions = panel.output(QueryPanel.TOTAL), panel.output(QueryPanel.CHUNK)
        with b.loop(0, panel.vectors) as n:
            old, new = softmax.merged(panel.stats(QueryPanel.TOTAL, n), panel.stats(QueryPanel.CHUNK, n))
            with panel.columns(n) as offset:
                added = b.ir.fmul(b.load_lanes(additions, offset), new)
                b.store_lanes(b.fma(b.load_lanes(sums, offset), old, added), sums, offset)

    def _finish(
        self, b: Builder, frame: Frame, panel: QueryPanel, output: ir.Value, lse: ir.Value, first: ir.Value,
        head: ir.Value,
    ) -> None:  # fmt: skip
        """Divide by the sum, the head's sink included, and write the rows."""
        softmax = Softmax(b, frame.log2_scores())
        sink = softmax.sink(frame.address("sinks"), head)
        rows = Rows(
            self._spec.dtype, output, frame.word("output_row"), frame.word("output_element"), frame.word("q_len"),
            frame.word("d_v"),
        )  # fmt: skip
        dropout_scale = b.splat(frame.dropout_scale())
        total = b.ir.zext(self._several_chunks(b, frame), I64)  # QueryPanel.TOTAL or CHUNK
        with b.loop(0, panel.vectors) as n:
            row = b.index(b.add(first, b.mul(n, b.lanes)))
            denominator, row_lse = softmax.normalised(panel.stats(total, n), sink)
            self._store_lse(b, frame, lse, row, row_lse)
            column = b.at(panel.output(total), panel.offset(0, n))
            unpack(b, column, panel.stride, rows, row, denominator.scaled(dropout_scale).divide)

    def _store_lse(self, b: Builder, frame: Frame, lse: ir.Value, first: ir.Value, value: ir.Value) -> None:
        """One per row; nowhere if nobody asked."""
        with b.when(b.ir.icmp_unsigned("!=", frame.word("lse"), b.index(0))):
            rows = Rows(self._spec.dtype, lse, frame.word("lse_row"), b.index(0), frame.word("q_len"), b.index(1))
            for x, pointer in enumerate(rows.lane_pointers(b, first, b.lanes)):
                b.store(b.ir.extract_element(value, ir.Constant(ir.IntType(32), x)), pointer)
