"""Timing that can be compared: in turns, in one process, on the same inputs."""

import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rootdk.errors import ArgumentError

__all__ = ["Timing", "in_turns", "machine", "with_threads"]

_BURST = 2e-3
"""Seconds: shorter calls are repeated until one turn lasts this long."""
_SHORT = 20e-3
"""Seconds: calls shorter than this run once untimed before their turn."""


@dataclass(frozen=True)
class Timing:
    """Seconds for one call, over all rounds."""

    median: float
    best: float


def in_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, tick: Callable[[], None] = lambda: None
) -> dict[str, Timing]:
    """Time every call once a round, forwards and backwards in turn, so that a slow spell of the machine hits all.

    Before its turn a short call runs once untimed: worker threads of the one before it may still be spinning, and
    would be billed to it. ``tick`` is called after every round.
    """
    bursts, short = {}, {}
    for name, call in calls.items():
        call()
        once = _seconds(call, 1)
        bursts[name] = max(1, math.ceil(_BURST / max(once, 1e-9)))
        short[name] = once < _SHORT
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(rounds):
        order = list(calls) if round_number % 2 == 0 else list(calls)[::-1]
        for name in order:
            if short[name]:
                calls[name]()
            seconds[name].append(_seconds(calls[name], bursts[name]))
        tick()
    return {name: Timing(statistics.median(values), min(values)) for name, values in seconds.items()}


def _seconds(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def with_threads(count: int | None) -> int:
    """Give this process ``count`` cores (None: those it has) and every library in it as many threads; returns them.

    Array libraries read their thread count once, when they load, so with another count the program starts afresh.
    """
    if not hasattr(os, "sched_getaffinity"):
        if count is None:
            return os.cpu_count() or 1
        raise ArgumentError("threads: this system does not let a program choose its cores; leave the number out")
    cores = sorted(os.sched_getaffinity(0))
    if count is None or count == len(cores):
        return len(cores)
    if not 1 <= count <= len(cores):
        raise ArgumentError(f"threads: expected 1 to {len(cores)}, the cores of this process; got {count}")
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ROOTDK_NUM_THREADS"):
        os.environ[variable] = str(count)
    os.sched_setaffinity(0, cores[:count])
    return os.execv(sys.executable, sys.orig_argv)


def machine() -> dict[str, str | int]:
    """Processor, Python and library versions, as a result file should state them."""
    from importlib.metadata import PackageNotFoundError, version

    info: dict[str, str | int] = {"processor": _processor(), "python": platform.python_version()}
    for package in ("rootdk", "numpy", "llvmlite", "torch", "onnxruntime", "openvino", "jax"):
        try:
            info[package] = version(package)
        except PackageNotFoundError:
            continue
    return info


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
