"""A row's bits depend on its query, on the keys and values that it sees and where they stand, and on nothing else."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from attention_checks import BFLOAT16, DTYPES, assert_same, random

import rootdk

BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN, D_K, D_V = 2, 4, 2, 61, 1050, 20, 12
"""More than one chunk of keys, with the boundary among the causal positions; several panels of queries; tails."""


def inputs(dtype: Any = np.float32) -> list[np.ndarray]:
    return random(
        (BATCH, HEADS, Q_LEN, D_K), (BATCH, KV_HEADS, KV_LEN, D_K), (BATCH, KV_HEADS, KV_LEN, D_V), dtype=dtype
    )


def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Output and LSE."""
    found: tuple[np.ndarray, np.ndarray] = rootdk.attention(query, key, value, return_lse=True, **options)
    return found


def part(pair: tuple[np.ndarray, np.ndarray], *index: Any) -> tuple[np.ndarray, np.ndarray]:
    """The same rows of output and LSE."""
    return pair[0][index], pair[1][index]


def score(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return np.tanh(s) * 3


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": rootdk.causal(align="end")},
    "window": {"mask": rootdk.sliding_window(700, 300, align=760)},
    "score": {"score_mod": score},
    "alibi and lengths": {
        "score_mod": [rootdk.softcap(3.0), rootdk.alibi(align="end")],
        "mask": rootdk.lengths(np.array([1040, 70])),
    },
}
INDEPENDENT = list(OPTIONS)[:-1]
"""Options that do not depend on how many heads and batch elements there are."""


@pytest.fixture(params=OPTIONS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(OPTIONS[request.param])


@pytest.fixture
def threads() -> Iterator[Any]:
    before = rootdk.get_num_threads()
    yield rootdk.set_num_threads
    rootdk.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_repeated_call(dtype: Any) -> None:
    arrays = inputs(dtype)
    assert_same(attend(*arrays), attend(*arrays))


@pytest.mark.core
def test_number_of_threads(options: dict[str, Any], threads: Any) -> None:
    found = []
    for number in (1, 2, 3):
        threads(number)
        found.append(attend(*inputs(), **options))
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


@pytest.mark.parametrize("name", INDEPENDENT)
def test_batch_size_and_number_of_heads(name: str) -> None:
    query, key, value = inputs()
    whole = attend(query, key, value, **OPTIONS[name])
    for b in range(BATCH):
        one = slice(b, b + 1)
        assert_same(attend(query[one], key[one], value[one], **OPTIONS[name]), part(whole, one))
        first, last = (attend(query[b, h], key[b, h // 2], value[b, h // 2], **OPTIONS[name]) for h in (0, 3))
        assert_same(first, part(whole, b, 0))
        assert_same(last, part(whole, b, 3))


@pytest.mark.parametrize("other", [1e30, 0.0, math.nan, math.inf])
def test_neighbouring_rows(options: dict[str, Any], other: float) -> None:
    query, key, value = inputs()
    expected = attend(query, key, value, **options)
    kept = np.arange(Q_LEN) % 3 == 1
    query[:, :, ~kept] = other
    rows = slice(None), slice(None), kept
    assert_same(part(attend(query, key, value, **options), *rows), part(expected, *rows))


def test_layout(options: dict[str, Any]) -> None:
    arrays = inputs()
    expected = attend(*arrays, **options)
    found = attend(*(np.ascontiguousarray(a.swapaxes(1, 2)) for a in arrays), layout="bshd", **options)
    assert_same(tuple(array.swapaxes(1, 2) for array in found), expected)


def test_strides(options: dict[str, Any]) -> None:
    query, key, value = inputs()
    expected = attend(query, key, value, **options)
    views = (
        np.repeat(query, 2, axis=-1)[..., ::2],
        np.ascontiguousarray(key[..., ::-1, :])[..., ::-1, :],
        np.asfortranarray(value),
    )
    assert_same(attend(*views, **options), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shared_and_repeated_key_heads(dtype: Any) -> None:
    query, key, value = inputs(dtype)
    assert_same(attend(query, key.repeat(2, 1), value.repeat(2, 1)), attend(query, key, value))


# lengths

DECODED = [1, 2, 5, 8, 24, 30]
"""Queries in one call: token by token, and in chunks of several sizes."""


@pytest.mark.core
@pytest.mark.parametrize("size", DECODED)
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BFLOAT16], ids=str)
def test_prefill_in_chunks(dtype: Any, size: int) -> None:
    query, key, value = inputs(dtype)
    whole = attend(query, key, value, mask=rootdk.causal(align="end"))
    for start in range(0, Q_LEN, size):
        end = min(start + size, Q_LEN)
        last = KV_LEN - Q_LEN + end
        rows = attend(query[:, :, start:end], key[:, :, :last], value[:, :, :last], mask=rootdk.causal(align="end"))
        assert_same(rows, part(whole, slice(None), slice(None), slice(start, end)))


@pytest.mark.core
@pytest.mark.parametrize("kv_len", [1, 127, 128, 129, 1023, 1024, 1025, 2048, 2049, 3000])
def test_one_query_is_a_row_of_many(kv_len: int) -> None:
    query, key, value = random((2, 40, D_K), (2, kv_len, D_K), (2, kv_len, D_V))
    whole = attend(query, key, value)
    for row in (0, 7, 8, 39):
        assert_same(attend(query[:, row : row + 1], key, value), part(whole, slice(None), slice(row, row + 1)))


def test_position_of_a_row_among_others() -> None:
    query, key, value = inputs()
    whole = attend(query, key, value)
    order = np.random.default_rng(1).permutation(Q_LEN)
    moved = attend(query[:, :, order], key, value)
    assert_same(moved, part(whole, slice(None), slice(None), order))


# hidden keys


@pytest.mark.parametrize("kept", [1, 128, 500, 1024, 1049])
@pytest.mark.parametrize("how", ["built-in", "array", "bias"])
def test_number_of_hidden_keys_that_follow(kept: int, how: str) -> None:
    query, key, value = inputs()
    shown = np.arange(KV_LEN) < kept
    bias = np.where(shown, 0, -math.inf).astype(np.float32)

    def rows(kv_len: int) -> tuple[np.ndarray, np.ndarray]:
        options: dict[str, Any] = {
            "built-in": {"mask": rootdk.sink_tokens(kept)},
            "array": {"mask": shown[:kv_len]},
            "bias": {"bias": bias[:kv_len]},
        }[how]
        return attend(query, key[:, :, :kv_len], value[:, :, :kv_len], **options)

    assert_same(rows(KV_LEN), rows(kept))


def test_contents_of_hidden_keys(options: dict[str, Any]) -> None:
    query, key, value = inputs()
    shown = np.random.default_rng(2).random(KV_LEN) < 0.5
    options["mask"] = options.get("mask", rootdk.sink_tokens(KV_LEN)) & shown
    expected = attend(query, key, value, **options)
    key[:, :, ~shown] *= -30
    value[:, :, ~shown] += 1e6
    assert_same(attend(query, key, value, **options), expected)
