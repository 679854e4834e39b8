"""Adding lanes to elements of an array by computed index: the transpose of a gather."""

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.builder import I1, I32, I64, POINTER, Builder
from rootdk.mods.expr import ArraySpec

__all__ = ["Target", "horizontal_sum"]


def horizontal_sum(b: Builder, vector: ir.Value) -> ir.Value:
    """The sum of all lanes, halves first."""
    count = b.lanes // 2
    while count:
        indices = [lane + count if lane < count else 0 for lane in range(b.lanes)]
        moved = b.ir.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, b.lanes), indices))
        vector = b.ir.fadd(vector, moved)
        count //= 2
    return b.ir.extract_element(vector, ir.Constant(I32, 0))


@dataclass(frozen=True)
class Target:
    """An array of zeros that lanes are added to."""

    b: Builder
    array: ArraySpec
    table: ir.Value
    """Points at the array's words: address, shape, strides in bytes."""
    once: bool
    """Each element takes one addend: it is stored, as an accumulator. Else elements are float64 whatever the addend's
    type: one of them may take an addend for every pair of the problem."""

    def add(
        self, indices: Sequence[ir.Value], addend: ir.Value, wanted: ir.Value, consecutive: ir.Value | None = None
    ) -> None:
        """``target[indices] += addend`` for the ``wanted`` lanes, one after the other; elsewhere ``addend`` is 0.

        Lanes whose index is out of range add nothing. Where no index varies by lane, the lanes are summed first.
        ``consecutive`` says whether the lanes' elements all exist and follow each other.
        """
        b, rank = self.b, self.array.rank
        words = [b.load(I64, self.table, 8 * number, 8) for number in range(1 + 2 * rank)]
        base, lengths, strides = words[0], words[1 : 1 + rank], words[1 + rank :]
        varying = [number for number, index in enumerate(indices) if isinstance(index.type, ir.VectorType)]

        def address(lane: int, here: ir.Value) -> tuple[ir.Value, ir.Value]:
            """Where the lane's element is, and whether there is one."""
            where = base
            for index, length, stride in zip(indices, lengths, strides, strict=True):
                single = b.ir.extract_element(index, ir.Constant(I32, lane)) if index.type != I64 else index
                single = b.ir.sext(single, I64) if single.type != I64 else single
                negative = b.ir.icmp_signed("<", single, b.index(0))
                from_start = b.ir.select(negative, b.ir.add(single, length), single)
                here = b.ir.and_(here, b.ir.icmp_unsigned("<", from_start, length))
                where = b.ir.add(where, b.ir.mul(from_start, stride))
            return b.ir.inttoptr(where, POINTER), here

        def one_by_one() -> None:
            for lane in range(b.lanes if varying else 1):
                place = ir.Constant(I32, lane)
                target, here = address(lane, b.ir.extract_element(wanted, place) if varying else ir.Constant(I1, 1))
                with b.when(here):
                    self._put(b.ir.extract_element(addend, place) if varying else horizontal_sum(b, addend), target)

        def at_once() -> None:
            target, _ = address(0, ir.Constant(I1, 1))
            self._put(addend, target)

        if consecutive is None:
            one_by_one()
        else:
            adjacent = b.ir.icmp_signed("==", strides[varying[0]], b.index(self._element_bytes))
            b.choose(b.ir.and_(consecutive, adjacent), at_once, one_by_one)

    @property
    def _element_bytes(self) -> int:
        return self.b.size if self.once else 8

    def _put(self, value: ir.Value, target: ir.Value) -> None:
        """``value``, one or a vector, into the elements at ``target``."""
        b = self.b
        if self.once:
            b.store(value, target)
            return
        double = ir.DoubleType()
        kind = ir.VectorType(double, b.lanes) if isinstance(value.type, ir.VectorType) else double
        widened = value if b.real == double else b.ir.fpext(value, kind)
        b.store(b.ir.fadd(b.load(kind, target), widened), target)
