"""A kernel's entry: one worker, which takes tasks from the frame's counter until none is left."""

from llvmlite import ir

from rootdk.codegen.builder import Builder
from rootdk.codegen.frame import Frame

__all__ = ["finish_worker"]


def finish_worker(b: Builder, task: ir.Function) -> None:
    """Complete the entry ``void (frame)``; ``task`` is (frame, scratch memory of this worker, task number)."""
    frame = Frame(b, b.function.args[0])
    worker = b.ir.atomic_rmw("add", frame.place("next_worker"), b.index(1), "monotonic")
    scratch = b.at(frame.address("scratch"), b.mul(worker, frame.word("scratch_bytes")))
    ask, work, done = (b.function.append_basic_block(name) for name in ("ask", "work", "none_left"))
    b.ir.branch(ask)
    b.ir.position_at_end(ask)
    number = b.ir.atomic_rmw("add", frame.place("next_task"), b.index(1), "monotonic")
    b.ir.cbranch(b.less(number, frame.word("tasks")), work, done)
    b.ir.position_at_end(work)
    b.ir.call(task, [frame.pointer, scratch, number])
    b.ir.branch(ask)
    b.ir.position_at_end(done)
    b.finish()
