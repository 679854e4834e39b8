"""Two kernels that measure the machine instead of using it: multiply-adds out of registers, and reads out of memory.

Each takes the address of a record of 64-bit words: data pointer, count, and a place for the result, which is stored
only so that the optimiser can't throw the work away.
"""

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder
from rootdk.dtypes import FLOAT32
from rootdk.machine import Target

__all__ = ["CHAINS", "FMA", "READ", "READ_VECTORS", "module"]

FMA = "rootdk_roofline_fma"
READ = "rootdk_roofline_read"

CHAINS = 12
"""Independent accumulators: two pipes times a latency of four need eight, and 16 registers hold 12 and the factors."""
READ_VECTORS = 8
"""Vectors that one turn of the reading loop loads: whole cache lines on every target."""

_DATA, _COUNT, _RESULT = 0, 8, 16
_PREFETCH = 4096
"""Bytes ahead; without it one core's reads of memory wait for each other."""


def module(target: Target) -> ir.Module:
    """Both kernels: FMA runs ``count`` times CHAINS vector multiply-adds, READ reads ``count`` times READ_VECTORS."""
    result = ir.Module("roofline")
    result.triple = target.triple
    _multiply_add(result, target)
    _read(result, target)
    return result


def _multiply_add(result: ir.Module, target: Target) -> None:
    b = Builder.define(result, FMA, [POINTER], (target, FLOAT32), export=True)
    (record,) = b.function.args
    data = b.load(POINTER, record, _DATA)
    factor, summand = b.load(b.vector, data), b.load(b.vector, data, b.size * b.lanes)
    # Different starts, or LLVM sees that the chains are one.
    sums = [b.slot(b.splat(float(chain))) for chain in range(CHAINS)]
    with b.loop(0, b.load(I64, record, _COUNT)):
        for sum_ in sums:
            sum_.value = b.fma(sum_.value, factor, summand)
    _store_total(b, record, [sum_.value for sum_ in sums])
    b.finish()


def _read(result: ir.Module, target: Target) -> None:
    b = Builder.define(result, READ, [POINTER], (target, FLOAT32), export=True)
    (record,) = b.function.args
    data = b.load(POINTER, record, _DATA)
    step = READ_VECTORS * b.lanes * b.size
    prefetch = ir.FunctionType(ir.VoidType(), [POINTER, ir.IntType(32), ir.IntType(32), ir.IntType(32)])
    fetch = ir.Function(result, prefetch, "llvm.prefetch.p0")
    for_reading, keep, of_data = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))
    sums = [b.slot(b.splat(0.0)) for _ in range(READ_VECTORS)]
    with b.loop(0, b.mul(b.load(I64, record, _COUNT), step), step) as offset:
        for line in range(0, step, 64):
            b.ir.call(fetch, [b.at(data, b.add(offset, _PREFETCH + line)), for_reading, keep, of_data])
        for number, sum_ in enumerate(sums):
            vector = b.load(b.vector, data, b.add(offset, number * b.lanes * b.size))
            sum_.value = b.ir.fadd(sum_.value, vector)
    _store_total(b, record, [sum_.value for sum_ in sums])
    b.finish()


def _store_total(b: Builder, record: ir.Value, values: list[ir.Value]) -> None:
    total = values[0]
    for value in values[1:]:
        total = b.ir.fadd(total, value)
    b.store(total, record, _RESULT)
