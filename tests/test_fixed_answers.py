"""Small cases whose answers can be worked out by hand.

Two probes do most of the work. With query 0 every visible key weighs the same, so with value j at key j (``COUNT``) the
output is the mean of the visible j. With the identity as value the output is the weights themselves.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import rootdk
from rootdk import masks, reference, scores
from rootdk.errors import DTypeError, ShapeError


class Answer(NamedTuple):
    output: np.ndarray
    lse: np.ndarray


def by_reference(query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: Any) -> Answer:
    result = reference.attention(query, key, value, **options)
    return Answer(result.output, result.lse)


def by_kernel(query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: Any) -> Answer:
    return Answer(*rootdk.attention(query, key, value, return_lse=True, **options))


Attend = Callable[..., Answer]


@pytest.fixture(params=[by_reference, by_kernel])
def attend(request: pytest.FixtureRequest) -> Attend:
    found: Attend = request.param
    return found


def count(kv_len: int) -> np.ndarray:
    """[kv_len, 1]: value j at key j."""
    return np.arange(kv_len, dtype=np.float64)[:, None]


def even(attend: Attend, q_len: int, kv_len: int, **options: Any) -> list[float]:
    """Each row's mean of the keys that it sees."""
    output = attend(np.zeros((q_len, 4)), np.ones((kv_len, 4)), count(kv_len), **options).output
    return [float(mean) for mean in output[:, 0]]


def random(*shapes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


# rows without keys


@pytest.mark.parametrize("hide", ["mask", "bias", "score_mod", "function"])
def test_row_without_keys_is_zero(attend: Attend, hide: str) -> None:
    query, key, value = random((3, 4), (5, 4), (5, 2))
    mask = np.ones((3, 5), np.bool_)
    mask[1] = False
    bias = np.where(mask, 0.0, -math.inf)
    options: dict[str, Any] = {
        "mask": {"mask": mask},
        "bias": {"bias": bias},
        "score_mod": {"score_mod": lambda score, b, h, q, kv: score + bias[q, kv]},
        "function": {"mask": lambda b, h, q, kv: q != 1},
    }[hide]
    output, lse = attend(query, key, value, **options)
    whole = attend(query, key, value)
    assert (output[1] == 0).all()
    assert lse[1] == -math.inf
    np.testing.assert_allclose(output[[0, 2]], whole.output[[0, 2]], rtol=1e-14)
    np.testing.assert_allclose(lse[[0, 2]], whole.lse[[0, 2]], rtol=1e-14)


def test_head_without_keys_is_zero(attend: Attend) -> None:
    query, key, value = random((3, 3, 4), (3, 5, 4), (3, 5, 2))
    mask = np.array([True, True, False])[:, None, None]
    output, lse = attend(query, key, value, mask=mask)
    assert (output[2] == 0).all()
    assert (lse[2] == -math.inf).all()
    assert np.isfinite(output).all()


# hidden and visible NaN


@pytest.mark.parametrize("hide", ["mask", "bias", "score_mod"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["key", "value", "both"])
def test_hidden_poison_has_no_effect(attend: Attend, where: str, poison: float, hide: str) -> None:
    query, key, value = random((4, 8), (6, 8), (6, 3))
    mask = np.arange(6) != 5
    bias = np.where(mask, 0.0, -math.inf)
    options: dict[str, Any] = {
        "mask": {"mask": mask},
        "bias": {"bias": bias},
        "score_mod": {"score_mod": lambda score, b, h, q, kv: np.where(kv == 5, -math.inf, score)},
    }[hide]
    key[5] = value[5] = 0
    expected = attend(query, key, value, **options)
    if where != "value":
        key[5] = poison
    if where != "key":
        value[5] = poison
    found = attend(query, key, value, **options)
    np.testing.assert_array_equal(found.output, expected.output)
    np.testing.assert_array_equal(found.lse, expected.lse)
    np.testing.assert_allclose(found.output, attend(query, key[:5], value[:5]).output, rtol=1e-12)


@pytest.mark.parametrize("kv_len", [3, 600])
def test_nan_query_is_nan_in_its_row(attend: Attend, kv_len: int) -> None:
    query, key, value = random((4, 8), (kv_len, 8), (kv_len, 3))
    whole = attend(query, key, value)
    query[2] = math.nan
    output, lse = attend(query, key, value)
    assert np.isnan(output[2]).all()
    assert np.isnan(lse[2])
    np.testing.assert_array_equal(output[[0, 1, 3]], whole.output[[0, 1, 3]])


@pytest.mark.parametrize("where", ["key", "value"])
def test_visible_nan_is_nan_in_the_rows_that_see_it(attend: Attend, where: str) -> None:
    query, key, value = random((6, 8), (6, 8), (6, 3))
    whole = attend(query, key, value, mask=masks.causal())
    {"key": key, "value": value}[where][3] = math.nan
    output = attend(query, key, value, mask=masks.causal()).output
    np.testing.assert_array_equal(output[:3], whole.output[:3])
    assert np.isnan(output[3:]).all()


def test_infinite_bias_is_nan_in_its_row(attend: Attend) -> None:
    value = np.array([[0.0], [5.0], [9.0]])
    bias = np.array([[0, math.inf, 0], [0, 0, 0]])
    output = attend(np.zeros((2, 1)), np.zeros((3, 1)), value, bias=bias).output
    assert np.isnan(output[0]).all()
    assert output[1] == pytest.approx(14 / 3)


def test_hidden_stays_hidden_whatever_comes_after(attend: Attend) -> None:
    def first(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return np.where(kv == 0, -math.inf, score)

    bias = np.array([math.inf, 0.0, 0.0])
    assert even(attend, 2, 3, score_mod=[first, scores.softcap(2.0)], bias=bias) == [1.5, 1.5]


# arithmetic of masks and scores


def test_row_of_the_lowest_finite_number_is_an_ordinary_row(attend: Attend) -> None:
    query, key = np.full((1, 64), 4, np.float16), np.full((3, 64), -4, np.float16)
    value = np.array([[1], [2], [6]], np.float16)
    bias = np.full((1, 3), np.finfo(np.float16).min)
    assert attend(query, key, value, bias=bias, scale=1.0).output == pytest.approx(3.0, rel=1e-3)


def test_low_precision_bias_that_overflowed_hides(attend: Attend) -> None:
    with np.errstate(over="ignore"):
        lowest = np.finfo(np.float16).min + np.finfo(np.float16).min
    bias = np.array([0, lowest, 0, lowest], np.float16)
    assert even(attend, 1, 4, bias=bias) == [1.0]


def test_bias_is_not_scaled(attend: Attend) -> None:
    query, key = random((1, 2), (2, 2))
    bias = np.array([0, math.log(3)])
    output = attend(query, key, np.eye(2), scale=0, bias=bias).output
    np.testing.assert_allclose(output, [[0.25, 0.75]], rtol=1e-15)


def test_softcap_comes_before_the_mask(attend: Attend) -> None:
    ones = np.ones((65, 1))
    output = attend(np.zeros((65, 1)), ones, ones, score_mod=scores.softcap(2.0), mask=masks.causal()).output
    np.testing.assert_allclose(output, ones, rtol=1e-14)


def test_scores_far_from_zero(attend: Attend) -> None:
    key = np.array([[151.29], [151.29 - math.log(3)]])
    output = attend(np.ones((1, 1)), key, np.eye(2)).output
    np.testing.assert_allclose(output, [[0.75, 0.25]], rtol=1e-6)


def test_products_above_the_range_of_half_precision(attend: Attend) -> None:
    query, key = np.full((8, 128), 256, np.float16), np.full((8, 128), 256, np.float16)
    output = attend(query, key, count(8).astype(np.float16)).output
    np.testing.assert_allclose(output, np.full((8, 1), 3.5), rtol=1e-3)


def test_double_precision_is_kept(attend: Attend) -> None:
    query, key, value = random((5, 8), (7, 8), (7, 3))
    score = query @ key.T / math.sqrt(8)
    weights = np.exp(score - score.max(-1, keepdims=True))
    expected = weights @ value / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(attend(query, key, value).output, expected, rtol=1e-12)


# positions


@pytest.mark.parametrize(
    ("q_len", "kv_len", "align", "expected"),
    [
        (2, 5, "start", [0, 0.5]),
        (1, 8, "start", [0]),
        (5, 2, "start", [0, 0.5, 0.5, 0.5, 0.5]),
        (2, 5, "end", [1.5, 2]),
        (1, 8, "end", [3.5]),
        (5, 2, "end", [0, 0, 0, 0, 0.5]),
        (2, 5, 1, [0.5, 1]),
    ],
)
def test_causal_positions(attend: Attend, q_len: int, kv_len: int, align: Any, expected: list[float]) -> None:
    assert even(attend, q_len, kv_len, mask=masks.causal(align=align)) == pytest.approx(expected)


@pytest.mark.parametrize(("left", "last"), [(2, 6.0), (3, 5.5), (7, 3.5), (8, 3.5), (None, 3.5)])
def test_window_counts_keys_back(attend: Attend, left: int | None, last: float) -> None:
    assert even(attend, 8, 8, mask=masks.sliding_window(left))[7] == last


def test_window_with_both_sides(attend: Attend) -> None:
    assert even(attend, 6, 6, mask=masks.sliding_window(1, 2)) == [1.0, 1.5, 2.5, 3.5, 4.0, 4.5]


def test_first_blocks_wholly_hidden(attend: Attend) -> None:
    i, j = np.ogrid[:640, :640]
    bias = np.where((i - 9 <= j) & (j <= i), 0.0, -math.inf)
    expected = [i - 4.5 if i >= 9 else i / 2 for i in range(640)]
    assert even(attend, 640, 640, bias=bias) == pytest.approx(expected)


def test_documents_do_not_leak(attend: Attend) -> None:
    mask = masks.documents(np.array([0, 0, 0, 1, 1])) & masks.causal()
    assert even(attend, 5, 5, mask=mask) == [0, 0.5, 1, 3, 3.5]
    query, key, value = random((5, 4), (5, 4), (5, 2))
    before = attend(query, key, value, mask=mask).output
    key[:3] += 1
    value[:3] += 1
    np.testing.assert_array_equal(attend(query, key, value, mask=mask).output[3:], before[3:])


def test_lengths_differ_by_batch(attend: Attend) -> None:
    query, key = np.zeros((2, 1, 1, 4)), np.ones((2, 1, 64, 4))
    value = np.broadcast_to(count(64), (2, 1, 64, 1))
    output = attend(query, key, value, mask=masks.lengths(np.array([64, 10]))).output
    np.testing.assert_allclose(output.ravel(), [31.5, 4.5])


def test_true_means_may_attend(attend: Attend) -> None:
    above = np.triu(np.ones((8, 8), np.bool_), 1)
    assert even(attend, 8, 8, mask=above) == [4, 4.5, 5, 5.5, 6, 6.5, 7, 0]


# shapes


BROADCAST = [
    (), (7,), (1, 7), (1, 1, 7), (5, 1), (5, 7), (4, 5, 7), (4, 1, 7), (3, 1, 1, 7), (3, 1, 5, 1), (1, 4, 5, 7),
    (3, 4, 5, 7), (1, 1, 1, 5, 7),
]  # fmt: skip


@pytest.mark.parametrize("shape", BROADCAST)
@pytest.mark.parametrize("role", ["mask", "bias"])
def test_broadcast_shapes(attend: Attend, shape: tuple[int, ...], role: str) -> None:
    query, key, value = random((3, 4, 5, 8), (3, 4, 7, 8), (3, 4, 7, 2))
    (array,) = random(shape, seed=1)
    given = np.asarray(array) if role == "bias" else np.asarray(array > 0)
    full = np.broadcast_to(given.reshape(shape[-4:]), (3, 4, 5, 7))
    found = attend(query, key, value, **{role: given})
    for expected in (attend(query, key, value, **{role: full}), attend(query, key, value, **{role: full.copy()})):
        np.testing.assert_array_equal(found.output, expected.output)
        np.testing.assert_array_equal(found.lse, expected.lse)


def test_mask_without_heads_is_refused_with_the_right_shape(attend: Attend) -> None:
    query, key, value = random((3, 4, 5, 8), (3, 4, 7, 8), (3, 4, 7, 2))
    with pytest.raises(ShapeError, match=r"mask\.reshape\(3, 1, 5, 7\)"):
        attend(query, key, value, mask=np.ones((3, 5, 7), np.bool_))


def test_several_batch_dimensions_broadcast(attend: Attend) -> None:
    query, key, value, bias = random((2, 1, 4, 5, 8), (3, 2, 7, 8), (2, 3, 2, 7, 2), (2, 3, 1, 5, 7))
    output = attend(query, key, value, bias=bias).output
    assert output.shape == (2, 3, 4, 5, 2)
    for i, j in np.ndindex(2, 3):
        one = attend(query[i, 0], key[j], value[i, j], bias=bias[i, j]).output
        np.testing.assert_allclose(output[i, j], one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_bias_dtypes_are_added_as_they_are(attend: Attend, dtype: str) -> None:
    query, key, value, bias = (array.astype(np.float32) for array in random((5, 8), (7, 8), (7, 2), (5, 7)))
    found = attend(query, key, value, bias=bias.astype(dtype)).output
    expected = attend(query, key, value, bias=bias.astype(dtype).astype(np.float64)).output
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_integer_masks_are_refused(attend: Attend, dtype: str) -> None:
    query, key, value = random((5, 8), (7, 8), (7, 2))
    for role in ("mask", "bias"):
        with pytest.raises(DTypeError, match=f"{role}: expected"):
            attend(query, key, value, **{role: np.ones((5, 7), dtype)})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("empty", ["batch", "heads", "q_len", "kv_len", "d_k", "d_v"])
def test_empty_dimensions(attend: Attend, empty: str, causal: bool) -> None:
    sizes = {"batch": 2, "heads": 3, "q_len": 4, "kv_len": 5, "d_k": 6, "d_v": 7, empty: 0}
    batch, heads, q_len, kv_len, d_k, d_v = sizes.values()
    query, key, value = random((batch, heads, q_len, d_k), (batch, heads, kv_len, d_k), (batch, heads, kv_len, d_v))
    output, lse = attend(query, key, value, mask=masks.causal(align="start") if causal else None)
    assert output.shape == (batch, heads, q_len, d_v)
    assert lse.shape == (batch, heads, q_len)
    if empty == "kv_len":
        assert (output == 0).all()
        assert (lse == -math.inf).all()
    if empty == "d_k" and not causal:
        np.testing.assert_allclose(output, np.broadcast_to(value.mean(axis=-2, keepdims=True), output.shape))
        np.testing.assert_allclose(lse, math.log(5))


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (48, 2), (40, 2), (80, 4), (6, 3), (5, 1), (64, 8)])
def test_heads_share_key_heads(attend: Attend, heads: int, kv_heads: int) -> None:
    value = np.broadcast_to(np.arange(kv_heads, dtype=np.float64)[:, None, None], (kv_heads, 3, 1))
    output = attend(np.zeros((heads, 2, 4)), np.ones((kv_heads, 3, 4)), value).output
    np.testing.assert_allclose(output[:, 0, 0], np.arange(heads) // (heads // kv_heads))


def test_two_dimensions_are_one_head(attend: Attend) -> None:
    query, key, value = random((5, 8), (7, 8), (7, 2))
    output, lse = attend(query, key, value)
    assert output.shape == (5, 2)
    assert lse.shape == (5,)
    with_head = attend(query[None], key[None], value[None])
    np.testing.assert_array_equal(with_head.output[0], output)
    np.testing.assert_array_equal(with_head.lse[0], lse)


def test_layouts_agree(attend: Attend) -> None:
    query, key, value = random((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 3))
    mask = np.arange(7) > np.arange(5)[:, None]
    bshd = attend(query, key, value, mask=mask, layout="bshd")
    bhsd = attend(*(array.swapaxes(1, 2) for array in (query, key, value)), mask=mask)
    np.testing.assert_array_equal(bshd.output, bhsd.output.swapaxes(1, 2))
    np.testing.assert_array_equal(bshd.lse, bhsd.lse.swapaxes(1, 2))


# sinks


def test_sink_takes_its_share(attend: Attend) -> None:
    sinks = np.array([math.log(4)])
    output, lse = attend(np.zeros((3, 2)), np.ones((4, 2)), np.ones((4, 1)), sinks=sinks)
    np.testing.assert_allclose(output, 0.5)
    np.testing.assert_allclose(lse, math.log(8))


def test_sink_on_a_row_without_keys(attend: Attend) -> None:
    sinks = np.array([math.log(4)])
    hidden = np.zeros((3, 4), np.bool_)
    output, lse = attend(np.zeros((3, 2)), np.ones((4, 2)), np.ones((4, 1)), sinks=sinks, mask=hidden)
    np.testing.assert_array_equal(output, 0)
    np.testing.assert_allclose(lse, math.log(4))


def test_sink_of_minus_infinity_is_none(attend: Attend) -> None:
    query, key, value = random((3, 2), (4, 2), (4, 1))
    found = attend(query, key, value, sinks=np.array([-math.inf]))
    expected = attend(query, key, value)
    np.testing.assert_array_equal(found.output, expected.output)
    np.testing.assert_array_equal(found.lse, expected.lse)


# dropout


def test_dropout_of_nothing_and_of_everything(attend: Attend) -> None:
    query, key, value = random((5, 8), (7, 8), (7, 2))
    np.testing.assert_array_equal(
        attend(query, key, value, dropout_p=0.0, seed=1).output, attend(query, key, value).output
    )
    assert (attend(query, key, value, dropout_p=1.0, seed=1).output == 0).all()
