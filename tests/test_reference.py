"""The reference against what it must be: its own definition, torch's autograd, and finite differences."""

import math
from typing import Any

import numpy as np
import pytest

from rootdk import dropout, masks, reference, scores
from rootdk.errors import BoundsError, ShapeError

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": -0.7},
    "causal": {"mask": masks.causal(align="end")},
    "rows without keys": {"mask": masks.causal(align=-3)},
    "dropout": {"dropout_p": 0.4, "seed": 11},
    "everything": {"mask": masks.sliding_window(2, 1, align=0), "scale": 0.9, "dropout_p": 0.3, "seed": 5},
}
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "one head": ((4, 3), (5, 3), (5, 2)),
    "groups": ((2, 4, 4, 3), (2, 2, 5, 3), (2, 2, 5, 2)),
    "broadcast batch": ((2, 1, 2, 4, 3), (3, 2, 5, 3), (2, 1, 2, 5, 2)),
}


def draw(*shapes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape)) for shape in shapes]


def test_steps_follow_the_definition() -> None:
    query, key, value, bias = draw((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3), (5, 7))
    mask = np.tril(np.ones((5, 7), np.bool_), 1)
    result = reference.attention(query, key, value, bias=bias, mask=mask, score_mod=lambda s, b, h, q, kv: s * 2 + h)
    raw = query @ np.repeat(key, 2, axis=1).swapaxes(-1, -2)
    np.testing.assert_allclose(result.raw_scores, raw)
    np.testing.assert_allclose(result.scaled_scores, raw / math.sqrt(8))
    np.testing.assert_allclose(result.modified_scores, raw / math.sqrt(2) + np.arange(4)[:, None, None] + bias)
    np.testing.assert_array_equal(result.masked_scores == -math.inf, np.broadcast_to(~mask, raw.shape))
    np.testing.assert_allclose(result.weights.sum(axis=-1), 1)
    np.testing.assert_allclose(result.output, result.weights @ np.repeat(value, 2, axis=1))
    np.testing.assert_allclose(np.exp(result.lse), np.exp(result.masked_scores).sum(axis=-1))


@pytest.mark.parametrize(("dtype", "error"), [("float16", 2e-3), ("float32", 1e-6), ("float64", 1e-16)])
def test_lower_precision_shows_its_error(dtype: str, error: float) -> None:
    query, key, value = draw((64, 32), (64, 32), (64, 8))
    truth = reference.attention(query, key, value)
    found = reference.attention(query, key, value, dtype=dtype)
    assert found.output.dtype == found.weights.dtype == found.lse.dtype == np.dtype(dtype)
    assert np.abs(found.output - truth.output).max() <= error


def test_index_out_of_bounds_is_an_error_where_the_pair_is_visible() -> None:
    query, key, value = draw((2, 6, 4), (2, 5, 4), (2, 5, 3))
    table = np.arange(4.0)

    def add_table(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + table[kv]

    expected = r"test_reference\.py:\d+: table\[4\]: expected an index from -4 to 3 in dimension 0, got 4, for batch 0"
    with pytest.raises(BoundsError, match=expected):
        reference.attention(query, key, value, score_mod=add_table)
    found = reference.attention(query, key, value, score_mod=add_table, mask=lambda b, h, q, kv: kv < 4)
    shorter = reference.attention(query, key[:, :4], value[:, :4], bias=table)
    np.testing.assert_allclose(found.output, shorter.output)


def objective(arrays: dict[str, np.ndarray], grads: dict[str, np.ndarray], options: dict[str, Any]) -> float:
    result = reference.attention(**arrays, **options)
    lse = np.where(np.isfinite(result.lse), result.lse, 0)
    return float((result.output * grads["grad_out"]).sum() + (lse * grads["grad_lse"]).sum())


def finite_difference(name: str, arrays: dict[str, np.ndarray], grads: Any, options: Any) -> np.ndarray:
    step = 1e-5
    slope = np.zeros(arrays[name].shape)
    for index in np.ndindex(slope.shape):
        ends = []
        for sign in (1, -1):
            moved = arrays[name].copy()
            moved[index] += sign * step
            ends.append(objective({**arrays, name: moved}, grads, options))
        slope[index] = (ends[0] - ends[1]) / (2 * step)
    return slope


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_gradients_are_finite_differences(shapes: Any, options: Any) -> None:
    names = ("query", "key", "value", "bias", "sinks")
    heads = shapes[0][-3] if len(shapes[0]) > 2 else 1
    arrays = dict(zip(names, draw(*shapes, (heads, 1, 5), (heads,)), strict=True))
    result = reference.attention(**arrays, **options)
    grads = dict(zip(("grad_out", "grad_lse"), draw(result.output.shape, result.lse.shape, seed=1), strict=True))
    # a row without keys passes on no gradient, not even its sink's
    grads["grad_lse"] *= (result.weights > 0).any(axis=-1)
    found = reference.attention_vjp(**arrays, **grads, **options)
    for name in names:
        gradient = getattr(found, name)
        assert gradient.shape == arrays[name].shape
        np.testing.assert_allclose(
            gradient, finite_difference(name, arrays, grads, options), atol=2e-9, rtol=1e-7, err_msg=name
        )


def test_gradients_through_score_functions() -> None:
    arrays = dict(zip(("query", "key", "value", "bias"), draw((2, 4, 3), (2, 5, 3), (2, 5, 2), (4, 5)), strict=True))
    slope, table = draw((), (2, 5), seed=2)
    options = {"score_mod": [scores.softcap(1.5), lambda s, b, h, q, kv: s * slope + table[h, kv] * table[h, q]]}
    grads = dict(zip(("grad_out", "grad_lse"), draw((2, 4, 2), (2, 4), seed=1), strict=True))
    found = reference.attention_vjp(**arrays, **grads, **options, mask=masks.sliding_window(1, 1, align=0))
    options["mask"] = masks.sliding_window(1, 1, align=0)
    for name in arrays:
        expected = finite_difference(name, arrays, grads, options)
        np.testing.assert_allclose(getattr(found, name), expected, atol=2e-9, rtol=1e-7, err_msg=name)
    assert list(found.captured) == ["slope", "table"]
    for name, array in (("slope", slope), ("table", table)):
        expected = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            kept = array[index].copy()
            ends = []
            for moved in (kept + 1e-5, kept - 1e-5):
                array[index] = moved
                ends.append(objective(arrays, grads, options))
            array[index] = kept
            expected[index] = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(found.captured[name], expected, atol=2e-9, rtol=1e-7, err_msg=name)


def test_one_table_read_twice() -> None:
    table = np.zeros(5)
    grads = reference.attention_vjp(
        np.zeros((5, 2)),
        np.ones((5, 2)),
        np.arange(5.0)[:, None],
        grad_out=np.ones((5, 1)),
        score_mod=lambda score, b, h, q, kv: score + table[q] + table[kv],
    )
    np.testing.assert_allclose(grads.captured["table"], [-2, -1, 0, 1, 2], atol=1e-14)


def test_gradients_in_the_other_layout() -> None:
    query, key, value, grad_out, grad_lse = draw((2, 5, 4, 8), (5, 2, 8), (2, 5, 2, 3), (2, 5, 4, 3), (2, 5, 4))
    bshd = reference.attention_vjp(
        query, key, value, grad_out=grad_out, grad_lse=grad_lse, mask=masks.causal(), layout="bshd"
    )
    turned = [array.swapaxes(-3, -2) for array in (query, key, value)]
    bhsd = reference.attention_vjp(
        *turned, grad_out=grad_out.swapaxes(1, 2), grad_lse=grad_lse.swapaxes(1, 2), mask=masks.causal()
    )
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(bshd, name), getattr(bhsd, name).swapaxes(-3, -2))


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_those_of_torch(masked: bool) -> None:
    torch = pytest.importorskip("torch")
    arrays = draw((2, 4, 6, 8), (2, 2, 5, 8), (2, 2, 5, 3), (4, 6, 5))
    (grad_out,) = draw((2, 4, 6, 3), seed=1)
    mask = np.tril(np.ones((6, 5), np.bool_)) if masked else None
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    query, key, value, bias = tensors
    hidden = bias if mask is None else bias.masked_fill(~torch.tensor(mask), -math.inf)
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=hidden, enable_gqa=True)
    output.backward(torch.tensor(grad_out))
    found = reference.attention(*arrays[:3], bias=arrays[3], mask=mask)
    np.testing.assert_allclose(found.output, output.detach().numpy(), rtol=1e-12, atol=1e-14)
    grads = reference.attention_vjp(*arrays[:3], grad_out=grad_out, bias=arrays[3], mask=mask)
    for tensor, gradient in zip(tensors, (grads.query, grads.key, grads.value, grads.bias), strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-10, atol=1e-14)


def test_shared_key_heads_add_their_gradients() -> None:
    heads, kv_heads, q_len, kv_len = 6, 2, 3, 4
    query, key = np.zeros((heads, q_len, 5)), np.ones((kv_heads, kv_len, 5))
    grads = reference.attention_vjp(query, key, np.ones((kv_heads, kv_len, 1)), grad_out=np.ones((heads, q_len, 1)))
    np.testing.assert_allclose(grads.value, (heads // kv_heads) * q_len / kv_len)


def test_sink_gradient() -> None:
    arguments: dict[str, Any] = {"sinks": np.array([math.log(4)]), "grad_out": np.ones((3, 1))}
    query, key, value = np.zeros((3, 2)), np.ones((4, 2)), np.ones((4, 1))
    np.testing.assert_allclose(reference.attention_vjp(query, key, value, **arguments).sinks, [-0.75])
    hidden = np.zeros((3, 4), np.bool_)
    grads = reference.attention_vjp(query, key, value, mask=hidden, grad_lse=np.ones(3), **arguments)
    np.testing.assert_array_equal(grads.sinks, [0])


def test_hidden_poison_reaches_no_gradient() -> None:
    query, key, value, grad_out = draw((4, 8), (6, 8), (6, 3), (4, 3))
    mask = np.arange(6) != 5
    key[5] = value[5] = 0
    expected = reference.attention_vjp(query, key, value, grad_out=grad_out, mask=mask)
    key[5], value[5] = math.nan, math.inf
    found = reference.attention_vjp(query, key, value, grad_out=grad_out, mask=mask)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert (found.key[5] == 0).all()
    assert (found.value[5] == 0).all()


def test_row_without_keys_passes_on_nothing() -> None:
    query, key, value, grad_out = draw((3, 4), (5, 4), (5, 2), (3, 2))
    mask = np.ones((3, 5), np.bool_)
    mask[1] = False
    grad_out[1] = 0
    expected = reference.attention_vjp(query, key, value, grad_out=grad_out, mask=mask)
    grad_out[1], query[1] = math.nan, math.nan
    grad_lse = np.array([0, math.nan, 0])
    found = reference.attention_vjp(query, key, value, grad_out=grad_out, grad_lse=grad_lse, mask=mask)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert (found.query[1] == 0).all()


def test_nan_in_grad_out_reaches_its_row_and_the_keys_it_sees() -> None:
    query, key, value, grad_out = draw((4, 4), (4, 4), (4, 2), (4, 2))
    whole = reference.attention_vjp(query, key, value, grad_out=grad_out, mask=masks.causal())
    grad_out[1] = math.nan
    found = reference.attention_vjp(query, key, value, grad_out=grad_out, mask=masks.causal())
    assert np.isnan(found.query[1]).all()
    assert np.isnan(found.key[:2]).all()
    assert np.isnan(found.value[:2]).all()
    np.testing.assert_array_equal(found.query[[0, 2, 3]], whole.query[[0, 2, 3]])
    np.testing.assert_array_equal(found.key[2:], whole.key[2:])
    np.testing.assert_array_equal(found.value[2:], whole.value[2:])


@pytest.mark.parametrize("empty", ["batch", "heads", "query heads", "q_len", "kv_len", "d_k", "d_v"])
def test_empty_dimensions_have_gradients(empty: str) -> None:
    sizes = {"batch": 2, "heads": 3, "query heads": 3, "q_len": 4, "kv_len": 5, "d_k": 6, "d_v": 7, empty: 0}
    batch, kv_heads, heads, q_len, kv_len, d_k, d_v = sizes.values()
    heads = min(heads, kv_heads)
    key_shape, value_shape = (batch, kv_heads, kv_len, d_k), (batch, kv_heads, kv_len, d_v)
    query, key, value, grad_out = draw((batch, heads, q_len, d_k), key_shape, value_shape, (batch, heads, q_len, d_v))
    grads = reference.attention_vjp(query, key, value, grad_out=grad_out)
    assert (grads.query.shape, grads.key.shape, grads.value.shape) == (query.shape, key.shape, value.shape)
    assert all(np.isfinite(gradient).all() for gradient in (grads.query, grads.key, grads.value))


def test_gradients_of_the_wrong_shape_are_refused() -> None:
    query, key, value, grad_out = draw((4, 8), (6, 8), (6, 3), (4, 3))
    with pytest.raises(ShapeError, match=r"grad_out: expected shape \(4, 3\), as the result has, got \(3, 4\)"):
        reference.attention_vjp(query, key, value, grad_out=grad_out.T)
    with pytest.raises(ShapeError, match=r"grad_lse: expected shape \(4,\)"):
        reference.attention_vjp(query, key, value, grad_out=grad_out, grad_lse=np.zeros((4, 1)))


def test_dropout_is_even_and_independent_over_rows_and_heads() -> None:
    kept = dropout.keep(3, *np.ogrid[:4, :4, :256, :256], 0.25)
    assert kept.mean() == pytest.approx(0.75, abs=2e-3)
    for axis in range(4):
        moved = np.roll(kept, 1, axis=axis)
        assert (kept & moved).mean() == pytest.approx(0.75**2, abs=3e-3)
    assert (kept & dropout.keep(4, *np.ogrid[:4, :4, :256, :256], 0.25)).mean() == pytest.approx(0.75**2, abs=3e-3)
