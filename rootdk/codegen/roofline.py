"""Two kernels that measure the machine instead of using it: multiply-adds out of registers, and reads out of memory.

They run on the same threads as attention does, and like it take their parts from a counter: the context's first word
counts, the second says how many parts there are, and a record for each follows. A record is 64-bit words: data pointer,
count, and a place for the result, which is stored only so that the optimiser can't throw the work away.
"""

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder
from rootdk.codegen.modules import new_module
from rootdk.dtypes import FLOAT32
from rootdk.machine import Target

__all__ = ["CHAINS", "FMA", "READ", "READ_VECTORS", "RECORD_WORDS", "module"]

FMA = "rootdk_roofline_fma"
READ = "rootdk_roofline_read"

CHAINS = 12
"""Independent accumulators: two pipes times a latency of four need eight, and 16 registers hold 12 and the factors."""
READ_VECTORS = 8
"""Vectors that one turn of the reading loop loads: whole cache lines on every target."""

RECORD_WORDS = 16
"""Of one part, with room for the widest vector of results."""
_DATA, _COUNT, _RESULT = 0, 8, 16
_PREFETCH = 4096
"""Bytes ahead; without it one core's reads of memory wait for each other."""


def module(target: Target) -> ir.Module:
    """Both kernels: FMA runs ``count`` times CHAINS vector multiply-adds, READ reads ``count`` times READ_VECTORS."""
    result = new_module("roofline", target)
    for name, body in ((FMA, _multiply_add), (READ, _read)):
        entry = Builder.define(result, name, [POINTER], (target, FLOAT32), export=True)
        _take_parts(entry, body(Builder.define(result, f"{name}_part", [POINTER], entry)))
    return result


def _take_parts(b: Builder, part: ir.Function) -> None:
    (context,) = b.function.args
    ask, work, done = (b.function.append_basic_block(name) for name in ("ask", "work", "none_left"))
    b.ir.branch(ask)
    b.ir.position_at_end(ask)
    number = b.ir.atomic_rmw("add", context, b.index(1), "monotonic")
    b.ir.cbranch(b.less(number, b.load(I64, context, 8)), work, done)
    b.ir.position_at_end(work)
    b.ir.call(part, [b.at(context, b.add(16, b.mul(number, 8 * RECORD_WORDS)))])
    b.ir.branch(ask)
    b.ir.position_at_end(done)
    b.finish()


def _multiply_add(b: Builder) -> ir.Function:
    (record,) = b.function.args
    data = b.load(POINTER, record, _DATA)
    factor, summand = b.load(b.vector, data), b.load(b.vector, data, b.size * b.lanes)
    # Different starts, or LLVM sees that the chains are one.
    sums = [b.slot(b.splat(float(chain))) for chain in range(CHAINS)]
    with b.loop(0, b.load(I64, record, _COUNT)):
        for sum_ in sums:
            sum_.value = b.fma(sum_.value, factor, summand)
    _store_total(b, record, [sum_.value for sum_ in sums])
    return b.finish()


def _read(b: Builder) -> ir.Function:
    (record,) = b.function.args
    data = b.load(POINTER, record, _DATA)
    step = READ_VECTORS * b.lanes * b.size
    sums = [b.slot(b.splat(0.0)) for _ in range(READ_VECTORS)]
    with b.loop(0, b.mul(b.load(I64, record, _COUNT), step), step) as offset:
        for line in range(0, step, 64):
            b.prefetch(data, b.add(offset, _PREFETCH + line))
        for number, sum_ in enumerate(sums):
            vector = b.load(b.vector, data, b.add(offset, number * b.lanes * b.size))
            sum_.value = b.ir.fadd(sum_.value, vector)
    _store_total(b, record, [sum_.value for sum_ in sums])
    return b.finish()


def _store_total(b: Builder, record: ir.Value, values: list[ir.Value]) -> None:
    total = values[0]
    for value in values[1:]:
        total = b.ir.fadd(total, value)
    b.store(total, record, _RESULT)
