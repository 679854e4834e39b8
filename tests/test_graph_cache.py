"""Compiled kernels follow the graph: neither new functions, nor new values, nor new lengths compile or pile up."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rootdk
from rootdk import calls, reference
from rootdk.runtime.cache import kernels

COUNT = 300


def made() -> int:
    """Kernels that this process compiled or loaded."""
    counters = kernels().counters()
    return counters.compilations + counters.disk_hits


def arrays(length: int, heads: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(length)
    return [rng.standard_normal((1, heads, length, 8)).astype(np.float32) for _ in range(3)]


def assert_right(inputs: list[np.ndarray], **options: Any) -> None:
    found, expected = rootdk.attention(*inputs, **options), reference.attention(*inputs, **options).output
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def fresh_functions(number: int, length: int) -> dict[str, Any]:
    """Functions of one code and of ``number``'s own objects and values."""
    cap, slope, window = 1.0 + number, 0.01 * number, 1 + number % 40
    ids, weights = np.arange(length) // (1 + number % 9), np.random.default_rng(number).random(2).astype(np.float32)

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return cap * np.tanh(score / cap) - slope * weights[h] * abs(q - kv)

    return {"score_mod": score_mod, "mask": lambda b, h, q, kv: (ids[q] == ids[kv]) | (abs(q - kv) <= window)}


def test_fresh_functions_share_one_kernel() -> None:
    inputs = arrays(50)
    before = made()
    for number in range(COUNT):
        options = fresh_functions(number, 50)
        if number % 50 == 0:
            assert_right(inputs, **options)
        else:
            rootdk.attention(*inputs, **options)
    assert made() - before <= 1


def test_lengths_share_one_kernel() -> None:
    before = made()
    for length in range(3, 3 + COUNT):
        options = fresh_functions(7, length)
        if length % 50 == 3:
            assert_right(arrays(length), **options)
        else:
            rootdk.attention(*arrays(length, heads=1), **options)
    assert made() - before <= 1


def sum_of(terms: int, factor: int) -> Callable[..., Any]:
    return lambda s, b, h, q, kv: sum((s * n * factor for n in range(terms)), s + kv)


def test_as_many_kernels_as_graphs() -> None:
    inputs = arrays(20)
    before = made()
    for number in range(40):
        rootdk.attention(*inputs, score_mod=sum_of(number % 4, number))
    assert made() - before <= 4


def test_captured_arrays_are_let_go() -> None:
    def same(ids: np.ndarray) -> Callable[..., Any]:
        return lambda b, h, q, kv: ids[q] == ids[kv]

    ids = np.arange(20) // 4
    gone = weakref.ref(ids)
    rootdk.attention(*arrays(20), mask=same(ids))
    del ids
    gc.collect()
    assert gone() is None


def test_remembered_calls_are_bounded() -> None:
    for length in range(1, 200):
        rootdk.attention(*arrays(length, heads=1), mask=rootdk.causal())
    assert len(calls._known) <= calls._MOST_KNOWN


# Values are those at the time of the call ------------------------------------------------------------------------

_window = 3


class Changing:
    """A mask, and a way to change what it reads."""

    def __init__(self, mask: Any, change: Callable[[], None]) -> None:
        self.mask = mask
        self.change = change


def closure_number() -> Changing:
    window = 3

    def change() -> None:
        nonlocal window
        window = 9

    return Changing(lambda b, h, q, kv: abs(q - kv) <= window, change)


def global_number() -> Changing:
    def change() -> None:
        global _window
        _window = 12

    return Changing(lambda b, h, q, kv: abs(q - kv) <= _window, change)


def attribute() -> Changing:
    options = SimpleNamespace(window=3)
    return Changing(lambda b, h, q, kv: abs(q - kv) <= options.window, partial(setattr, options, "window", 9))


def list_item() -> Changing:
    windows = [3, 5]
    return Changing(
        lambda b, h, q, kv: (q - kv <= windows[0]) & (kv - q <= windows[1]), partial(windows.__setitem__, 0, 9)
    )


def list_length() -> Changing:
    starts = [3]

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        visible = kv == 0
        for start in starts:
            visible = visible | (kv == start)
        return visible

    return Changing(mask, partial(starts.append, 7))


def dictionary() -> Changing:
    windows = {"left": 3}
    return Changing(lambda b, h, q, kv: q - kv <= windows["left"], partial(windows.update, left=9))


def array_item() -> Changing:
    ids = np.arange(30) // 10
    return Changing(lambda b, h, q, kv: ids[q] == ids[kv], partial(ids.__setitem__, slice(5, 15), 7))


def array_object() -> Changing:
    holder = SimpleNamespace(ids=np.arange(30) // 10)
    return Changing(
        lambda b, h, q, kv: holder.ids[q] == holder.ids[kv], partial(setattr, holder, "ids", np.arange(30) // 4)
    )


def partial_function() -> Changing:
    def rule(windows: list[int], b: Any, h: Any, q: Any, kv: Any) -> Any:
        return abs(q - kv) <= windows[0]

    windows = [3]
    return Changing(partial(rule, windows), partial(windows.__setitem__, 0, 9))


def ready_made_documents() -> Changing:
    ids = np.arange(30) // 10
    return Changing(rootdk.documents(ids), partial(ids.__setitem__, slice(5, 15), 7))


def ready_made_composition() -> Changing:
    dense = np.tri(30, dtype=bool)
    return Changing(dense & rootdk.sliding_window(20), partial(dense.__setitem__, (slice(4, 20), 2), False))


CHANGES = [
    closure_number, global_number, attribute, list_item, list_length, dictionary, array_item, array_object,
    partial_function, ready_made_documents, ready_made_composition,
]  # fmt: skip


@pytest.mark.parametrize("case", CHANGES, ids=lambda case: case.__name__)
def test_a_change_is_seen_by_the_next_call(case: Callable[[], Changing]) -> None:
    changing, inputs = case(), arrays(30)
    first = rootdk.attention(*inputs, mask=changing.mask)
    assert_right(inputs, mask=changing.mask)
    before = made()
    changing.change()
    assert_right(inputs, mask=changing.mask)
    assert not np.array_equal(rootdk.attention(*inputs, mask=changing.mask), first)
    assert made() - before <= (case is list_length)


def test_scores_see_changes() -> None:
    inputs, slopes, bias = arrays(30), np.array([0.5, 0.25], np.float32), np.zeros((30, 30), np.float32)
    score_mod = (rootdk.alibi(slopes, align="start"), lambda score, b, h, q, kv: score + slopes[h] * kv)
    assert_right(inputs, score_mod=score_mod, bias=bias)
    before = made()
    slopes *= -1
    bias[3:, 2] = -np.inf
    assert_right(inputs, score_mod=score_mod, bias=bias)
    assert made() == before


# Memory ------------------------------------------------------------------------------------------------------------

MEMORY = """
import gc
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
from test_graph_cache import arrays, fresh_functions

import rootdk


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def go(start, stop):
    for number in range(start, stop):
        length = 3 + number % 300
        rootdk.attention(*arrays(length), **fresh_functions(number, length))
        rootdk.attention(*arrays(length), mask=rootdk.sliding_window(number))


go(0, 300)
before = resident()
go(300, 1200)
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat() -> None:
    here = str(__file__).rpartition("/")[0]
    done = subprocess.run([sys.executable, "-c", MEMORY, here], capture_output=True, text=True, check=True)
    # a leak of 5 KB a call, two results or a range table, would show
    assert int(done.stdout) < 4 * 2**20
