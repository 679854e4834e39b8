"""What this machine can do at most, measured in the same run as what is compared to it."""

import ctypes
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from rootdk.codegen import roofline as code
from rootdk.machine import host
from rootdk.planning.cost import Peaks
from rootdk.runtime.cache import kernels

__all__ = ["Roofline", "peaks"]

_FMA_TURNS = 400_000
_READ_BYTES = 64 << 20
"""Per thread: beyond any cache of its own, short enough to be timed in turns with the rest."""


class Roofline:
    """Peak multiply-adds and peak read bandwidth of ``threads`` cores, as calls to be timed in turns with others."""

    def __init__(self, threads: int) -> None:
        lanes = host().lanes(4)
        turn = code.READ_VECTORS * lanes
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        # Half and half: 12 chains x -> x / 2 + 1 / 2 that neither overflow nor become denormal.
        self._factors = [np.full(2 * lanes, 0.5, np.float32) for _ in range(threads)]
        self._memory = [np.ones(_READ_BYTES // 4, np.float32) for _ in range(threads)]
        self._fma_records = [_record(factors, _FMA_TURNS) for factors in self._factors]
        self._read_records = [_record(memory, memory.size // turn) for memory in self._memory]
        self.flops = 2 * lanes * code.CHAINS * _FMA_TURNS * threads
        """Floating-point operations that one ``multiply_add`` does (float32)."""
        self.bytes = sum(memory.nbytes for memory in self._memory)
        """Bytes that one ``read`` reads."""

    def multiply_add(self) -> None:
        """Run ``flops`` operations that need no memory."""
        self._on_all(code.FMA, self._fma_records)

    def read(self) -> None:
        """Read ``bytes`` bytes."""
        self._on_all(code.READ, self._read_records)

    def _on_all(self, kernel: str, records: list[np.ndarray]) -> None:
        function = _functions()[kernel]
        waiting = [self._pool.submit(function, record.ctypes.data) for record in records[1:]] if self._pool else []
        function(records[0].ctypes.data)
        for future in waiting:
            future.result()


def _record(data: np.ndarray, count: int) -> np.ndarray:
    """The words a kernel reads, with room for the widest vector of results behind them."""
    record = np.zeros(2 + 16, np.int64)
    record[:2] = data.ctypes.data, count
    return record


@cache
def peaks(threads: int) -> Peaks:
    """The peaks of ``threads`` cores, measured once in a process; some 50 ms."""
    roofline = Roofline(threads)
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
def _functions() -> Mapping[str, Callable[[int], None]]:
    target, names = host(), (code.FMA, code.READ)
    library = kernels().get("roofline", target, names, lambda: str(code.module(target)))
    # The function keeps its library alive: unloading it would leave a dangling address.
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    functions = {name: prototype(library[name]) for name in names}
    for function in functions.values():
        function.library = library  # type: ignore[attr-defined]
    return functions
