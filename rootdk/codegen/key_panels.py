"""What the backward kernel does to a panel of keys outside its hot loops, as a library of functions."""

from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder, Scalar
from rootdk.codegen.frame import Frame
from rootdk.codegen.modules import new_module
from rootdk.codegen.online_softmax import LN_2
from rootdk.codegen.panels import LaneRows, Rows, pack, unpack
from rootdk.codegen.row_blocks import RowBlocks
from rootdk.machine import Target
from rootdk.planning.schedule import KeyPanelsSpec

__all__ = ["KeyPanel", "KeyPanelRoutines", "key_panels_module"]


def key_panels_module(spec: KeyPanelsSpec, target: Target) -> ir.Module:
    """The module that exports ``spec.functions``."""
    module = new_module("rootdk_key_panels", target)
    RowBlocks(module, spec).define(target)
    KeyPanelRoutines(module, spec).define(target)
    return module


@dataclass(frozen=True)
class KeyPanel(LaneRows):
    """A panel of keys in scratch memory: K^T and V^T packed, and the sums of dK^T and dV^T."""

    d_k: ir.Value
    d_v: ir.Value
    padding: int
    """Rows that tiles may write past the end of the sums."""

    @property
    def keys(self) -> ir.Value:
        return self.pointer

    @property
    def values(self) -> ir.Value:
        return self._after(self.d_k)

    @property
    def key_sums(self) -> ir.Value:
        return self._after(self.b.add(self.d_k, self.d_v))

    @property
    def value_sums(self) -> ir.Value:
        return self._after(self.b.add(self.b.add(self.b.mul(self.d_k, 2), self.d_v), self.padding))

    @property
    def sum_rows(self) -> Scalar:
        """Of both sums, which lie one behind the other."""
        return self.b.add(self.b.add(self.d_k, self.d_v), 2 * self.padding)

    def _after(self, rows: Scalar) -> ir.Value:
        return self.b.at(self.pointer, self.b.mul(rows, self.stride))


class KeyPanelRoutines:
    """Functions of (frame, panel, vectors, keys or their gradients, values or theirs, first key)."""

    def __init__(self, module: ir.Module, spec: KeyPanelsSpec) -> None:
        self._module, self._spec = module, spec
        types = [POINTER, POINTER, I64, POINTER, POINTER, I64]
        self.start, self.finish = (Builder.declare(module, name, types) for name in spec.functions[1:])

    def define(self, target: Target) -> None:
        """Give the functions their bodies."""
        self._start(target)
        self._finish(target)

    def _start(self, target: Target) -> None:
        """Pack keys and values; the sums are zero."""
        b, frame, panel, (keys, values, first) = self._begin(self.start, target)
        function = self._pack_function(b)
        for name, pointer, packed in (("key", keys, panel.keys), ("value", values, panel.values)):
            rows = self._rows(frame, name, pointer, panel)
            with b.loop(0, panel.vectors) as n:
                row = b.index(b.add(first, b.mul(n, b.lanes)))
                column = b.at(packed, panel.offset(0, n))
                b.ir.call(function, [*rows.arguments, row, column, b.index(panel.stride)])
        with b.loop(0, b.mul(panel.sum_rows, panel.stride), b.lanes * b.size) as offset:
            b.store(b.splat(0.0), panel.key_sums, offset, b.size)
        b.finish()

    def _finish(self, target: Target) -> None:
        """Write dK, out of the unit of the scaled queries that it was summed with, and dV."""
        b, frame, panel, (keys, values, first) = self._begin(self.finish, target)
        function = self._unpack_function(b)
        key_factor = b.ir.select(frame.log2_scores(), b.scalar(LN_2), b.scalar(1.0))
        for name, pointer, sums, factor in (
            ("grad_key", keys, panel.key_sums, key_factor),
            ("grad_value", values, panel.value_sums, frame.dropout_scale()),
        ):
            rows = self._rows(frame, name, pointer, panel)
            with b.loop(0, panel.vectors) as n:
                row = b.index(b.add(first, b.mul(n, b.lanes)))
                column = b.at(sums, panel.offset(0, n))
                b.ir.call(function, [*rows.arguments, row, column, b.index(panel.stride), factor])
        b.finish()

    def _begin(
        self, function: ir.Function, target: Target
    ) -> tuple[Builder, Frame, KeyPanel, tuple[ir.Value, ir.Value, ir.Value]]:
        b = Builder(function, target, self._spec.dtype.accumulator)
        frame_pointer, panel, vectors, keys, values, first = function.args
        frame = Frame(b, frame_pointer)
        d_k, d_v = frame.word("d_k"), frame.word("d_v")
        return b, frame, KeyPanel(b, panel, vectors, d_k, d_v, self._spec.value_rows), (keys, values, first)

    def _rows(self, frame: Frame, name: str, pointer: ir.Value, panel: KeyPanel) -> Rows:
        row, element = frame.word(f"{name}_row"), frame.word(f"{name}_element")
        width = panel.d_k if name.endswith("key") else panel.d_v
        return Rows(self._spec.dtype, pointer, row, element, frame.word("kv_len"), width)

    # Functions, as keys and values share them: squares of lanes are turned by long code.

    def _pack_function(self, like: Builder) -> ir.Function:
        b = Builder.define(self._module, "pack_lanes", [*Rows.TYPES, I64, POINTER, I64], like)
        *rows, first, column, stride = b.function.args
        pack(b, Rows(self._spec.dtype, *rows), first, column, stride, lambda value: value)
        return b.finish()

    def _unpack_function(self, like: Builder) -> ir.Function:
        b = Builder.define(self._module, "unpack_lanes", [*Rows.TYPES, I64, POINTER, I64, like.real], like)
        *rows, first, column, stride, factor = b.function.args
        factors = b.splat(factor)
        unpack(b, column, stride, Rows(self._spec.dtype, *rows), first, lambda vector: b.ir.fmul(vector, factors))
        return b.finish()
