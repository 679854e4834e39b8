"""What users of other attention kernels met, as small cases: shapes, strides, tails, dtypes.

The cases whose answers are worked out by hand stand in test_fixed_answers.py.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_checks import BFLOAT16, DTYPES, VIEWS, assert_right, assert_same, random

import rootdk
from rootdk import dtypes, reference

SOME_DTYPES = [np.dtype(np.float32), BFLOAT16]


def count(kv_len: int, dtype: Any = np.float32) -> np.ndarray:
    """[kv_len, 1]: value j at key j."""
    return np.arange(kv_len).astype(dtype)[:, None]


def inside_nan(array: np.ndarray) -> np.ndarray:
    """The same array as part of a larger one that holds NaN before and after it, and between its rows."""
    around = np.full([size + 4 for size in array.shape], math.nan, array.dtype)
    place = around[tuple(slice(2, 2 + size) for size in array.shape)]
    place[...] = array
    return place


# blocks that hold nothing for some rows


@pytest.mark.parametrize("kv_len", [65, 129, 640, 1025, 2049])
@pytest.mark.parametrize("how", ["bias", "score_mod", "mask"])
def test_first_blocks_wholly_hidden(kv_len: int, how: str) -> None:
    i, j = np.ogrid[:kv_len, :kv_len]
    options: dict[str, Any] = {
        "bias": {"bias": np.where((i - 9 <= j) & (j <= i), 0, -math.inf).astype(np.float32)},
        "score_mod": {"score_mod": lambda s, b, h, q, kv: np.where((q - 9 <= kv) & (kv <= q), s, -math.inf)},
        "mask": {"mask": rootdk.sliding_window(9)},
    }[how]
    output = rootdk.attention(
        np.zeros((kv_len, 4), np.float32), np.ones((kv_len, 4), np.float32), count(kv_len), **options
    )
    expected = [i - 4.5 if i >= 9 else i / 2 for i in range(kv_len)]
    np.testing.assert_allclose(output[:, 0], expected, rtol=1e-6)


@pytest.mark.core
@pytest.mark.parametrize("kv_len", [3, 600, 2500])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_query_is_nan_in_its_row_alone(dtype: Any, kv_len: int) -> None:
    query, key, value = random((4, 8), (kv_len, 8), (kv_len, 3), dtype=dtype)
    whole = rootdk.attention(query, key, value, return_lse=True)
    query[2] = math.nan
    output, lse = rootdk.attention(query, key, value, return_lse=True)
    assert np.isnan(output[2]).all()
    assert np.isnan(lse[2])
    others = [0, 1, 3]
    assert_same((output[others], lse[others]), (whole[0][others], whole[1][others]))


# tails


@pytest.mark.core
@pytest.mark.parametrize("kv_len", [1, 2, 7, 31, 33, 38, 63, 64, 65, 127, 128, 129, 257, 1023, 1025])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_beyond_the_last_key_is_read(dtype: Any, kv_len: int) -> None:
    query, key = random((2, 5, 9), (2, kv_len, 9), dtype=dtype)
    value = np.ones((2, kv_len, 3), dtype)
    output = rootdk.attention(*map(inside_nan, (query, key, value)))
    assert_same(output, rootdk.attention(query, key, value))
    # weights sum to 1 within their rounding; half precision cannot show it
    np.testing.assert_allclose(dtypes.to_float64(output), 1, rtol=4 * float(ml_dtypes.finfo(dtype).eps))


@pytest.mark.parametrize(
    "q_len", [1, 2, 7, 8, 9, 23, 24, 25, 31, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 129, 257]
)
@pytest.mark.core
def test_nothing_beyond_the_last_query_is_read_or_written(q_len: int) -> None:
    query, key, value = random((2, q_len, 9), (2, 40, 9), (2, 40, 5))
    assert_same(rootdk.attention(inside_nan(query), key, value), rootdk.attention(query, key, value))
    assert_right(query, key, value)


@pytest.mark.parametrize("length", [8, 24, 128, 1024])
def test_lengths_that_are_whole_tiles(length: int) -> None:
    query, key, value = random((length, 8), (length, 8), (length, 8))
    assert_right(query, key, value)


# dtypes


@pytest.mark.parametrize("bias_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", SOME_DTYPES, ids=str)
def test_bias_is_added_in_the_accumulator(dtype: Any, bias_dtype: Any) -> None:
    query, key, value = random((5, 8), (7, 8), (7, 2), dtype=dtype)
    (bias,) = random((5, 7), dtype=bias_dtype)
    found = rootdk.attention(query, key, value, bias=bias)
    assert_same(found, rootdk.attention(query, key, value, bias=dtypes.to_float64(bias).astype(np.float32)))


def test_row_of_a_half_precision_lowest_number() -> None:
    query, key = np.full((1, 64), 4, np.float16), np.full((3, 64), -4, np.float16)
    bias = np.full((1, 3), np.finfo(np.float16).min)
    output = rootdk.attention(query, key, count(3, np.float16), bias=bias)
    np.testing.assert_array_equal(output, 1.0)


def test_bfloat16_bias_that_overflowed_hides() -> None:
    with np.errstate(over="ignore"):
        lowest = ml_dtypes.finfo(BFLOAT16).min + ml_dtypes.finfo(BFLOAT16).min
    bias = np.array([0, lowest, 0, lowest], BFLOAT16)
    query, key = np.zeros((1, 4), BFLOAT16), np.ones((4, 4), BFLOAT16)
    np.testing.assert_array_equal(rootdk.attention(query, key, count(4, BFLOAT16), bias=bias).astype(np.float32), 1.0)


def eager(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Attention as a framework runs it step by step: every intermediate is rounded to the inputs' type."""
    dtype = query.dtype

    def rounded(array: np.ndarray) -> np.ndarray:
        return array.astype(dtype).astype(np.float32)

    query, key, value = (array.astype(np.float32) for array in (query, key, value))
    scores = rounded(rounded(query @ key.swapaxes(-1, -2)) * np.float32(query.shape[-1] ** -0.5))
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    weights = rounded(exponentials / exponentials.sum(-1, keepdims=True))
    return rounded(weights @ value)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_half_precision_is_no_worse_than_eager(dtype: Any) -> None:
    query, key, value = (
        (5 * array).astype(dtype) for array in random((2, 240, 128), (2, 240, 128), (2, 240, 128), dtype=np.float64)
    )
    truth = reference.attention(query, key, value).output
    error, eager_error = (
        np.abs(output.astype(np.float64) - truth).max()
        for output in (rootdk.attention(query, key, value), eager(query, key, value))
    )
    assert error <= 1.1 * eager_error


# head dimensions

HEAD_DIMS = [1, 2, 3, 5, 6, 7, 17, 31, 80, 96, 112, 192, 256, 576]


@pytest.mark.core
@pytest.mark.parametrize("d_k", HEAD_DIMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_head_dimension(dtype: Any, d_k: int) -> None:
    for d_v in (1, 7, 33, 512):
        query, key, value = random((2, 5, d_k), (2, 19, d_k), (2, 19, d_v), dtype=dtype)
        assert_right(query, key, value)


@pytest.mark.parametrize("dtype", SOME_DTYPES, ids=str)
def test_zero_columns_change_nothing(dtype: Any) -> None:
    query, key, value = random((5, 17), (30, 17), (30, 3), dtype=dtype)
    wider = [np.pad(array, [(0, 0), (0, 15)]) for array in (query, key)]
    assert_same(rootdk.attention(*wider, value, scale=0.3), rootdk.attention(query, key, value, scale=0.3))


# where arrays come from


@pytest.mark.core
@pytest.mark.parametrize("how", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_equal_contiguous_arrays(dtype: Any, how: str) -> None:
    query, key, value = random((2, 3, 37, 20), (2, 3, 150, 20), (2, 3, 150, 12), dtype=dtype)
    expected = rootdk.attention(query, key, value, return_lse=True)
    view = VIEWS[how]
    for seen in ((view(query), key, value), (query, view(key), value), (query, key, view(value))):
        assert_same(rootdk.attention(*seen, return_lse=True), expected)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_repeats_without_memory(axis: int) -> None:
    arrays = random((2, 3, 37, 20), (2, 3, 150, 20), (2, 3, 150, 12))
    expanded = [np.broadcast_to(array.take([0], axis), array.shape) for array in arrays]
    assert_same(rootdk.attention(*expanded), rootdk.attention(*(array.copy() for array in expanded)))


def test_one_array_as_query_key_and_value() -> None:
    (x,) = random((1, 1, 6, 8))
    assert_same(rootdk.attention(x, x, x), rootdk.attention(x.copy(), x.copy(), x.copy()))


def test_inputs_stay_as_they_were() -> None:
    arrays = random((2, 3, 37, 20), (2, 3, 150, 20), (2, 3, 150, 12))
    for array in arrays:
        array.flags.writeable = False
    before = [array.copy() for array in arrays]
    rootdk.attention(*arrays, mask=rootdk.causal(align="end"))
    for array, copy in zip(arrays, before, strict=True):
        assert_same(array, copy)


# heads


@pytest.mark.core
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (48, 2), (40, 2), (80, 4), (6, 3), (5, 1), (64, 8)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_share_key_heads(dtype: Any, heads: int, kv_heads: int) -> None:
    value = np.broadcast_to(np.arange(kv_heads).astype(dtype)[:, None, None], (kv_heads, 3, 1))
    output = rootdk.attention(np.zeros((heads, 2, 4), dtype), np.ones((kv_heads, 3, 4), dtype), value)
    expected = np.arange(heads) // (heads // kv_heads)
    np.testing.assert_allclose(output[..., 0].astype(np.float64), np.repeat(expected[:, None], 2, 1), rtol=1e-6)


@pytest.mark.core
@pytest.mark.parametrize("empty", ["batch", "heads", "kv_heads", "q_len", "kv_len", "d_k", "d_v"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty_dimensions(dtype: Any, empty: str) -> None:
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 4, "kv_len": 5, "d_k": 6, "d_v": 7, empty: 0}
    if empty == "kv_heads":
        sizes["heads"] = 0
    batch, heads, kv_heads, q_len, kv_len, d_k, d_v = sizes.values()
    if empty == "heads":
        kv_heads = 2
    shapes = (batch, heads, q_len, d_k), (batch, kv_heads, kv_len, d_k), (batch, kv_heads, kv_len, d_v)
    query, key, value = random(*shapes, dtype=dtype)
    output, lse = rootdk.attention(query, key, value, return_lse=True)
    assert output.shape == (batch, heads, q_len, d_v)
    assert output.dtype == dtype
    assert lse.shape == (batch, heads, q_len)
    if empty == "kv_len":
        assert (output == 0).all()
        assert (lse == -math.inf).all()
    assert_right(query, key, value)
