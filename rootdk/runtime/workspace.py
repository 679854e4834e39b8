"""Memory that a call needs while it runs, kept from call to call: the frame and the workers' scratch memory."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

__all__ = ["Workspace", "borrow"]

_ALIGNMENT = 4096
_KEPT_BYTES = 64 << 20
_free: list["Workspace"] = []
_lock = threading.Lock()


class Workspace:
    """``words`` 64-bit words of frame and ``scratch_bytes`` of page-aligned scratch memory, at fixed addresses."""

    def __init__(self, words: int, scratch_bytes: int) -> None:
        self._memory = np.empty(words * 8 + scratch_bytes + 2 * _ALIGNMENT, np.uint8)
        self.scratch_bytes = scratch_bytes
        start = -self._memory.ctypes.data % _ALIGNMENT
        self.scratch_address = self._memory.ctypes.data + start
        self.frame = self._memory[start + scratch_bytes :][: words * 8].view(np.int64)
        self.frame_address = self.scratch_address + scratch_bytes


@contextmanager
def borrow(words: int, scratch_bytes: int) -> Iterator[Workspace]:
    """A workspace that nobody else uses meanwhile; concurrent callers get one each."""
    scratch_bytes = -(-scratch_bytes // _ALIGNMENT) * _ALIGNMENT
    with _lock:
        fitting = [w for w in _free if w.scratch_bytes >= scratch_bytes and w.frame.size >= words]
        workspace = min(fitting, key=lambda w: w.scratch_bytes, default=None)
        if workspace:
            _free.remove(workspace)
    if workspace is None:
        workspace = Workspace(words, scratch_bytes)
    try:
        yield workspace
    finally:
        with _lock:
            _free.append(workspace)
            # the smallest go first: a larger one serves every call that they do
            _free.sort(key=lambda w: w.scratch_bytes)
            while len(_free) > 1 and sum(w.scratch_bytes for w in _free) > _KEPT_BYTES:
                _free.pop(0)
