"""Compiled kernels by what shapes their code: in memory, then on disk, then compiled."""

import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path

from rootdk.config import config
from rootdk.machine import Target
from rootdk.runtime import compiler
from rootdk.runtime.compiler import Kernel
from rootdk.runtime.store import Entry, Status, Store, default_folder

__all__ = ["Counters", "KernelCache", "kernels"]

# A few hundred kilobytes each at most. A kernel that is in use outlives its eviction.
_KERNELS_IN_MEMORY = 256
_SOURCE_FOLDERS = (".", "codegen", "mods", "planning", "runtime")


@dataclass(slots=True)
class Counters:
    """How the kernels asked for since the start of the process were found."""

    compilations: int = 0
    disk_hits: int = 0
    memory_hits: int = 0


class KernelCache:
    """Kernels by key. Safe from many threads: one key is compiled once while others go on."""

    def __init__(self, store: Store, capacity: int = _KERNELS_IN_MEMORY) -> None:
        self._store = store
        self._capacity = capacity
        self._memory: OrderedDict[tuple[str, Target], Kernel] = OrderedDict()
        self._counters = Counters()
        self._start_locks()
        _living.add(self)

    def get(self, key: str, target: Target, entries: tuple[str, ...], build: Callable[[], str]) -> Kernel:
        """The machine code of ``key`` for ``target``; ``build`` gives its IR text where it must be compiled.

        Args:
            key: everything that shapes the code, in words: problem, graph, schedule. The rest (target, LLVM's and
                rootdk's versions) is added here.
            entries: the module's ``void (ptr)`` functions to export.

        Raises:
            CompileError: LLVM refuses the module. What ``build`` raises passes through.
        """
        full_key = (key, target)
        if kernel := self._remembered(full_key):
            return kernel
        with self._lock:
            turn = self._turns.setdefault(full_key, threading.Lock())
        with turn:
            try:
                return self._remembered(full_key) or self._found(full_key, entries, build)
            finally:
                with self._lock:
                    self._turns.pop(full_key, None)

    def counters(self) -> Counters:
        """A copy of the counters."""
        return replace(self._counters)

    def status(self) -> Status:
        """Whether kernels are kept on disk, and where or why not."""
        return self._store.status()

    def show(self) -> tuple[Entry, ...]:
        """What is on disk, the least recently used first; raises CacheError where it cannot be listed."""
        return self._store.entries()

    def clear(self) -> tuple[Entry, ...]:
        """Forget every kernel, in memory and on disk; returns what was on disk, raises CacheError where it stays."""
        with self._lock:
            dropped, self._memory = self._memory, OrderedDict()
        del dropped
        return self._store.clear()

    def _remembered(self, full_key: tuple[str, Target]) -> Kernel | None:
        with self._lock:
            kernel = self._memory.get(full_key)
            if kernel:
                self._memory.move_to_end(full_key)
                self._counters.memory_hits += 1
            return kernel

    def _found(self, full_key: tuple[str, Target], entries: tuple[str, ...], build: Callable[[], str]) -> Kernel:
        """The kernel from disk, or compiled and put there; remembered in either case."""
        key, target = full_key
        digest = _digest(key, target, entries)
        image = self._store.read(digest)
        compiled = image is None
        if image is None:
            image = compiler.compile_object(build(), target, entries)
            self._store.write(digest, image)
        kernel = compiler.load(image, entries, target)
        with self._lock:
            self._counters.compilations += compiled
            self._counters.disk_hits += not compiled
            self._memory[full_key] = kernel
            # Dropping a kernel unloads it, which may wait for LLVM: not under this lock.
            evicted = self._memory.popitem(last=False) if len(self._memory) > self._capacity else None
        del evicted
        return kernel

    def _start_locks(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, Target], threading.Lock] = {}


@cache
def kernels() -> KernelCache:
    """The cache of this process, in the folder that the environment names."""
    settings = config()
    return KernelCache(Store((settings.cache_dir or default_folder()) if settings.cache else None))


_living: "weakref.WeakSet[KernelCache]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Threads that held a lock at the fork do not exist here and would never release it."""
    for each in _living:
        each._start_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _digest(key: str, target: Target, entries: tuple[str, ...]) -> bytes:
    parts = (key, repr(astuple(target)), repr(entries), compiler.llvm_version(), _sources())
    return hashlib.sha256("\0".join(parts).encode()).digest()


@cache
def _sources() -> str:
    """A digest of the sources that kernels come from: rootdk's version, to the letter.

    A number would not do: an edit must never meet a kernel from before it. Reading them takes 1 ms, once a process.
    """
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for folder in _SOURCE_FOLDERS:
        for path in sorted((package / folder).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
