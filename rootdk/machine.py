"""What a CPU is to a kernel: vector registers, instructions, caches and cores; described, and detected here."""

import os
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rootdk.config import config
from rootdk.errors import ArgumentError

__all__ = ["AVX2", "AVX512", "NEON", "PRESETS", "SSE", "Caches", "Target", "caches", "cores", "host", "host_features"]


@dataclass(frozen=True, slots=True)
class Target:
    """An instruction set to compile for. All of it shapes the code, so all of it is in the cache's key."""

    name: str
    triple: str
    cpu: str
    """LLVM's name of a generic CPU, not of a product: two machines with the same preset run the same bits."""
    features: str
    """LLVM's feature switches, on top of what ``cpu`` implies."""
    vector_bits: int
    registers: int
    """Vector registers."""
    fma: bool
    converts_half: bool
    """Converts vectors of float16 to float32 and back; where it does not, the code must do so with integers."""

    def lanes(self, dtype_size: int) -> int:
        """Elements of ``dtype_size`` bytes in one vector.

        >>> AVX2.lanes(4)
        8
        """
        return self.vector_bits // (8 * dtype_size)


_X86 = "x86_64-unknown-linux-gnu"
# x86-64-v4 is tuned to avoid 512-bit vectors, which early AVX-512 machines clocked down for; our kernels live on them.
AVX512 = Target("avx512", _X86, "x86-64-v4", "-prefer-256-bit", 512, 32, fma=True, converts_half=True)
AVX2 = Target("avx2", _X86, "x86-64-v3", "", 256, 16, fma=True, converts_half=True)
SSE = Target("sse", _X86, "x86-64", "", 128, 16, fma=False, converts_half=False)
NEON = Target("neon", "aarch64-unknown-linux-gnu", "generic", "+neon", 128, 32, fma=True, converts_half=True)
PRESETS = {target.name: target for target in (AVX512, AVX2, SSE, NEON)}

# What each preset lets LLVM use: everything that its generic CPU implies. The names are LLVM's.
_V2 = frozenset(["cx16", "popcnt", "sahf", "sse3", "ssse3", "sse4.1", "sse4.2"])
_V3 = _V2 | frozenset(["avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"])
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_NEEDS = {"avx512": _V4, "avx2": _V3, "sse": frozenset[str](), "neon": frozenset({"neon"})}
_ARCHITECTURE = {"avx512": "x86_64", "avx2": "x86_64", "sse": "x86_64", "neon": "aarch64"}

# Linux's names in /proc/cpuinfo where they differ from LLVM's.
_LINUX_NAMES = {
    "abm": "lzcnt",
    "asimd": "neon",
    "bmi1": "bmi",
    "lahf_lm": "sahf",
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
}
_SYSTEMS = {"linux": "unknown-linux-gnu", "darwin": "apple-darwin", "win32": "pc-windows-msvc"}


@cache
def host() -> Target:
    """The widest preset that this machine can run, or the one that ROOTDK_TARGET names.

    Raises:
        ArgumentError: ROOTDK_TARGET names instructions that this machine lacks, or no preset fits the machine.
    """
    return choose(config().target, _architecture(), host_features())


def choose(wanted: str, architecture: str, features: frozenset[str]) -> Target:
    """The preset ``wanted`` ("native": the widest) for a machine with ``features``, as ``host`` picks it."""
    runnable = [name for name in PRESETS if _ARCHITECTURE[name] == architecture and _NEEDS[name] <= features]
    if wanted == "native" and runnable:
        wanted = runnable[0]
    if wanted in runnable:
        return replace(PRESETS[wanted], triple=f"{architecture}-{_SYSTEMS.get(sys.platform, 'unknown-linux-gnu')}")
    if wanted == "native":
        raise ArgumentError(f"rootdk has no kernels for this machine's architecture, {architecture}")
    lacking = sorted(_NEEDS[wanted] - features) if _ARCHITECTURE[wanted] == architecture else [_ARCHITECTURE[wanted]]
    raise ArgumentError(
        f"environment variable ROOTDK_TARGET: this machine cannot run {wanted!r}, it lacks {', '.join(lacking)}; "
        f"expected one of native, {', '.join(runnable)}"
    )


@cache
def host_features() -> frozenset[str]:
    """This CPU's instruction-set extensions that the operating system lets us use, by LLVM's names."""
    # Reading the system's list takes 0.1 ms; loading LLVM, which also knows, takes 30 ms of the first call. Line by
    # line, for the list is as long as the machine has cores, and slow to make.
    with suppress(OSError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                return frozenset(_LINUX_NAMES.get(name, name) for name in value.split())
    from llvmlite.binding import get_host_cpu_features

    return frozenset(name for name, present in get_host_cpu_features().items() if present)


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of data cache that one core has to itself."""

    l1: int
    l2: int


@cache
def caches() -> Caches:
    """This machine's caches; a common small core's (32 KiB, 512 KiB) where the system does not tell."""
    sizes = {1: 32 << 10, 2: 512 << 10}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level = int((index / "level").read_text())
            kind = (index / "type").read_text().strip()
            size = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if level in sizes and kind in ("Data", "Unified") and size.endswith("K"):
            sizes[level] = int(size[:-1]) << 10
    return Caches(sizes[1], sizes[2])


@cache
def cores() -> int:
    """Physical cores that this process may use: two hardware threads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    available = os.sched_getaffinity(0)
    return len({_siblings(cpu) for cpu in available})


def _siblings(cpu: int) -> str:
    """Names the physical core of ``cpu``."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _architecture() -> str:
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)
