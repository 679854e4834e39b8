"""The micro-kernel: a register tile of accumulators, rows broadcast from one matrix, lanes read from another.

    accumulator[m][n] += element(m, r) * lanes(n, r)        for r in 0 .. depth

Every product of the forward and backward passes is this routine. One load per lane vector and one broadcast per row
feed rows x vectors FMAs; each accumulator is one chain over r in order, so its bits depend on nothing but its operands.
"""

from collections.abc import Callable, Iterable, Sequence

from llvmlite import ir

from rootdk.codegen.builder import Builder, Scalar

__all__ = ["tile_matmul"]

# FMAs in the loop's body: enough to hide the loop's own instructions. Four times as many made LLVM spill accumulators.
_BODY = 48


def tile_matmul(
    b: Builder,
    depth: ir.Value,
    elements: Callable[[Scalar], Iterable[ir.Value]],
    lanes: Callable[[Scalar], Sequence[ir.Value]],
    shape: tuple[int, int],
    *,
    hidden: Callable[[Sequence[ir.Value]], Sequence[ir.Value]] | None = None,
) -> list[list[ir.Value]]:
    """The tile of ``shape`` (rows, vectors) of sums over ``depth``, started at zero.

    ``elements(r)`` yields the row values at depth r, each splatted; ``lanes(r)`` the lane vectors at depth r. It should
    yield: a broadcast emitted just before its FMAs needs one register, all of them up front make LLVM spill a sum.
    ``hidden``, slow, tells which lanes of the vectors add nothing whatever the elements hold, infinities included.
    """
    rows, vectors = shape
    unroll = min(4, max(1, _BODY // (rows * vectors)))
    zero = b.splat(0.0)
    tile = [[b.slot(zero) for _ in range(vectors)] for _ in range(rows)]

    def step(r: Scalar) -> None:
        vector = lanes(r)
        left_out = hidden(vector) if hidden else [None] * vectors
        for row, element in zip(tile, elements(r), strict=True):
            for slot, lane, out in zip(row, vector, left_out, strict=True):
                total = b.fma(element, lane, slot.value)
                slot.value = total if out is None else b.ir.select(out, slot.value, total)

    whole = b.index(0) if hidden else b.index(b.round_down(depth, unroll))
    with b.loop(0, whole, unroll) as r:
        for unrolled in range(unroll):
            step(b.add(r, unrolled))
    with b.loop(whole, depth) as r:
        step(r)
    return [[slot.value for slot in row] for row in tile]
