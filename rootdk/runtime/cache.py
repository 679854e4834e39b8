"""Machine code by what shapes it: in memory, then on disk, then compiled."""

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
from rootdk.runtime.compiler import Code
from rootdk.runtime.store import Entry, Status, Store, default_folder

__all__ = ["Counters", "KernelCache", "Source", "kernels"]

# A few hundred kilobytes each at most. What is in use outlives its eviction.
_CODES_IN_MEMORY = 256
_SOURCE_FOLDERS = (".", "codegen", "mods", "planning", "runtime")


@dataclass(frozen=True, slots=True)
class Source:
    """What machine code comes from."""

    key: str
    """Everything that shapes the code, in words: problem, graph, schedule. The rest (target, LLVM's and rootdk's
    versions) is added by the cache."""
    build: Callable[[], str]
    """Gives the module's IR text, where it must be compiled."""
    entries: tuple[str, ...] = ()
    """The module's ``void (ptr)`` functions that are called from outside, under a guard."""
    functions: tuple[str, ...] = ()
    """Those that other code calls, which has this one as a library."""
    libraries: tuple["Source", ...] = ()
    """Whose functions this one calls. They follow from the key."""
    polished: bool = False
    """As ``compiler.compile_object`` takes it."""


@dataclass(slots=True)
class Counters:
    """How the kernels asked for since the start of the process were found; their libraries are not counted."""

    compilations: int = 0
    disk_hits: int = 0
    memory_hits: int = 0

    def count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)


class KernelCache:
    """Kernels by key. Safe from many threads: one key is compiled once while others go on."""

    def __init__(self, store: Store, capacity: int = _CODES_IN_MEMORY) -> None:
        self._store = store
        self._capacity = capacity
        self._memory: OrderedDict[tuple[str, Target], Code] = OrderedDict()
        self._counters = Counters()
        self._start_locks()
        _living.add(self)

    def get(self, source: Source, target: Target) -> Code:
        """The machine code of a kernel for ``target``, its libraries with it.

        Raises:
            CompileError: LLVM refuses the module. What ``source.build`` raises passes through.
        """
        code, found = self._code(source, target)
        with self._lock:
            self._counters.count(found)
        return code

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

    def _code(self, source: Source, target: Target) -> tuple[Code, str]:
        """The code, and which counter tells how it was found."""
        full_key = (source.key, target)
        if code := self._remembered(full_key):
            return code, "memory_hits"
        with self._lock:
            turn = self._turns.setdefault(full_key, threading.Lock())
        with turn:
            try:
                if code := self._remembered(full_key):
                    return code, "memory_hits"
                return self._found(source, target)
            finally:
                with self._lock:
                    self._turns.pop(full_key, None)

    def _remembered(self, full_key: tuple[str, Target]) -> Code | None:
        with self._lock:
            code = self._memory.get(full_key)
            if code:
                self._memory.move_to_end(full_key)
            return code

    def _found(self, source: Source, target: Target) -> tuple[Code, str]:
        """From disk, or compiled and put there; remembered in either case."""
        digest = _digest(source, target)
        image = self._store.read(digest)
        found = "compilations" if image is None else "disk_hits"
        if image is None:
            image = compiler.compile_object(source.build(), target, source.entries, polished=source.polished)
            self._store.write(digest, image)
        libraries = [self._code(library, target)[0] for library in source.libraries]
        code = compiler.load(image, source.entries, target, source.functions, libraries)
        with self._lock:
            self._memory[source.key, target] = code
            # Dropping code unloads it, which may wait for LLVM: not under this lock.
            evicted = self._memory.popitem(last=False) if len(self._memory) > self._capacity else None
        del evicted
        return code, found

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


def _digest(source: Source, target: Target) -> bytes:
    names = repr((source.entries, source.functions))
    parts = (source.key, repr(astuple(target)), names, compiler.llvm_version(), _sources())
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
