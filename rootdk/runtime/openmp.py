"""Find an OpenMP runtime that is already in the process, such as torch's."""

import ctypes
import os
import sys
from typing import Any

__all__ = ["parallel"]

_RUNTIMES = ("libgomp", "libomp", "libiomp5")
_usable = True
_searched_with_torch: bool | None = None
_found: Any = None


def parallel() -> Any:
    """The runtime's ``GOMP_parallel(function, argument, threads, flags)``, or None.

    Borrowing a runtime's workers costs 2 to 4 microseconds a call. Workers of our own beside it would fight with its
    workers, which spin for milliseconds after each of their tasks. None is ever loaded for this: without one, nobody
    spins.
    """
    global _searched_with_torch, _found
    # A module under import by another thread has no functions yet, and perhaps no libraries: look again later.
    with_torch = hasattr(sys.modules.get("torch"), "get_num_threads")
    if with_torch is not _searched_with_torch:
        _found = _search() if _usable else None
        _searched_with_torch = with_torch
    return _found


def _search() -> Any:
    # Of several, torch's: its operations are what runs between our calls.
    for path in sorted(_loaded_runtimes(), key=lambda path: "torch" not in path):
        try:
            function = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW).GOMP_parallel
        except (OSError, AttributeError):
            continue
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        function.restype = None
        return function
    return None


def _loaded_runtimes() -> set[str]:
    """Paths of the OpenMP runtimes that are mapped into this process; Linux only."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            paths = {line[line.index("/") :].rstrip("\n") for line in maps if "/lib" in line}
    except OSError:
        return set()
    return {path for path in paths if os.path.basename(path).startswith(_RUNTIMES)}


def _after_fork_in_child() -> None:
    """The workers of the parent's runtime are not here, and libgomp would wait for them for ever."""
    global _usable, _searched_with_torch
    _usable = False
    _searched_with_torch = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
