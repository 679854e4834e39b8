"""What this machine can do at most, measured in the same run as what is compared to it."""

import time
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from rootdk.codegen import roofline as code
from rootdk.machine import host
from rootdk.planning.cost import Peaks
from rootdk.runtime import threads
from rootdk.runtime.cache import Source, kernels
from rootdk.runtime.compiler import Code

__all__ = ["Roofline", "peaks"]

_FMA_TURNS = 400_000
_READ_BYTES = 64 << 20
"""Per thread: beyond any cache of its own, short enough to be timed in turns with the rest."""


class Roofline:
    """Peak multiply-adds and peak read bandwidth of ``count`` cores, as calls to be timed in turns with others."""

    def __init__(self, count: int) -> None:
        lanes = host().lanes(4)
        turn = code.READ_VECTORS * lanes
        self._threads = count
        # Half and half: 12 chains x -> x / 2 + 1 / 2 that neither overflow nor become denormal.
        self._factors = [np.full(2 * lanes, 0.5, np.float32) for _ in range(count)]
        self._memory = [np.ones(_READ_BYTES // 4, np.float32) for _ in range(count)]
        self._fma_context = _context([(factors, _FMA_TURNS) for factors in self._factors])
        self._read_context = _context([(memory, memory.size // turn) for memory in self._memory])
        self.flops = 2 * lanes * code.CHAINS * _FMA_TURNS * count
        """Floating-point operations that one ``multiply_add`` does (float32)."""
        self.bytes = sum(memory.nbytes for memory in self._memory)
        """Bytes that one ``read`` reads."""

    def multiply_add(self) -> None:
        """Run ``flops`` operations that need no memory."""
        self._run(code.FMA, self._fma_context)

    def read(self) -> None:
        """Read ``bytes`` bytes."""
        self._run(code.READ, self._read_context)

    def _run(self, kernel: str, context: np.ndarray) -> None:
        # On the threads that attention runs on: a pool of its own would wait for cores that torch's workers spin on.
        context[0] = 0
        threads.run(_kernels()[kernel], context.ctypes.data, self._threads)


def _context(parts: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
    """A counter, how many parts there are, and (data, count, room for a result) for each."""
    context = np.zeros(2 + code.RECORD_WORDS * len(parts), np.int64)
    context[1] = len(parts)
    for number, (data, count) in enumerate(parts):
        context[2 + code.RECORD_WORDS * number :][:2] = data.ctypes.data, count
    return context


@cache
def peaks(count: int) -> Peaks:
    """The peaks of ``count`` cores, measured once in a process; some 50 ms."""
    roofline = Roofline(count)
    return Peaks(
        roofline.flops / _best(roofline.multiply_add),
        roofline.bytes / _best(roofline.read),
    )


def _best(call: Callable[[], None]) -> float:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@cache
def _kernels() -> Code:
    target = host()
    source = Source("roofline", lambda: str(code.module(target)), (code.FMA, code.READ))
    return kernels().get(source, target)
