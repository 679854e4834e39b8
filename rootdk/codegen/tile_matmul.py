"""The micro-kernel: a register tile of accumulators, rows broadcast from one matrix, lanes read from another.

    accumulator[m][n] += element(m, r) * lanes(n, r)        for r in 0 .. depth

Every product of the forward and backward passes is this routine. One load per lane vector and one broadcast per row
feed rows x vectors FMAs; each accumulator is one chain over r in order, so its bits depend on nothing but its operands.
"""

from collections.abc import Callable, Iterable, Sequence

from llvmlite import ir

from rootdk.codegen.builder import Builder, Scalar

__all__ = ["poison_free_matmul", "tile_matmul"]

# FMAs in the loop's body: enough to hide the loop's own instructions. Four times as many made LLVM spill accumulators.
_BODY = 48


def tile_matmul(
    b: Builder,
    depth: ir.Value,
    elements: Callable[[Scalar], Iterable[ir.Value]],
    lanes: Callable[[Scalar], Sequence[ir.Value]],
    shape: tuple[int, int],
    start: Callable[[], list[list[ir.Value]]] | None = None,
    *,
    hidden: Callable[[ir.Value, ir.Value], ir.Value] | None = None,
) -> list[list[ir.Value]]:
    """The tile of ``shape`` (rows, vectors) of sums over ``depth``, started at zero or at what ``start`` emits.

    ``elements(r)`` yields the row values at depth r, each splatted; ``lanes(r)`` the lane vectors at depth r. It should
    yield: a broadcast emitted just before its FMAs needs one register, all of them up front make LLVM spill a sum.
    ``hidden(element, vector)``, slow, tells in which lanes a product adds nothing whatever it is, infinities included.
    """
    rows, vectors = shape
    unroll = min(4, max(1, _BODY // (rows * vectors)))
    zeros = [[b.splat(0.0)] * vectors] * rows
    tile = [[b.slot(value) for value in row] for row in (start() if start else zeros)]

    def step(r: Scalar) -> None:
        vector = lanes(r)
        for row, element in zip(tile, elements(r), strict=True):
            for slot, lane in zip(row, vector, strict=True):
                total = b.fma(element, lane, slot.value)
                slot.value = b.ir.select(hidden(element, lane), slot.value, total) if hidden else total

    whole = b.index(0)
    if not hidden:
        whole = b.index(b.round_down(depth, unroll))
        with b.loop(0, whole, unroll) as r:
            for unrolled in range(unroll):
                step(b.add(r, unrolled))
    with b.loop(whole, depth) as r:
        step(r)
    return [[slot.value for slot in row] for row in tile]


def poison_free_matmul(
    b: Builder,
    depth: ir.Value,
    elements: Callable[[Scalar], Iterable[ir.Value]],
    lanes: Callable[[Scalar], Sequence[ir.Value]],
    shape: tuple[int, int],
    hidden: Callable[[ir.Value, ir.Value], ir.Value],
    start: Callable[[], list[list[ir.Value]]] | None = None,
) -> list[list[ir.Value]]:
    """``tile_matmul`` in which hidden products, whose weight is zero, add nothing even to infinity and NaN.

    0 times a hidden NaN or infinity is NaN, so a leak always shows in the sums. Looking at them costs one FMA per sum;
    selecting in the loop costs one instruction per product, and is done only if the sums are not finite.
    """
    slots = [[b.slot(total) for total in row] for row in tile_matmul(b, depth, elements, lanes, shape, start)]
    leak = zero = b.splat(0.0)
    for row in slots:
        for slot in row:
            leak = b.fma(slot.value, zero, leak)
    with b.when(b.any(b.ir.fcmp_unordered("uno", leak, leak)), likely=False):
        selected = tile_matmul(b, depth, elements, lanes, shape, start, hidden=hidden)
        for row, sums in zip(slots, selected, strict=True):
            for slot, total in zip(row, sums, strict=True):
                slot.value = total
    return [[slot.value for slot in row] for row in slots]
