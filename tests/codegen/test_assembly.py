"""What the compiler makes of the hot loops, for every instruction set, also those that this machine lacks."""

import re
from dataclasses import dataclass

import pytest

from rootdk import dtypes
from rootdk.codegen.key_panels import key_panels_module
from rootdk.codegen.query_gradients import query_gradients_module
from rootdk.codegen.query_panels import query_panels_module
from rootdk.codegen.tile_products import products_module
from rootdk.machine import AVX2, AVX512, NEON, SSE, Target
from rootdk.mods.expr import Graph
from rootdk.planning.schedule import BackwardSpec, ForwardSpec, ProductsSpec, QueryGradientsSpec, schedule_for
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


def hottest_loop(text: str, name: str, product: re.Pattern[str]) -> Loop:
    return max(innermost_loops(function_lines(text, name)), key=lambda loop: loop.count(product))


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("dtype", [dtypes.FLOAT32, dtypes.FLOAT64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NEON], ids=lambda target: target.name)
def test_hot_loops_are_products_without_stack_traffic(target: Target, dtype: dtypes.DType, hides: bool) -> None:
    tiles = schedule_for(target, narrow=True).tiles
    products, gradients = ProductsSpec(dtype, tiles, hides), QueryGradientsSpec(dtype, tiles, hides)
    text = assembly(str(products_module(products, target)), target, polished=True)
    text += assembly(str(query_gradients_module(gradients, target)), target, polished=True)
    product = FMA if target.fma else PRODUCT
    names = [f"{name}_{vectors}" for name in ("part", "sums") for vectors in products.widths]
    for name in (*names, *gradients.functions):
        loop = hottest_loop(text, name, product)
        assert loop.count(product) >= 16
        assert loop.count(product) >= 0.4 * len(loop.lines) or not target.fma
        assert loop.count(re.compile(VECTORS[target.name])) >= loop.count(product)
        assert loop.count(STACK) == 0


@pytest.mark.parametrize("dtype", [dtypes.FLOAT16, dtypes.BFLOAT16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NEON], ids=lambda target: target.name)
def test_half_precision_compiles_everywhere(target: Target, dtype: dtypes.DType) -> None:
    schedule = schedule_for(target, narrow=True)
    forward = ForwardSpec(dtype, Graph(), frozenset(), schedule, dropout=False).panels
    backward = BackwardSpec(dtype, Graph(), frozenset(), schedule, None, dropout=False).panels
    for module in (query_panels_module(forward, target), key_panels_module(backward, target)):
        text = assembly(str(module), target, polished=True)
        assert ("vcvtph2ps" in text) == (dtype is dtypes.FLOAT16 and target in (AVX512, AVX2))
        assert not re.search(r"\s(call|callq|bl)\s+__\w*(hf|bf)", text)  # a library's conversion of single numbers
