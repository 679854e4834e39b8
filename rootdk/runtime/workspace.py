"""Memory that a call needs while it runs, kept from call to call: the frame and the workers' scratch memory."""

import ctypes
from typing import Any

import numpy as np

__all__ = ["Workspace", "address", "borrow", "give_back"]

_ALIGNMENT = 4096
_KEPT_BYTES = 64 << 20
_free: list["Workspace"] = []  # append and pop are atomic: no lock that a fork could leave taken
_HEADER = object.__basicsize__
_pointer_at = ctypes.c_void_p.from_address


def address(array: np.ndarray) -> int:
    """Of the array's first element.

    It is the field that C extensions read with PyArray_DATA. ``array.ctypes.data`` takes 1.7 microseconds, this 0.1,
    and a call needs five.
    """
    return _pointer_at(id(array) + _HEADER).value or 0


class Workspace:
    """``frame_bytes`` of frame and ``scratch_bytes`` of page-aligned scratch memory, at fixed addresses."""

    __slots__ = ("frame", "frame_address", "scratch_address", "size")

    def __init__(self, frame_bytes: int, scratch_bytes: int) -> None:
        memory = np.empty(frame_bytes + scratch_bytes + _ALIGNMENT, np.uint8)
        start = -address(memory) % _ALIGNMENT
        self.size = frame_bytes, scratch_bytes
        self.scratch_address = address(memory) + start
        self.frame: Any = memory[start + scratch_bytes :]
        self.frame_address = self.scratch_address + scratch_bytes


def borrow(frame_bytes: int, scratch_bytes: int) -> Workspace:
    """A workspace that nobody else uses until it is given back; concurrent callers get one each.

    ``scratch_bytes`` and ``frame_bytes`` are rounded up as a multiple of 8 needs.
    """
    try:
        found = _free.pop()
    except IndexError:
        return Workspace(frame_bytes, scratch_bytes)
    if found.size[0] >= frame_bytes and found.size[1] >= scratch_bytes:
        return found
    return Workspace(max(frame_bytes, found.size[0]), max(scratch_bytes, found.size[1]))


def give_back(workspace: Workspace) -> None:
    """Keep a workspace for later calls, unless too much is kept already."""
    if not _free or workspace.size[1] * (len(_free) + 1) <= _KEPT_BYTES:
        _free.append(workspace)
