"""Doing in order what threads prepare at once: each head's chunks are merged one after the other.

The order is what makes sums independent of threads. Tasks are taken in order and a task's items are worked on in order,
so the item that is waited for is always in somebody's hands: nobody waits for a thread that has not entered.
"""

from llvmlite import ir

from rootdk.codegen.builder import I64, Builder
from rootdk.codegen.frame import Frame

__all__ = ["finish_turn", "wait_for_turn"]


def _place(b: Builder, frame: Frame, head: ir.Value) -> ir.Value:
    return b.at(frame.address("turns"), b.mul(head, 8))


def wait_for_turn(b: Builder, frame: Frame, head: ir.Value, chunk: ir.Value) -> None:
    """Until every chunk of ``head`` before ``chunk`` is done; what they wrote can be read then."""
    wait, go = (b.function.append_basic_block(name) for name in ("wait", "go"))
    b.ir.branch(wait)
    b.ir.position_at_end(wait)
    now = b.ir.load_atomic(_place(b, frame, head), "acquire", 8, typ=I64)
    b.ir.cbranch(b.ir.icmp_signed("==", now, chunk), go, wait)
    b.ir.position_at_end(go)


def finish_turn(b: Builder, frame: Frame, head: ir.Value, chunk: ir.Value) -> None:
    # an exchange, since llvmlite's atomic store does not take opaque pointers
    b.ir.atomic_rmw("xchg", _place(b, frame, head), b.ir.add(chunk, b.index(1)), "release")
