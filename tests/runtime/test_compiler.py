"""IR to machine code: for this machine, for others, and what happens to text that is not IR."""

import gc
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sample_kernels import SQUARE, SQUARES, square

from rootdk import machine
from rootdk.errors import ArgumentError
from rootdk.machine import AVX2, AVX512, NEON, SSE
from rootdk.runtime import compiler
from rootdk.runtime.compiler import CompileError

FMA = """
declare <{n} x float> @llvm.fma.v{n}f32(<{n} x float>, <{n} x float>, <{n} x float>)
define void @fma(ptr %p) {{
  %x = load <{n} x float>, ptr %p, align 4
  %y = call <{n} x float> @llvm.fma.v{n}f32(<{n} x float> %x, <{n} x float> %x, <{n} x float> %x)
  store <{n} x float> %y, ptr %p, align 4
  ret void
}}
"""


def test_compiles_loads_and_runs():
    image = compiler.compile_object(SQUARE, machine.host(), ["square"])
    assert square(compiler.load(image, ["square"], machine.host())["square"]) == SQUARES


@pytest.mark.parametrize("name", ["sse", "avx2", "avx512", "neon"])
def test_runs_with_the_instructions_of_each_preset_that_this_machine_has(name):
    try:
        target = machine.choose(name, machine._architecture(), machine.host_features())
    except ArgumentError:
        pytest.skip("this machine lacks them")
    image = compiler.compile_object(SQUARE, target, ["square"])
    assert square(compiler.load(image, ["square"], target)["square"]) == SQUARES


def test_the_c_library_is_at_hand():
    text = """
    declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
    define void @zero(ptr %context) {
      %data = load ptr, ptr %context
      %volatile = load volatile i64, ptr %context
      %size = and i64 %volatile, 0
      %bytes = add i64 %size, 64
      call void @llvm.memset.p0.i64(ptr %data, i8 0, i64 %bytes, i1 false)
      ret void
    }
    """
    image = compiler.compile_object(text, machine.host(), ["zero"])
    assert square(compiler.load(image, ["zero"], machine.host())["zero"]) == [0.0] * 16


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        (AVX512, r"vfmadd\w+ps\t.*%zmm"),
        (AVX2, r"vfmadd\w+ps\t.*%ymm"),
        (NEON, r"fmla\tv\d+\.4s"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_vectors_of_every_target_fill_its_registers(target, instruction):
    assert re.search(instruction, compiler.assembly(FMA.format(n=target.lanes(4)), target))


def test_the_baseline_target_uses_nothing_beyond_sse2():
    text = compiler.assembly(SQUARE, SSE)
    assert "mulps" in text
    assert not re.search(r"\bv(mul|mov)|[yz]mm", text)


@pytest.mark.parametrize("target", machine.PRESETS.values(), ids=lambda target: target.name)
def test_object_code_for_every_target_with_its_guard(target):
    assert compiler.compile_object(SQUARE, target, ["square"])[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    "text",
    [
        "define void @square(ptr %p) { ret i32 0 }",
        "this is not IR",
        "define void @square(ptr %p) { %x = add i64 %y, 1\n %y = add i64 %x, 1\n ret void }",
        "define void @another(ptr %p) { ret void }",
    ],
)
def test_bad_modules_are_compile_errors(text):
    with pytest.raises(CompileError, match="LLVM refused"):
        compiler.compile_object(text, machine.host(), ["square"])


def test_an_entry_that_is_missing_from_the_object_code_is_a_compile_error():
    image = compiler.compile_object(SQUARE, machine.host(), ["square"])
    with pytest.raises(CompileError, match="loading machine code failed"):
        compiler.load(image, ["cube"], machine.host())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_dropping_a_kernel_gives_its_memory_back():
    image = compiler.compile_object(SQUARE, machine.host(), ["square"])

    def load_and_drop(times: int) -> None:
        for _ in range(times):
            compiler.load(image, ["square"], machine.host())
        gc.collect()

    load_and_drop(50)
    before = resident_bytes()
    load_and_drop(400)
    assert resident_bytes() - before < 400 * 1024  # an engine that stayed would be 10 KB and more


def test_a_fork_during_compilation_leaves_a_child_that_can_compile():
    code = """
import os, threading
from rootdk import machine
from rootdk.runtime import compiler
from sample_kernels import SQUARE

def compile_for_ever():
    while True:
        compiler.compile_object(SQUARE, machine.host(), ["square"])

threading.Thread(target=compile_for_ever, daemon=True).start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        compiler.compile_object(SQUARE, machine.host(), ["square"])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, timeout=60, check=False)
    assert done.returncode == 0
