"""Calls on arrays that end, or start, where the process may not read or write; any step outside kills it.

Run as a program: it prints each call before it makes it, so that the last line names the one that failed.
"""

import ctypes
import itertools
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from attention_checks import DTYPES, assert_same, random

import rootdk

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_PROT_NONE = 0
_regions: list[mmap.mmap] = []
"""All that were made: they stay, as arrays in them may."""


def empty_at_edge(shape: Any, dtype: Any, edge: str) -> np.ndarray:
    """An array whose last ("end") or first ("start") byte is the last or first of what may be touched."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    inside = -(-max(size, 1) // PAGE) * PAGE
    region = mmap.mmap(-1, inside + 2 * PAGE)
    _regions.append(region)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    for guard in (start, start + PAGE + inside):
        if _libc.mprotect(guard, PAGE, _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = PAGE if edge == "start" else PAGE + inside - size
    return np.frombuffer(region, np.uint8, size, offset).view(dtype).reshape(shape)


def at_edge(array: np.ndarray, edge: str) -> np.ndarray:
    """A copy of ``array`` at the edge, in the order of its elements."""
    copy = empty_at_edge(array.shape, array.dtype, edge)
    copy[...] = array
    return copy


VIEWS: dict[str, Callable[[np.ndarray, str], np.ndarray]] = {
    "contiguous": at_edge,
    "rows backwards": lambda array, edge: at_edge(array[..., ::-1, :], edge)[..., ::-1, :],
    "elements backwards": lambda array, edge: at_edge(array[..., ::-1], edge)[..., ::-1],
    "transposed": lambda array, edge: at_edge(array.swapaxes(-1, -2), edge).swapaxes(-1, -2),
    "every other element": lambda array, edge: at_edge(np.repeat(array, 2, axis=-1), edge)[..., edge == "end" :: 2],
    "every other row": lambda array, edge: at_edge(np.repeat(array, 2, axis=-2), edge)[..., edge == "end" :: 2, :],
}

SIZES = [(1, 1, 1, 1), (3, 7, 3, 5), (8, 8, 8, 8), (25, 33, 17, 31), (49, 129, 20, 12), (70, 150, 24, 40)]
"""q_len, kv_len, d_k, d_v."""


def options(q_len: int, kv_len: int, edge: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a call may read besides query, key and value, for 2 batch elements and 4 heads."""

    def floats(*shape: int) -> np.ndarray:
        return at_edge(*random(shape), edge)

    def bools(*shape: int) -> np.ndarray:
        return at_edge(np.random.default_rng(0).random(shape) < 0.7, edge)

    def ids(*shape: int) -> np.ndarray:
        return at_edge(np.sort(np.random.default_rng(0).integers(0, 3, shape)), edge)

    yield "nothing else", {}
    yield "causal", {"mask": rootdk.causal(align="end")}
    yield "whole mask", {"mask": bools(2, 4, q_len, kv_len)}
    yield "mask of keys", {"mask": bools(kv_len)}
    yield "mask of queries", {"mask": bools(q_len, 1) & rootdk.causal(align="start")}
    yield "whole bias", {"bias": floats(2, 4, q_len, kv_len)}
    yield "bias of heads", {"bias": floats(4, 1, 1), "mask": rootdk.lengths(at_edge(np.array([kv_len, 1]), edge))}
    yield "documents", {"mask": rootdk.documents(ids(2, q_len), ids(2, kv_len))}
    yield "tables", {"score_mod": rootdk.relative_bias(floats(4, 9), align="end"), "sinks": floats(4)}


def calls() -> Iterator[tuple[str, tuple[np.ndarray, ...], str, dict[str, Any]]]:
    """A name, query, key and value, the edge, and the options."""
    for (q_len, kv_len, d_k, d_v), edge in itertools.product(SIZES, ("end", "start")):
        shapes = (2, 4, q_len, d_k), (2, 2, kv_len, d_k), (2, 2, kv_len, d_v)
        size = f"{q_len} x {kv_len}, {d_k}, {d_v}, {edge}"
        for dtype, how in itertools.product(DTYPES, VIEWS):
            if dtype != np.float32 and how in ("rows backwards", "every other row", "transposed"):
                continue
            arrays = tuple(VIEWS[how](array, edge) for array in random(*shapes, dtype=dtype))
            yield f"{dtype}, {how}, {size}", arrays, edge, {}
        arrays = tuple(at_edge(array, edge) for array in random(*shapes))
        for name, given in options(q_len, kv_len, edge):
            yield f"{name}, {size}", arrays, edge, given


def main() -> None:
    empty = np.empty
    for name, arrays, edge, given in calls():
        print(name, flush=True)
        expected = rootdk.attention(*arrays, return_lse=True, **given)
        # outputs too, and scratch memory where this call makes it
        np.empty = lambda shape, dtype=float, edge=edge: empty_at_edge(shape, dtype, edge)
        try:
            found = rootdk.attention(*arrays, return_lse=True, **given)
        finally:
            np.empty = empty
        assert_same(found, expected)
    print("done")


if __name__ == "__main__":
    main()
