"""The call frame: everything a kernel learns at run time, as named 64-bit words in one block of memory.

The engine writes it, the kernel reads it; both go by this table. Strides and offsets are bytes.
"""

from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder

__all__ = ["FRAME", "Frame"]

_OPERANDS = ("query", "key", "value", "output", "lse")

FRAME: dict[str, int] = {
    name: word
    for word, name in enumerate(
        [
            # worker bookkeeping: the next task, the next worker's number; each worker takes its own scratch memory
            "next_task", "next_worker", "tasks", "scratch", "scratch_bytes", "fault",
            # lengths; heads_per_kv = heads // kv_heads
            "heads", "heads_per_kv", "q_len", "kv_len", "d_k", "d_v",
            # the partition: all panels are panel_vectors wide, the first wide_panels one more; tasks of several panels
            "panels", "panel_vectors", "wide_panels", "panels_per_task", "tasks_per_head", "panel_bytes",
            # float64 bits: what queries are multiplied by
            "scale",
            # 0 or 1: rows of keys or values are copied to scratch block by block
            "pack_key", "pack_value",
            # the mods' values: 8-byte constants; (address, shape, strides) per array; range tables per array
            "constants", "arrays", "tables",
            # per head, accumulators; 0 where there are none
            "sinks",
            # per operand: address, byte offset of each batch element (a table), head, row and element strides
            *[f"{operand}{part}" for operand in _OPERANDS for part in ("", "_batch", "_head", "_row", "_element")],
        ]
    )
}  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """Reads the frame's words inside a function."""

    b: Builder
    pointer: ir.Value

    def word(self, name: str) -> ir.Value:
        return self.b.load(I64, self.pointer, FRAME[name] * 8, align=8)

    def address(self, name: str) -> ir.Value:
        return self.b.load(POINTER, self.pointer, FRAME[name] * 8, align=8)

    def place(self, name: str) -> ir.Value:
        """Where the word itself is, for counters that workers share."""
        return self.b.at(self.pointer, FRAME[name] * 8)

    def head_address(self, operand: str, batch: ir.Value, head: ir.Value) -> ir.Value:
        """Where the [len, d] matrix of one batch element and head starts."""
        b = self.b
        offset = b.load(I64, self.address(f"{operand}_batch"), b.mul(batch, 8), align=8)
        return b.at(self.address(operand), b.add(offset, b.mul(head, self.word(f"{operand}_head"))))
