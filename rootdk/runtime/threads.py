"""Run a kernel on several threads: the workers of an OpenMP runtime in the process if there is one, else sleeping ones.

A kernel is a guarded ``void (ptr context)`` function (float_state.py) that takes its tasks from an atomic counter in
the context until none is left. So it is right for any number of threads to enter it, at any time: one that comes late
finds nothing to do, and a kernel must never wait for a thread that has not entered.
"""

import operator
import os
import sys
import threading
from ctypes import CFUNCTYPE, c_void_p
from functools import lru_cache
from typing import Any, cast

from rootdk.config import config
from rootdk.errors import ArgumentError
from rootdk.machine import cores
from rootdk.runtime import openmp

__all__ = ["get_num_threads", "run", "set_num_threads"]

_PROTOTYPE = CFUNCTYPE(None, c_void_p)
_chosen: int | None = None


def set_num_threads(count: int) -> None:
    """Let every later call, from any thread, use at most ``count`` threads.

    Raises:
        ArgumentError: ``count`` is not an integer of at least 1.
    """
    global _chosen
    try:
        number = 0 if isinstance(count, bool) else operator.index(count)
    except TypeError:
        number = 0
    if number < 1:
        raise ArgumentError(f"count: expected an integer of at least 1, got {count!r}; 1 runs on the calling thread")
    _chosen = number


def get_num_threads() -> int:
    """Threads that a call may use: as set, else ROOTDK_NUM_THREADS, else torch's setting if loaded, else the cores."""
    if number := _chosen or config().num_threads:
        return number
    # While another thread is still importing torch, the module is there and the function may not be.
    torch_setting = getattr(sys.modules.get("torch"), "get_num_threads", None)
    return cast(int, torch_setting()) if torch_setting else cores()


def run(kernel: int, context: int, threads: int) -> None:
    """Call the function at address ``kernel`` with ``context`` on up to ``threads`` threads; return when all have.

    The calling thread is one of them. An interrupt (Ctrl-C) is raised after the last thread has left the kernel, so
    the caller's memory is never in use when this returns or raises.
    """
    if threads == 1:
        _function(int(kernel))(context)
    elif parallel := openmp.parallel():
        parallel(kernel, context, threads, 0)
    else:
        _run_on_helpers(_function(int(kernel)), context, threads - 1)


@lru_cache(maxsize=1024)
def _function(address: int) -> Any:
    # By plain number: an Address as key would keep its kernel loaded. A number says where, not what, so a callable
    # stays right when another kernel comes to lie at the same place.
    return _PROTOTYPE(address)


class _Share:
    """One helper's part in one call: to be taken by the helper, or revoked by the caller, whichever comes first."""

    __slots__ = ("_owner", "context", "finished", "kernel", "left")

    def __init__(self, kernel: Any, context: int) -> None:
        self.kernel = kernel
        self.context = context
        self.left = False
        self.finished = threading.Lock()
        self.finished.acquire()
        self._owner: dict[str, str] = {}

    def claim(self, name: str) -> bool:
        """Whether it is ``name``'s: the first to ask has it for good, and may ask again."""
        return self._owner.setdefault("owner", name) == name  # setdefault is atomic

    def work(self) -> None:
        """In the helper: enter the kernel if the caller still wants it."""
        if self.claim("helper"):
            self.kernel(self.context)
            self.left = True
            self.finished.release()

    def settle(self) -> None:
        """In the caller, whose own part is done: revoke what was not begun, else wait. Repeat after an interrupt."""
        if not self.claim("caller") and not self.left:
            self.finished.acquire()


class _Helper:
    """A sleeping thread; between ``start`` and its return to ``_idle`` it belongs to one call."""

    __slots__ = ("_share", "_wake")

    def __init__(self) -> None:
        self._wake = threading.Lock()
        self._wake.acquire()
        self._share: _Share | None = None
        threading.Thread(target=self._loop, name="rootdk", daemon=True).start()

    def start(self, share: _Share) -> None:
        self._share = share
        self._wake.release()

    def _loop(self) -> None:
        while True:
            self._wake.acquire()
            share, self._share = self._share, None
            assert share is not None
            share.work()
            del share
            _idle.append(self)


_idle: list[_Helper] = []  # append and pop are atomic
_helpers = 0  # that exist, idle or not
_growth = threading.Lock()


def _run_on_helpers(kernel: Any, context: int, wanted: int) -> None:
    """Run with up to ``wanted`` helpers; with fewer, down to none, where other callers have them."""
    shares: list[_Share] = []
    try:
        while len(shares) < wanted and (helper := _take(wanted)):
            shares.append(_Share(kernel, context))
            helper.start(shares[-1])
        kernel(context)
    finally:
        _settle(shares)


def _settle(shares: list[_Share]) -> None:
    """Return, or raise what a signal handler raised, only when no helper is in the kernel."""
    interrupt: BaseException | None = None
    while True:
        try:
            for share in shares:
                share.settle()
            break
        except BaseException as error:
            interrupt = error
    if interrupt:
        raise interrupt


def _take(limit: int) -> _Helper | None:
    """An idle helper, or a new one where fewer than ``limit`` exist."""
    global _helpers
    try:
        return _idle.pop()
    except IndexError:
        pass
    with _growth:
        if _helpers >= limit:
            return None
        try:
            helper = _Helper()
        except RuntimeError:  # the interpreter is shutting down, or the system has no more threads
            return None
        _helpers += 1
        return helper


def _after_fork_in_child() -> None:
    """Only the forking thread lives on in the child: no helper does."""
    global _helpers, _growth
    _idle.clear()
    _helpers = 0
    _growth = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
