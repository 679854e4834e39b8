"""NaN and inf: without effect wherever they are hidden, and never swallowed where they are seen."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_checks import BFLOAT16, DTYPES, assert_same, random

import rootdk

Options = dict[str, Any]
POISONS = [math.nan, math.inf, -math.inf]


def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Output and LSE."""
    found: tuple[np.ndarray, np.ndarray] = rootdk.attention(query, key, value, return_lse=True, **options)
    return found


def by_array(shown: np.ndarray) -> Options:
    return {"mask": shown}


def by_bias(shown: np.ndarray) -> Options:
    return {"bias": np.where(shown, 0, -math.inf).astype(np.float32)}


def by_poisoned_bias(shown: np.ndarray) -> Options:
    """A mask, and NaN in the bias of what it hides."""
    return {"mask": shown, "bias": np.where(shown, 0, math.nan).astype(np.float32)}


def by_score(shown: np.ndarray) -> Options:
    return {"score_mod": lambda score, b, h, q, kv: np.where(shown[q, kv], score, -math.inf)}


def by_function(shown: np.ndarray) -> Options:
    return {"mask": lambda b, h, q, kv: shown[q, kv]}


def by_mask_under_score(shown: np.ndarray) -> Options:
    """A score function that would make something finite of what is hidden."""
    return {"mask": shown, "score_mod": rootdk.softcap(2.0)}


HIDE: list[Callable[[np.ndarray], Options]] = [
    by_array, by_bias, by_poisoned_bias, by_score, by_function, by_mask_under_score,
]  # fmt: skip


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("hide", HIDE)
@pytest.mark.parametrize("kv_len", [1, 5, 8, 33, 128, 130, 1030])
def test_hidden_keys_and_values(kv_len: int, hide: Callable[[np.ndarray], Options], poison: float) -> None:
    query, key, value = random((2, 27, 9), (2, kv_len, 9), (2, kv_len, 5))
    hidden = np.random.default_rng(kv_len).random(kv_len) < 0.5
    options = hide(np.broadcast_to(~hidden, (27, kv_len)))
    expected = attend(query, key, value, **options)
    for poisoned in ([key], [value], [key, value]):
        for array in poisoned:
            array[:, hidden] = poison
        assert_same(attend(query, key, value, **options), expected)
    assert not np.isnan(expected[0]).any()


@pytest.mark.core
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hidden_keys_and_values_of_every_dtype(dtype: Any, poison: float) -> None:
    query, key, value = random((2, 27, 9), (2, 140, 9), (2, 140, 5), dtype=dtype)
    hidden = np.random.default_rng(0).random(140) < 0.5
    expected = attend(query, key, value, mask=~hidden)
    key[:, hidden] = value[:, hidden] = poison
    assert_same(attend(query, key, value, mask=~hidden), expected)


MASKS = {
    "causal": rootdk.causal(align="end"),
    "window": rootdk.sliding_window(20, align="end"),
    "window and sink tokens": rootdk.sliding_window(20, align="end") | rootdk.sink_tokens(2),
    "prefix": rootdk.prefix_lm(30, align="start"),
    "not causal": ~rootdk.causal(align="start"),
    "function": rootdk.mask(lambda b, h, q, kv: (q + kv) % 3 == 0),
}


def dense(mask: Any, q_len: int, kv_len: int) -> np.ndarray:
    """[q_len, kv_len]: what is visible, by weights that are shown."""
    arrays = np.zeros((q_len, 1), np.float32), np.ones((kv_len, 1), np.float32), np.eye(kv_len, dtype=np.float32)
    return np.asarray(rootdk.attention(*arrays, mask=mask) > 0)


@pytest.mark.core
@pytest.mark.parametrize("q_len", [1, 8, 50, 150])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("where", ["key", "value", "both"])
def test_poison_reaches_the_rows_that_see_it_and_no_other(name: str, q_len: int, where: str) -> None:
    kv_len, mask = 150, MASKS[name]
    query, key, value = random((q_len, 9), (kv_len, 9), (kv_len, 5))
    sees = dense(mask, q_len, kv_len)
    expected = attend(query, key, value, mask=mask)
    for j in (0, 29, 64, 127, 128, 149):
        poisoned = {"key": key.copy(), "value": value.copy()}
        for operand in poisoned if where == "both" else [where]:
            poisoned[operand][j] = math.nan
        output, lse = attend(query, mask=mask, **poisoned)
        assert np.isnan(output[sees[:, j]]).all()
        assert_same(output[~sees[:, j]], expected[0][~sees[:, j]])
        assert_same(lse[~sees[:, j]], expected[1][~sees[:, j]])
        if where == "value":
            assert_same(lse, expected[1])
        else:
            assert np.isnan(lse[sees[:, j]]).all()


def test_one_poisoned_element_of_a_value_reaches_its_column_alone() -> None:
    query, key, value = random((30, 9), (150, 9), (150, 21))
    expected = attend(query, key, value, mask=MASKS["causal"])
    value[130, 17] = math.nan
    output, lse = attend(query, key, value, mask=MASKS["causal"])
    sees = dense(MASKS["causal"], 30, 150)[:, 130]
    assert np.isnan(output[sees, 17]).all()
    output[sees, 17] = expected[0][sees, 17]
    assert_same((output, lse), expected)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BFLOAT16], ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_visible_infinite_value(sign: int, dtype: Any) -> None:
    query, key, value = random((30, 9), (150, 9), (150, 5), dtype=dtype)
    value[140] = sign * math.inf
    output = rootdk.attention(query, key, value, mask=MASKS["causal"]).astype(np.float32)
    sees = dense(MASKS["causal"], 30, 150)[:, 140]
    np.testing.assert_array_equal(output[sees], sign * math.inf)
    assert np.isfinite(output[~sees]).all()


@pytest.mark.parametrize("name", [None, *MASKS])
@pytest.mark.parametrize("poison", POISONS)
def test_poisoned_query_reaches_its_row_alone(name: str | None, poison: float) -> None:
    query, key, value = random((50, 9), (150, 9), (150, 5))
    mask = MASKS[name] if name else None
    expected = attend(query, key, value, mask=mask)
    query[13, 3] = poison
    output, lse = attend(query, key, value, mask=mask)
    others = np.arange(50) != 13
    assert_same((output[others], lse[others]), (expected[0][others], expected[1][others]))
    if math.isnan(poison):
        assert np.isnan(output[13]).all()
        assert np.isnan(lse[13])


@pytest.mark.parametrize("poison", POISONS)
def test_row_that_sees_nothing_is_zero_whatever_its_query_holds(poison: float) -> None:
    query, key, value = random((50, 9), (150, 9), (150, 5))
    query[13] = poison
    output, lse = attend(query, key, value, mask=(np.arange(50) != 13)[:, None])
    assert (output[13] == 0).all()
    assert lse[13] == -math.inf


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_poisoned_bias_reaches_its_row_alone(poison: float) -> None:
    query, key, value = random((50, 9), (150, 9), (150, 5))
    (bias,) = random((50, 150), seed=1)
    expected = attend(query, key, value, bias=bias)
    bias[13, 140] = poison
    output, lse = attend(query, key, value, bias=bias)
    others = np.arange(50) != 13
    assert_same((output[others], lse[others]), (expected[0][others], expected[1][others]))
    assert np.isnan(output[13]).all()


def test_underflowed_weight_of_a_poisoned_value_is_seen() -> None:
    """A weight too small for a number is still one that the row sees: 0 * NaN is NaN."""
    query, key, value = np.ones((1, 1)), np.array([[0.0], [-1e6]]), np.array([[1.0], [math.nan]])
    for dtype in (np.float32, np.float64):
        arrays = (array.astype(dtype) for array in (query, key, value))
        assert np.isnan(rootdk.attention(*arrays, mask=np.ones((1, 2), np.bool_)))
        assert np.isnan(rootdk.attention(*(a.astype(dtype) for a in (query, key, value))))


def test_padding_lanes_do_not_reach_score_functions() -> None:
    """Scores beyond the last key do not count, whatever a score function makes of -inf."""
    ones = np.ones((65, 1), np.float32)
    functions: list[Any] = [
        rootdk.softcap(2.0),
        lambda s, b, h, q, kv: np.abs(s),
        lambda s, b, h, q, kv: np.clip(s, -1, 1),
        lambda s, b, h, q, kv: s * 0,
        lambda s, b, h, q, kv: np.where(np.isfinite(s), s, 0),
        lambda s, b, h, q, kv: 1 / (1 + np.exp(-s)),
    ]
    for function in functions:
        for mask in (None, rootdk.causal()) if function is functions[0] else (None,):
            output = rootdk.attention(np.zeros((65, 1), np.float32), ones, ones, score_mod=function, mask=mask)
            np.testing.assert_array_equal(output, 1)
