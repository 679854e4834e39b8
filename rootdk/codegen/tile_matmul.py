"""The micro-kernel: a register tile of accumulators, rows broadcast from one matrix, lanes read from another.

    accumulator[m][n] += element(m, r) * lanes(n, r)        for r in 0 .. depth

Every product of the forward and backward passes is this routine. One load per lane vector and one broadcast per row
feed rows x vectors FMAs; each accumulator is one chain over r in order, so its bits depend on nothing but its operands.
"""

from collections.abc import Callable, Iterable, Sequence

from llvmlite import ir

from rootdk.codegen.builder import Builder, Scalar, Slot

__all__ = ["add_products", "poison_free_matmul", "select_where_not_finite", "tile_matmul", "unrolled", "zero_tile"]

Tile = list[list[Slot]]
"""Accumulators [rows][vectors]."""

Elements = Callable[[Scalar], Iterable[ir.Value]]
"""The row values at some depth, each splatted. It should yield: a broadcast emitted just before its FMAs needs one
register, all of them up front make LLVM spill a sum."""

Lanes = Callable[[Scalar], Sequence[ir.Value]]
"""The lane vectors at some depth."""

Hidden = Callable[[ir.Value, ir.Value], ir.Value]
"""Of an element and a lane vector: in which lanes their product adds nothing whatever it is, infinities included."""

# FMAs in the loop's body: enough to hide the loop's own instructions. Four times as many made LLVM spill accumulators.
_BODY = 48


def zero_tile(b: Builder, shape: tuple[int, int]) -> Tile:
    """Accumulators of ``shape`` (rows, vectors)."""
    return [[b.slot(b.splat(0.0)) for _ in range(shape[1])] for _ in range(shape[0])]


def add_products(
    b: Builder, tile: Sequence[Sequence[Slot]], depths: tuple[Scalar, Scalar], elements: Elements, lanes: Lanes,
    *, unroll: int = 1, hidden: Hidden | None = None,
) -> None:  # fmt: skip
    """Go on with the sums of ``tile`` from the first of ``depths`` to before the second; ``hidden`` is slow."""

    def step(r: Scalar) -> None:
        vector = lanes(r)
        for row, element in zip(tile, elements(r), strict=True):
            for slot, lane in zip(row, vector, strict=True):
                total = b.fma(element, lane, slot.value)
                slot.value = b.ir.select(hidden(element, lane), slot.value, total) if hidden else total

    start, end = depths
    if unroll > 1:
        whole = b.index(b.add(start, b.round_down(b.sub(end, start), unroll)))
        with b.loop(start, whole, unroll) as r:
            for unrolled in range(unroll):
                step(b.add(r, unrolled))
        start = whole
    with b.loop(start, end) as r:
        step(r)


def unrolled(shape: tuple[int, int]) -> int:
    """Steps in the body of the loop for a tile of ``shape``."""
    return min(4, max(1, _BODY // (shape[0] * shape[1])))


def tile_matmul(
    b: Builder, depth: ir.Value, elements: Elements, lanes: Lanes, shape: tuple[int, int],
    *, hidden: Hidden | None = None,
) -> list[list[ir.Value]]:  # fmt: skip
    """The tile of ``shape`` (rows, vectors) of sums over ``depth``."""
    tile = zero_tile(b, shape)
    add_products(b, tile, (0, depth), elements, lanes, unroll=1 if hidden else unrolled(shape), hidden=hidden)
    return [[slot.value for slot in row] for row in tile]


def poison_free_matmul(
    b: Builder, depth: ir.Value, elements: Elements, lanes: Lanes, shape: tuple[int, int], hidden: Hidden
) -> list[list[ir.Value]]:
    """``tile_matmul`` in which hidden products, whose weight is zero, add nothing even to infinity and NaN."""
    tile = [[b.slot(total) for total in row] for row in tile_matmul(b, depth, elements, lanes, shape)]
    select_where_not_finite(b, tile, lambda: tile_matmul(b, depth, elements, lanes, shape, hidden=hidden))
    return [[slot.value for slot in row] for row in tile]


def select_where_not_finite(b: Builder, tile: Tile, selected: Callable[[], Sequence[Sequence[ir.Value]]]) -> None:
    """Replace sums that something hidden may have leaked into by the ``selected`` ones.

    0 times a hidden NaN or infinity is NaN, so a leak always shows in the sums. Looking at them costs one FMA per sum;
    selecting in the loop costs one instruction per product, and is done only if the sums are not finite.
    """
    leak = zero = b.splat(0.0)
    for row in tile:
        for slot in row:
            leak = b.fma(slot.value, zero, leak)
    with b.when(b.any(b.ir.fcmp_unordered("uno", leak, leak)), likely=False):
        for row, sums in zip(tile, selected(), strict=True):
            for slot, total in zip(row, sums, strict=True):
                slot.value = total
