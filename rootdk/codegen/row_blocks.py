"""Blocks of queries for the backward pass: copied to scratch memory once, read there by every panel of a group."""

from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder, Scalar
from rootdk.codegen.frame import Frame
from rootdk.codegen.online_softmax import LOG2_E
from rootdk.codegen.panels import Rows, copy_row
from rootdk.codegen.scatter import horizontal_sum
from rootdk.machine import Target
from rootdk.planning.schedule import KeyPanelsSpec

__all__ = ["RowBlock", "RowBlocks"]

# Behind each row: room for the zeros that tiles read past it. It also keeps rows of 64 or 128 elements, read column by
# column, from falling on the same few sets of the L1 cache: at d 128 that cost a fifth.
_PADDING_BYTES = 64


@dataclass(frozen=True)
class RowBlock:
    """A block of queries in scratch memory, as accumulators: scaled queries, output gradients, two numbers a row."""

    queries: ir.Value
    query_stride: ir.Value
    gradients: ir.Value
    gradient_stride: ir.Value
    numbers: ir.Value
    """[rows, 2]: the LSE in the unit of the scores (+inf for a row that sees nothing), and delta."""

    TYPES = (POINTER, I64, POINTER, I64, POINTER)

    @property
    def arguments(self) -> tuple[ir.Value, ...]:
        return self.queries, self.query_stride, self.gradients, self.gradient_stride, self.numbers


@dataclass(frozen=True)
class _Memory:
    """Scratch memory of one block and of the row of outputs that delta is computed from."""

    block: RowBlock
    output_row: ir.Value


class RowBlocks:
    """The function that fills a block: (frame, memory, batch, head, first query, count)."""

    def __init__(self, module: ir.Module, spec: KeyPanelsSpec) -> None:
        self._spec, self._rows = spec, spec.block_rows
        self._function = Builder.declare(module, spec.functions[0], [POINTER, POINTER, *[I64] * 4])

    def memory(self, b: Builder, frame: Frame, pointer: ir.Value) -> tuple[RowBlock, ir.Value]:
        """The block at ``pointer``, and where its memory ends."""
        memory = self._memory(b, frame, pointer)
        return memory.block, b.at(memory.output_row, memory.block.gradient_stride)

    def load(
        self,
        b: Builder,
        frame: Frame,
        pointer: ir.Value,
        head: tuple[ir.Value, ir.Value],
        first: ir.Value,
        count: ir.Value,
    ) -> None:
        b.ir.call(self._function, [frame.pointer, pointer, *head, first, count])

    def _memory(self, b: Builder, frame: Frame, pointer: ir.Value) -> _Memory:
        query_stride = b.index(b.add(b.mul(frame.word("d_k"), b.size), _PADDING_BYTES))
        gradient_stride = b.index(b.add(b.mul(frame.word("d_v"), b.size), _PADDING_BYTES))
        gradients = b.at(pointer, b.mul(query_stride, self._rows))
        numbers = b.at(gradients, b.mul(gradient_stride, self._rows))
        output_row = b.at(numbers, 2 * self._rows * b.size)
        return _Memory(RowBlock(pointer, query_stride, gradients, gradient_stride, numbers), output_row)

    def define(self, target: Target) -> None:
        """Give the function its body."""
        b = Builder(self._function, target, self._spec.dtype.accumulator)
        frame_pointer, pointer, batch, head, first, count = b.function.args
        frame = Frame(b, frame_pointer)
        memory = self._memory(b, frame, pointer)
        block = memory.block
        queries, gradients, outputs = (
            Rows(
                self._spec.dtype, frame.head_address(name, batch, head), frame.word(f"{name}_row"),
                frame.word(f"{name}_element"), frame.word("q_len"), frame.word(width),
            )
            for name, width in (("query", "d_k"), ("grad_output", "d_v"), ("output", "d_v"))
        )  # fmt: skip
        factor = frame.query_factor()
        splatted = b.splat(factor)
        with b.loop(0, count) as i:
            row = b.ir.add(first, i)
            copy_row(
                b, queries, row, b.at(block.queries, b.mul(i, block.query_stride)), padding=_PADDING_BYTES // b.size,
                transform=lambda value: b.ir.fmul(value, splatted if value.type == b.vector else factor),
            )  # fmt: skip
            gradient_row = b.at(block.gradients, b.mul(i, block.gradient_stride))
            copy_row(b, gradients, row, gradient_row, padding=_PADDING_BYTES // b.size)
            copy_row(b, outputs, row, memory.output_row, padding=_PADDING_BYTES // b.size)
            delta = self._dot(b, gradient_row, memory.output_row, frame.word("d_v"))
            delta = b.ir.fsub(delta, self._lse_gradient(b, frame, batch, head, row))
            lse = self._lse(b, frame, batch, head, row)
            for which, value in enumerate((lse, delta)):
                b.store(value, block.numbers, b.add(b.mul(i, 2 * b.size), which * b.size))
        b.finish()

    @staticmethod
    def _dot(b: Builder, x: ir.Value, y: ir.Value, width: Scalar) -> ir.Value:
        """The product of two padded rows."""
        total = b.slot(b.splat(0.0))
        with b.loop(0, width, b.lanes) as c:
            offset = b.mul(c, b.size)
            total.value = b.fma(b.load(b.vector, x, offset), b.load(b.vector, y, offset), total.value)
        return horizontal_sum(b, total.value)

    @staticmethod
    def _lse(b: Builder, frame: Frame, batch: ir.Value, head: ir.Value, row: ir.Value) -> ir.Value:
        """In the unit of the scores; +inf for a row that sees nothing, so that all its weights are 0."""
        value = b.load(b.real, frame.head_address("lse", batch, head), b.mul(row, frame.word("lse_row")))
        value = b.ir.fmul(value, b.ir.select(frame.log2_scores(), b.scalar(LOG2_E), b.scalar(1.0)))
        empty = b.ir.fcmp_ordered("==", value, b.scalar(float("-inf")))
        return b.ir.select(empty, b.scalar(float("inf")), value)

    @staticmethod
    def _lse_gradient(b: Builder, frame: Frame, batch: ir.Value, head: ir.Value, row: ir.Value) -> ir.Value:
        gradient = b.slot(b.scalar(0.0))
        with b.when(b.ir.icmp_unsigned("!=", frame.word("grad_lse"), b.index(0))):
            address = frame.head_address("grad_lse", batch, head)
            gradient.value = b.load(b.real, address, b.mul(row, frame.word("grad_lse_row")))
        return gradient.value
