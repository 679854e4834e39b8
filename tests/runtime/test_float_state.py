"""The guard around kernels: a fixed floating-point state inside, the thread's own one outside."""

import platform

import numpy as np
import pytest

from rootdk import machine
from rootdk.runtime import compiler, threads

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="reads MXCSR")

# Takes the place of a caller whose thread is in a given state: Python would do arithmetic of its own in between.
# Context: a kernel, its context, the state to call it in; the state found afterwards.
CALLER = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define void @caller(ptr %context) {
  %kernel = load ptr, ptr %context
  %argument_at = getelementptr i64, ptr %context, i64 1
  %argument = load ptr, ptr %argument_at
  %before = getelementptr i64, ptr %context, i64 2
  %after = getelementptr i64, ptr %context, i64 3
  call void @llvm.x86.sse.ldmxcsr(ptr %before)
  call void %kernel(ptr %argument)
  call void @llvm.x86.sse.stmxcsr(ptr %after)
  ret void
}
"""
# 2^-140, a third, 1e30 squared: what flushing, rounding and traps change. Context: address of 4 floats.
SENSITIVE = """
define void @sensitive(ptr %context) {
  %data = load ptr, ptr %context
  %x = load volatile <4 x float>, ptr %data, align 4
  %y = fdiv <4 x float> %x, <float 1.0, float 3.0, float 1.0, float 0.0>
  %z = fmul <4 x float> %y, <float 1.0, float 1.0, float 0x46293E5940000000, float 1.0>
  store <4 x float> %z, ptr %data, align 4
  ret void
}
"""
INPUT = np.array([2.0**-140, 1.0, 1e30, 1.0], dtype=np.float32)
DEFAULT, FLAGS = 0x1F80, 0x3F
FLUSH, ROUND_UP, ROUND_DOWN = DEFAULT | 0x8040, DEFAULT | 0x4000, DEFAULT | 0x2000
TRAPS = 0  # every condition stops the process


def build(text: str, entry: str) -> compiler.Address:
    # The caller declares what the guards declare too.
    text = "\n".join(line for line in text.splitlines() if not line.startswith("declare"))
    return compiler.load(compiler.compile_object(text, machine.host(), [entry]), [entry], machine.host())[entry]


@pytest.fixture(scope="module")
def caller() -> compiler.Address:
    return build(CALLER, "caller")


@pytest.fixture(scope="module")
def sensitive() -> compiler.Address:
    return build(SENSITIVE, "sensitive")


@pytest.mark.parametrize("state", [DEFAULT, FLUSH, ROUND_UP, ROUND_DOWN, TRAPS, DEFAULT | FLAGS])
def test_the_threads_state_neither_reaches_the_kernel_nor_changes(caller, sensitive, state):
    data = INPUT.copy()
    inner = np.array([data.ctypes.data], dtype=np.int64)
    outer = np.array([int(sensitive), inner.ctypes.data, state, 0], dtype=np.int64)
    threads.run(caller, outer.ctypes.data, 1)
    assert data.tolist() == [2.0**-140, float(np.float32(1) / np.float32(3)), np.inf, np.inf]
    assert outer[3] == state
