"""What the compiler makes of the hot loops, for every instruction set, also those that this machine lacks."""

import re
from dataclasses import dataclass

import numpy as np
import pytest

import rootdk
from rootdk import dtypes
from rootdk.codegen.forward import forward_module
from rootdk.machine import AVX2, AVX512, NEON, SSE, Target
from rootdk.planning.schedule import ForwardSpec, schedule_for
from rootdk.problem import bind
from rootdk.runtime.compiler import assembly

FMA = re.compile(r"\s(vfn?madd\w+|fmla)\s")
PRODUCT = re.compile(r"\s(mulp[sd])\s")
STACK = re.compile(r"\(%rsp|\[sp\b")
VECTORS = {"avx512": r"%zmm", "avx2": r"%ymm", "sse": r"%xmm", "neon": r"\bv\d+\.(4s|2d)"}
LABEL = re.compile(r"^(\.L\w+):")
JUMP = re.compile(r"\s(?:j\w+|b\.\w+|b|cbn?z\s+\w+,|tbn?z\s+\w+,.*,)\s+(\.L\w+)")


@dataclass
class Loop:
    """The instructions of an innermost loop."""

    lines: list[str]

    def count(self, pattern: re.Pattern[str]) -> int:
        return sum(bool(pattern.search(line)) for line in self.lines)


def forward_assembly(target: Target, dtype: dtypes.DType) -> str:
    x = np.ones((1, 1, 40, 8), np.float32)
    graph = bind(x, x, x, mask=rootdk.causal()).problem.graph
    spec = ForwardSpec(dtype, graph, frozenset(), schedule_for(target, narrow=True), dropout=False)
    return assembly(str(forward_module(spec, target)), target)


def function_lines(text: str, name: str) -> list[str]:
    body = text[re.search(rf"^{name}:", text, re.M).end() :]
    return body[: re.search(r"^\.Lfunc_end", body, re.M).start()].splitlines()


def innermost_loops(lines: list[str]) -> list[Loop]:
    """What lies between a label and a jump back to it, with no such pair inside."""
    labels = {match[1]: number for number, line in enumerate(lines) if (match := LABEL.match(line))}
    spans = [
        (labels[match[1]], number)
        for number, line in enumerate(lines)
        if (match := JUMP.search(line)) and labels.get(match[1], number) < number
    ]
    inner = [span for span in spans if not any(span != other and _holds(span, other) for other in spans)]
    return [Loop(lines[start : end + 1]) for start, end in inner]


def _holds(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


@pytest.mark.parametrize("dtype", [dtypes.FLOAT32, dtypes.FLOAT64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NEON], ids=lambda target: target.name)
def test_hot_loops_are_products_without_stack_traffic(target: Target, dtype: dtypes.DType) -> None:
    text = forward_assembly(target, dtype)
    product = FMA if target.fma else PRODUCT
    for vectors in range(1, schedule_for(target, narrow=True).vectors + 1):
        for name in ("scores", "sums"):
            loop = max(innermost_loops(function_lines(text, f"{name}_{vectors}")), key=lambda loop: loop.count(product))
            assert loop.count(product) >= 16
            assert loop.count(product) >= 0.4 * len(loop.lines) or not target.fma
            assert loop.count(re.compile(VECTORS[target.name])) >= loop.count(product)
            assert loop.count(STACK) == 0


@pytest.mark.parametrize("dtype", [dtypes.FLOAT16, dtypes.BFLOAT16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NEON], ids=lambda target: target.name)
def test_half_precision_compiles_everywhere(target: Target, dtype: dtypes.DType) -> None:
    text = forward_assembly(target, dtype)
    assert ("vcvtph2ps" in text) == (dtype is dtypes.FLOAT16 and target in (AVX512, AVX2))
    assert not re.search(r"\s(call|callq|bl)\s+__\w*(hf|bf)", text)  # a library's conversion of single numbers
