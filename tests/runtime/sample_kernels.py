"""Small kernels written by hand, and how the tests call them."""

import ctypes

import numpy as np

SQUARE = """
define void @square(ptr %context) {
  %data = load ptr, ptr %context
  %x = load <16 x float>, ptr %data, align 4
  %y = fmul <16 x float> %x, %x
  store <16 x float> %y, ptr %data, align 4
  ret void
}
"""

# Context: next task, tasks, address of one int64 for each task, rounds of work in each. Each task adds 1 to its number.
COUNT = """
define void @count(ptr %context) {
entry:
  %tasks_at = getelementptr i64, ptr %context, i64 1
  %tasks = load i64, ptr %tasks_at
  %out_at = getelementptr i64, ptr %context, i64 2
  %out = load ptr, ptr %out_at
  %rounds_at = getelementptr i64, ptr %context, i64 3
  br label %next
next:
  %task = atomicrmw add ptr %context, i64 1 seq_cst
  %more = icmp slt i64 %task, %tasks
  br i1 %more, label %work, label %done
work:
  %round = phi i64 [0, %next], [%following, %work]
  %following = add i64 %round, 1
  %rounds = load volatile i64, ptr %rounds_at
  %again = icmp slt i64 %following, %rounds
  br i1 %again, label %work, label %write
write:
  %slot = getelementptr i64, ptr %out, i64 %task
  %old = load i64, ptr %slot
  %new = add i64 %old, 1
  store i64 %new, ptr %slot
  br label %next
done:
  ret void
}
"""


def square(address: int) -> list[float]:
    """What SQUARE at ``address`` makes of 0 to 15."""
    data = np.arange(16, dtype=np.float32)
    context = np.array([data.ctypes.data], dtype=np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(context.ctypes.data)
    return data.tolist()


SQUARES = [float(i * i) for i in range(16)]
