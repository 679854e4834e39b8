"""A guard around each kernel: it computes under one fixed floating-point state, and leaves the thread's as it was.

The state is the rounding mode, whether tiny numbers are flushed to zero, which conditions trap, and the flags that tell
what happened (MXCSR on x86-64, FPCR and FPSR on aarch64). Each thread has its own, and libraries change it: torch can
set flushing, and a worker of someone's OpenMP pool comes as it is. A row's bits must depend on none of that, so the
guard sets the default state (round to nearest even, keep tiny numbers, no traps) on entry, in whichever thread runs it,
and puts the saved one back, flags included, on return.
"""

from collections.abc import Iterable
from string import Template

from rootdk.machine import Target

__all__ = ["guarded", "guards"]

# The kernel must not be inlined into its guard: LLVM takes arithmetic to be free to move across a change of state.
_X86 = Template("""
define void @"$guard"(ptr %context) {
  %saved = alloca i32
  %fixed = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %saved)
  store i32 8064, ptr %fixed
  call void @llvm.x86.sse.ldmxcsr(ptr %fixed)
  call void @"$entry"(ptr %context) noinline
  call void @llvm.x86.sse.ldmxcsr(ptr %saved)
  ret void
}
""")
_X86_DECLARATIONS = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
"""
_AARCH64 = Template("""
define void @"$guard"(ptr %context) {
  %control = call i64 @llvm.aarch64.get.fpcr()
  %status = call i64 @llvm.aarch64.get.fpsr()
  call void @llvm.aarch64.set.fpcr(i64 0)
  call void @"$entry"(ptr %context) noinline
  call void @llvm.aarch64.set.fpcr(i64 %control)
  call void @llvm.aarch64.set.fpsr(i64 %status)
  ret void
}
""")
_AARCH64_DECLARATIONS = """
declare i64 @llvm.aarch64.get.fpcr()
declare i64 @llvm.aarch64.get.fpsr()
declare void @llvm.aarch64.set.fpcr(i64)
declare void @llvm.aarch64.set.fpsr(i64)
"""
_BY_ARCHITECTURE = {"x86_64": (_X86, _X86_DECLARATIONS), "aarch64": (_AARCH64, _AARCH64_DECLARATIONS)}


def guarded(entry: str) -> str:
    """The guard's symbol."""
    return f"{entry}.guarded"


def guards(entries: Iterable[str], target: Target) -> str:
    """IR that defines the guard of each entry, to append to the module that defines the entries."""
    template, declarations = _BY_ARCHITECTURE[target.triple.partition("-")[0]]
    definitions = [template.substitute(guard=guarded(entry), entry=entry) for entry in entries]
    return declarations + "".join(definitions) if definitions else ""
