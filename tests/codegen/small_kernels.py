"""Compiling small pieces of kernel for this machine and running them on arrays."""

import ctypes
from collections.abc import Callable

import numpy as np
from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder
from rootdk.dtypes import FLOAT32, FLOAT64
from rootdk.errors import ArgumentError
from rootdk.machine import PRESETS, Target, choose, host_features
from rootdk.runtime.compiler import compile_object, load

Function = Callable[[Builder, ir.Value], ir.Value]


def runnable_targets() -> list[Target]:
    """The presets that this machine runs."""
    targets = []
    for name in PRESETS:
        try:
            targets.append(choose(name, "x86_64", host_features()))
        except ArgumentError:
            continue
    return targets


TARGETS = runnable_targets()


def call(text: str, target: Target, *words: int) -> None:
    """Run the module's entry ``kernel`` with a pointer to 64-bit ``words``."""
    library = load(compile_object(text, target, ["kernel"]), ["kernel"], target)
    arguments = (ctypes.c_int64 * max(1, len(words)))(*words)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library["kernel"])(ctypes.addressof(arguments))


def elementwise(function: Function, target: Target, real: type, *, vector: bool = True) -> str:
    """The module of a kernel that maps ``function`` over an array: words are input, output, vectors (or numbers)."""
    module = ir.Module()
    module.triple = target.triple
    accumulator = FLOAT64 if real is np.float64 else FLOAT32
    b = Builder.define(module, "kernel", [POINTER], (target, accumulator), export=True)
    source, result = (b.load(POINTER, b.function.args[0], 8 * i) for i in range(2))
    kind = b.vector if vector else b.real
    step = b.size * (b.lanes if vector else 1)
    with b.loop(0, b.load(I64, b.function.args[0], 16)) as i:
        offset = b.mul(i, step)
        b.store(function(b, b.load(kind, source, offset)), result, offset)
    b.finish()
    return str(module)


def apply(function: Function, x: np.ndarray, target: Target = TARGETS[0], *, vector: bool = True) -> np.ndarray:
    """The values of ``function``, compiled, at the array ``x``."""
    lanes = target.lanes(x.itemsize) if vector else 1
    padded = np.resize(x, -(-x.size // lanes) * lanes)
    out = np.empty_like(padded)
    text = elementwise(function, target, x.dtype.type, vector=vector)
    call(text, target, padded.ctypes.data, out.ctypes.data, padded.size // lanes)
    return out[: x.size]
