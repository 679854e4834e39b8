"""Signatures: equal where a trace would be, and different, or missing, where it might not."""

import functools
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rootdk
from rootdk.mods.signature import sign

ARRAYS = tuple(np.random.default_rng(n).standard_normal((1, 2, 40, 8)).astype(np.float32) for n in range(3))
LIMIT = 3
TABLE = np.arange(80.0)


def limited(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * LIMIT + TABLE[q_idx + kv_idx] * math.pi


def helper(x: Any) -> Any:
    return x * LIMIT


def calling(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, factor: float = 2.0) -> Any:
    return helper(score) * factor


def closed(number: Any, array: Any = TABLE) -> Callable[..., Any]:
    return lambda score, b, h, q_idx, kv_idx: score * number + array[kv_idx]


def signature(*values: Any) -> Any:
    found = sign(*values)
    assert found is not None
    return found[0]


def test_functions_made_alike_are_one():
    assert signature(closed(2.5)) == signature(closed(2.5, TABLE + 1))
    assert hash(signature(closed(2.5))) == hash(signature(closed(2.5)))
    _, arrays = sign(closed(1, TABLE), TABLE, TABLE[::1])
    assert [array is TABLE for array in arrays] == [True, False]


@pytest.mark.parametrize("other", [1, 1.0, True, -0.0, np.float32(1), np.int64(1), "1", (1,), [1], None])
def test_numbers_differ_by_type_and_sign(other: Any):
    numbers = [1, 1.0, True, 0.0, np.float32(1), np.int64(1), "1", (1,), [1], None]
    same = [number for number in numbers if signature(number) == signature(other)]
    assert same == ([] if str(other) == "-0.0" else [other])
    assert [type(number) for number in same] == [type(other)] * len(same)
    assert signature(math.nan) == signature(float("nan"))


@pytest.mark.parametrize(
    "array", [TABLE[:79], TABLE.astype(np.float32), TABLE[None], np.ma.array(TABLE), TABLE.view(np.int64)],
    ids=["shape", "dtype", "rank", "class", "kind"],
)  # fmt: skip
def test_arrays_differ_by_what_a_graph_is_made_of(array: np.ndarray):
    assert signature(closed(1, array)) != signature(closed(1))


def test_one_array_twice_is_not_two():
    both = lambda a, b: lambda score, *_: score + a[0] * b[0]  # noqa: E731
    assert signature(both(TABLE, TABLE)) != signature(both(TABLE, TABLE + 0))


def test_globals_defaults_and_functions_that_are_called_count(monkeypatch: pytest.MonkeyPatch):
    module = __import__(__name__) if "." not in __name__ else __import__("sys").modules[__name__]
    before = signature(limited), signature(calling)
    monkeypatch.setattr(module, "LIMIT", 4)
    changed = signature(limited), signature(calling)
    assert before[0] != changed[0]
    assert before[1] != changed[1]
    monkeypatch.setattr(calling, "__defaults__", (3.0,))
    assert signature(calling) != changed[1]
    monkeypatch.setattr(module, "helper", lambda x: x)
    assert signature(calling) != changed[1]


def attributed() -> Callable[..., Any]:
    function = closed(1)
    function.scale = 2  # type: ignore[attr-defined]
    return function


@pytest.mark.parametrize(
    "value",
    [
        SimpleNamespace(x=1), itertools.count(), {"a": 1}, [1].append, object(), closed({1, 2}), closed(iter([1])),
        attributed(), functools.lru_cache(closed(1)), closed(SimpleNamespace(window=3)), closed(pytest),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_may_change_unseen_has_none(value: Any):
    assert sign(value) is None


def test_what_libraries_define_is_constant():
    for value in (np, math, np.exp, math.sqrt, np.float32, functools.partial(closed(1), 2)):
        assert signature(value) == signature(value)


def results(mod: Callable[..., Any]) -> np.ndarray:
    found: np.ndarray = rootdk.attention(*ARRAYS, score_mod=mod)
    return found


@pytest.mark.parametrize("asks", [False, True])
def test_no_result_is_stale(monkeypatch: pytest.MonkeyPatch, asks: bool):
    """After each change, what is remembered against a function that has no signature."""
    module = __import__("sys").modules[__name__]
    table, flag, many = np.linspace(0, 1, 80), np.array(True), [1.0, 2.0]

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        shifted = score + table[q_idx + kv_idx] * LIMIT
        if asks and not flag:
            return shifted - many[1]
        return helper(shifted) * many[0] + table[flag + 0]

    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: table.__setitem__(slice(None), table[::-1].copy() * 3),
        lambda: flag.__setitem__((), False),
        lambda: many.__setitem__(1, 7.0),
        lambda: monkeypatch.setattr(module, "LIMIT", 5),
        lambda: flag.__setitem__((), True),
        lambda: monkeypatch.setattr(module, "helper", lambda x: x - 1),
        lambda: many.__setitem__(0, -1.0),
    ]
    seen = []
    for change in changes:
        change()
        for _ in range(2):
            found = results(mod)
            fresh = lambda *pair: mod(*pair)  # noqa: E731
            fresh.unsigned = True
            assert sign(fresh) is None
            assert sign(mod) is not None
            np.testing.assert_array_equal(found, results(fresh))
        seen.append(found.tobytes())
    assert len(set(seen)) >= 6


def test_indices_that_leave_their_array_are_seen():
    index, table = np.zeros(40, np.int64), np.arange(5.0)

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[index[kv_idx]]

    results(mod)
    results(mod)
    index[7] = 5
    with pytest.raises(rootdk.BoundsError, match="5"):
        results(mod)
    index[7] = 4
    results(mod)
