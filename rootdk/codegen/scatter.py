"""Adding lanes to elements of an array by computed index: the transpose of a gather."""

from collections.abc import Sequence

from llvmlite import ir

from rootdk.codegen.builder import I1, I32, I64, POINTER, Builder
from rootdk.mods.expr import ArraySpec

__all__ = ["horizontal_sum", "scatter_add"]

_SUM = ir.DoubleType()


def horizontal_sum(b: Builder, vector: ir.Value) -> ir.Value:
    """The sum of all lanes, halves first."""
    count = b.lanes // 2
    while count:
        indices = [lane + count if lane < count else 0 for lane in range(b.lanes)]
        moved = b.ir.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, b.lanes), indices))
        vector = b.ir.fadd(vector, moved)
        count //= 2
    return b.ir.extract_element(vector, ir.Constant(I32, 0))


def scatter_add(
    b: Builder, array: ArraySpec, table: ir.Value, indices: Sequence[ir.Value], addend: ir.Value, wanted: ir.Value,
    consecutive: ir.Value | None = None,
) -> None:  # fmt: skip
    """``target[indices] += addend`` for the ``wanted`` lanes, one after the other; elsewhere ``addend`` is 0.

    ``table`` points at the target's words: address, shape, strides in bytes. Its elements are float64 whatever the
    addend's type: one of them may take an addend for every pair of the problem. Lanes whose index is out of range add
    nothing. Where no index varies by lane, the lanes are summed first.
    """
    words = [b.load(I64, table, 8 * number, 8) for number in range(1 + 2 * array.rank)]
    base, lengths, strides = words[0], words[1 : 1 + array.rank], words[1 + array.rank :]
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
                value = b.ir.extract_element(addend, place) if varying else horizontal_sum(b, addend)
                b.store(b.ir.fadd(b.load(_SUM, target), _widened(b, value)), target)

    def at_once() -> None:
        """All lanes exist, those not wanted add 0."""
        target, _ = address(0, ir.Constant(I1, 1))
        vector = ir.VectorType(_SUM, b.lanes)
        b.store(b.ir.fadd(b.load(vector, target), _widened(b, addend)), target)

    if consecutive is None:
        one_by_one()
    else:
        adjacent = b.ir.icmp_signed("==", strides[varying[0]], b.index(8))
        b.choose(b.ir.and_(consecutive, adjacent), at_once, one_by_one)


def _widened(b: Builder, value: ir.Value) -> ir.Value:
    """As float64."""
    if b.real == _SUM:
        return value
    return b.ir.fpext(value, ir.VectorType(_SUM, b.lanes) if isinstance(value.type, ir.VectorType) else _SUM)
