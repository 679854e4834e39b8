"""Gradients of attention against the reference's, and against answers worked out by hand."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_checks import BFLOAT16, DTYPES, random
from gradient_checks import assert_right, by_name, case, pulled

import rootdk
from rootdk.errors import ArgumentError, DTypeError, ShapeError

BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN = 2, 4, 2, 67, 131
"""More than one block of queries and group of keys, with tails."""

Options = dict[str, Any]


def inputs(dtype: Any = np.float32, d_k: int = 24, d_v: int = 20) -> list[np.ndarray]:
    return random(
        (BATCH, HEADS, Q_LEN, d_k), (BATCH, KV_HEADS, KV_LEN, d_k), (BATCH, KV_HEADS, KV_LEN, d_v), dtype=dtype, seed=1
    )


# What a score function may capture and learn; each returns the options of a call, given a source of normal numbers.


def table_read_twice(draw: Callable[..., np.ndarray]) -> Options:
    table = draw(KV_LEN)
    return {"score_mod": lambda score, b, h, q, kv: score + table[q] * table[kv]}


def table_read_across(draw: Callable[..., np.ndarray]) -> Options:
    """Every read depends on the head, and heads still read the same elements."""
    table = draw(KV_LEN, KV_LEN)
    return {"score_mod": lambda score, b, h, q, kv: score + table[h, kv] * table[kv, h]}


def one_row_for_each_head(draw: Callable[..., np.ndarray]) -> Options:
    table = draw(BATCH, HEADS, Q_LEN)
    return {"score_mod": lambda score, b, h, q, kv: score * table[b, h, q]}


def nested_gathers(draw: Callable[..., np.ndarray]) -> Options:
    table, kinds = draw(HEADS, 5), np.arange(KV_LEN) % 5
    return {"score_mod": lambda score, b, h, q, kv: score * table[h, kinds[kv]] + table[0, kinds[q] - 5]}


def scalars(draw: Callable[..., np.ndarray]) -> Options:
    factor, shift = draw(), draw()
    return {"score_mod": lambda score, b, h, q, kv: score * factor + shift}


def learned_softcap(draw: Callable[..., np.ndarray]) -> Options:
    cap = abs(draw()) + 1
    return {"score_mod": lambda score, b, h, q, kv: cap * np.tanh(score / cap)}


def alibi(draw: Callable[..., np.ndarray]) -> Options:
    return {"score_mod": rootdk.alibi(abs(draw(HEADS)), align="end"), "mask": rootdk.causal(align="end")}


def relative_bias(draw: Callable[..., np.ndarray]) -> Options:
    return {"score_mod": [rootdk.softcap(5.0), rootdk.relative_bias(draw(HEADS, 33), align=40)], "bias": draw(KV_LEN)}


def hides_by_score(draw: Callable[..., np.ndarray]) -> Options:
    limit = draw(Q_LEN)
    return {"score_mod": lambda score, b, h, q, kv: np.where(score < limit[q], score * limit[q], -math.inf)}


def documents(draw: Callable[..., np.ndarray]) -> Options:
    ids = np.repeat([0, 1, -1, 2], [30, 50, 11, 40])
    return {"mask": rootdk.documents(ids[:Q_LEN], ids), "sinks": draw(HEADS), "bias": draw(BATCH, 1, 1, KV_LEN)}


def window(draw: Callable[..., np.ndarray]) -> Options:
    return {"mask": rootdk.sliding_window(30, 4, align="end") | rootdk.sink_tokens(3), "scale": -0.3}


def empty_rows(draw: Callable[..., np.ndarray]) -> Options:
    return {"mask": rootdk.causal(align=-20), "sinks": draw(HEADS)}


FUNCTIONS = [
    table_read_twice, table_read_across, one_row_for_each_head, nested_gathers, scalars, learned_softcap, alibi,
    relative_bias, hides_by_score, documents, window, empty_rows,
]  # fmt: skip


def source(dtype: Any) -> Callable[..., np.ndarray]:
    rng = np.random.default_rng(3)
    return lambda *shape: np.asarray(rng.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("options", FUNCTIONS)
def test_every_gradient_is_the_references(options: Callable[..., Options]) -> None:
    assert_right(case(*inputs(), **options(source(np.float32))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [dict, relative_bias, empty_rows])
def test_in_every_dtype(dtype: np.dtype, options: Callable[..., Options]) -> None:
    given = options(source(np.float32)) if options is not dict else {}
    assert_right(case(*inputs(dtype), **given))


@pytest.mark.parametrize("seed", range(12))
def test_random_shapes_and_strides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kv_heads, groups, q_len, kv_len = (int(rng.integers(1, most)) for most in (4, 4, 180, 300))
    d_k, d_v = (int(rng.integers(1, 70)) for _ in range(2))
    arrays = [
        _strided(rng, (kv_heads * groups, q_len, d_k)),
        _strided(rng, (kv_heads, kv_len, d_k)),
        _strided(rng, (kv_heads, kv_len, d_v)),
    ]
    options: Options = {"mask": rootdk.causal(align="end")} if seed % 3 == 0 else {}
    if seed % 2:
        options["layout"], arrays = "bshd", [array.swapaxes(-3, -2) for array in arrays]
    assert_right(case(*arrays, lse=seed % 4 > 1, **options))


def _strided(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """One of: dense, every second element or row of a larger array, backwards, dimensions in another order."""
    heads, length, width = shape
    draw = rng.standard_normal
    views = (
        lambda: draw(shape),
        lambda: draw((heads, length, 2 * width))[..., ::2],
        lambda: draw((heads, length, width))[:, ::-1, ::-1],
        lambda: draw((length, width, heads)).transpose(2, 0, 1),
        lambda: draw((heads, 3 * length, width))[:, ::3],
    )
    view = views[rng.integers(len(views))]()
    return view.astype(np.float32, order="K") if view.base is None else _as_float32(view)


def _as_float32(view: np.ndarray) -> np.ndarray:
    """The same strides, in elements, of float32."""
    base = np.asarray(view.base).astype(np.float32)
    strides = tuple(stride // 2 for stride in view.strides)
    offset = (view.__array_interface__["data"][0] - view.base.__array_interface__["data"][0]) // 2
    return np.ndarray(view.shape, np.float32, base.data, offset, strides)


BIAS_SHAPES = [
    (), (KV_LEN,), (Q_LEN, 1), (HEADS, 1, 1), (1, 1, Q_LEN, KV_LEN), (BATCH, 1, 1, KV_LEN), (1, HEADS, Q_LEN, 1),
    (BATCH, HEADS, Q_LEN, KV_LEN), (1, 1, 1, 1, KV_LEN),
]  # fmt: skip


@pytest.mark.parametrize("shape", BIAS_SHAPES)
def test_bias_of_every_broadcast_shape(shape: tuple[int, ...]) -> None:
    assert_right(case(*inputs(), bias=source(np.float32)(*shape)))


def test_what_takes_one_addend_beside_what_takes_many() -> None:
    """A full bias is stored, a table is summed in lots; the mask leaves both their zeros."""
    (table,) = random((HEADS, 2 * (Q_LEN + KV_LEN)))
    grads = assert_right(
        case(
            *inputs(), bias=source(np.float32)(BATCH, HEADS, Q_LEN, KV_LEN), mask=rootdk.causal(align="end"),
            score_mod=lambda score, b, h, q_idx, kv_idx: score * table[h, q_idx - kv_idx + KV_LEN],
        )
    )  # fmt: skip
    assert grads.bias is not None
    assert (grads.bias != 0).any(axis=(0, 1)).sum() == np.tri(Q_LEN, KV_LEN, KV_LEN - Q_LEN).sum()


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float64])
def test_bias_of_any_floating_dtype(dtype: Any) -> None:
    assert_right(case(*inputs(), bias=source(dtype)(HEADS, 1, KV_LEN)))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_broadcast_batch_dimensions_are_summed(layout: str) -> None:
    arrays = random((3, 1, 4, 9, 8), (2, 2, 11, 8), (1, 2, 11, 5))
    if layout == "bshd":
        arrays = [array.swapaxes(-3, -2) for array in arrays]
    assert_right(case(*arrays, layout=layout, bias=random((2, 1, 9, 1))[0]))


def test_one_head_without_head_dimension() -> None:
    assert_right(case(*random((7, 8), (9, 8), (9, 3))))


def test_a_head_for_a_batch_of_keys() -> None:
    assert_right(case(*random((7, 8), (5, 1, 9, 8), (9, 3))))


@pytest.mark.parametrize(("d_k", "d_v"), [(4, 7), (7, 4), (192, 128), (1, 33), (80, 48), (31, 17)])
def test_values_of_another_width(d_k: int, d_v: int) -> None:
    assert_right(case(*inputs(np.float64, d_k, d_v)))


EMPTY = {"batch": 0, "heads": 0, "q_len": 0, "kv_len": 0, "d_k": 0, "d_v": 0}


@pytest.mark.parametrize("empty", EMPTY)
@pytest.mark.parametrize("masked", [False, True])
def test_empty_dimensions(empty: str, masked: bool) -> None:
    sizes = {"batch": 2, "heads": 4, "q_len": 3, "kv_len": 5, "d_k": 6, "d_v": 7} | {empty: 0}
    batch, heads, q_len, kv_len, d_k, d_v = sizes.values()
    arrays = random((batch, heads, q_len, d_k), (batch, heads, kv_len, d_k), (batch, heads, kv_len, d_v))
    options: Options = {"mask": rootdk.causal(align=0)} if masked else {}
    found = pulled(case(*arrays, sinks=np.zeros(heads, np.float32), bias=np.ones((1, 1, 1, 1), np.float32), **options))
    for array, grad in zip(arrays, (found.query, found.key, found.value), strict=True):
        assert grad.shape == array.shape
        assert np.isfinite(grad).all()
    if empty != "d_k":
        assert all((grad == 0).all() for name, grad in by_name(found).items() if empty != "d_v" or name == "value")


# answers worked out by hand


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (48, 2), (40, 2), (80, 4), (6, 3), (5, 1), (64, 8)])
def test_every_query_head_adds_to_its_key_head(heads: int, kv_heads: int) -> None:
    q_len, kv_len = 3, 4
    query = np.zeros((heads, q_len, 2), np.float32)
    key = random((kv_heads, kv_len, 2))[0]
    value = np.broadcast_to(np.arange(kv_heads, dtype=np.float32)[:, None, None], (kv_heads, kv_len, 1))
    output, pullback = rootdk.attention_vjp(query, key, value)
    np.testing.assert_array_equal(output[..., 0], np.arange(heads)[:, None] // (heads // kv_heads) + np.zeros(q_len))
    grads = pullback(np.ones_like(output))
    np.testing.assert_allclose(grads.value, heads // kv_heads * q_len / kv_len, rtol=1e-6)


def test_one_array_as_query_key_and_value() -> None:
    x = random((1, 1, 6, 8))[0]
    output, pullback = rootdk.attention_vjp(x, x, x)
    cotangent = random(output.shape, seed=2)[0]
    apart, other = rootdk.attention_vjp(x.copy(), x.copy(), x.copy())
    np.testing.assert_array_equal(output, apart)
    for name, grad in by_name(pullback(cotangent)).items():
        np.testing.assert_array_equal(grad, getattr(other(cotangent), name))


def test_a_table_read_twice_by_hand() -> None:
    table = np.zeros(5, np.float32)
    value = np.arange(5, dtype=np.float32)[:, None]
    zeros = np.zeros((5, 4), np.float32)
    _, pullback = rootdk.attention_vjp(zeros, zeros, value, score_mod=lambda s, b, h, q, kv: s + table[q] + table[kv])
    np.testing.assert_allclose(pullback(np.ones((5, 1), np.float32)).captured["table"], [-2, -1, 0, 1, 2], atol=1e-6)


def test_a_constant_shift_has_no_gradient() -> None:
    shift = np.array(0.7, np.float32)
    arrays = random((5, 8), (6, 8), (6, 3))
    found = pulled(case(*arrays, lse=False, score_mod=lambda score, b, h, q, kv: score + shift))
    assert found.captured["shift"].shape == ()
    assert abs(float(found.captured["shift"])) < 1e-5


def test_sinks_by_hand() -> None:
    q_len, kv_len = 3, 4
    arrays = np.zeros((1, q_len, 2)), np.zeros((1, kv_len, 2)), np.ones((1, kv_len, 1))
    sinks = np.array([math.log(4)])
    output, pullback = rootdk.attention_vjp(*arrays, sinks=sinks)
    np.testing.assert_allclose(output, 0.5)
    np.testing.assert_allclose(pullback(np.ones_like(output)).sinks, [-0.25 * q_len])
    hidden, pullback = rootdk.attention_vjp(*arrays, sinks=sinks, mask=np.zeros((q_len, kv_len), np.bool_))
    grads = pullback(np.full_like(hidden, math.nan), np.ones((1, q_len)))
    assert not any(grad.any() for grad in by_name(grads).values())
    whole, pullback = rootdk.attention_vjp(*arrays, sinks=np.array([-math.inf]))
    assert pullback(np.ones_like(whole)).sinks == 0


def test_a_sink_that_takes_nearly_all() -> None:
    query, key, value = random((2, 5, 4), (2, 7, 4), (2, 7, 4))
    mask = np.ones((5, 7), np.bool_)
    mask[2] = False
    assert_right(case(query, key, value, sinks=np.array([30.0, 14.0], np.float32), mask=mask))


def test_captured_arrays_come_in_the_order_of_their_first_read() -> None:
    late, early, whole, unmoved = source(np.float16)(KV_LEN), source(np.float64)(), np.arange(KV_LEN), np.ones(3)

    def score(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score * early + late[kv] * whole[kv]

    captured = pulled(case(*inputs(), score_mod=score, mask=lambda b, h, q, kv: unmoved[h % 3] > 0)).captured
    assert list(captured) == ["early", "late", "unmoved"]
    assert [array.dtype for array in captured.values()] == [np.float64, np.float16, np.float64]
    assert not captured["unmoved"].any()


def test_a_pullback_may_be_called_again() -> None:
    one = case(*inputs(), **relative_bias(source(np.float32)))
    _, pullback = rootdk.attention_vjp(*one.inputs, **one.options)
    first, other, again = (
        pullback(one.grad_out, one.grad_lse),
        pullback(2 * one.grad_out),
        pullback(one.grad_out, one.grad_lse),
    )
    for name, grad in by_name(again).items():
        np.testing.assert_array_equal(grad, by_name(first)[name])
    np.testing.assert_allclose(other.value, 2 * first.value, rtol=1e-5)


def test_results_are_those_of_attention() -> None:
    arrays = inputs()
    (output, lse), _ = rootdk.attention_vjp(*arrays, return_lse=True)
    plain, logs = rootdk.attention(*arrays, return_lse=True)
    np.testing.assert_array_equal(output, plain)
    np.testing.assert_array_equal(lse, logs)


# what is refused

WRONG: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "shape": (np.ones((2, 3), np.float32), None, ShapeError, "grad_out: expected shape (1, 3, 2), as the result has"),
    "dtype": (np.ones((1, 3, 2)), None, DTypeError, "grad_out: expected float32, as the result has, got float64"),
    "kind": ([[1.0]], None, DTypeError, "grad_out: expected an array, got list"),
    "lse": (np.ones((1, 3, 2), np.float32), np.ones(3), ShapeError, "grad_lse: expected shape (1, 3)"),
    "lse dtype": (np.ones((1, 3, 2), np.float32), np.ones((1, 3)), DTypeError, "grad_lse: expected float32"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_cotangents(wrong: str) -> None:
    grad_out, grad_lse, error, message = WRONG[wrong]
    _, pullback = rootdk.attention_vjp(*random((1, 3, 4), (1, 5, 4), (1, 5, 2)))
    with pytest.raises(error, match=re.escape(message)):
        pullback(grad_out, grad_lse)


def test_wrong_arguments_are_refused_as_by_attention() -> None:
    with pytest.raises(ArgumentError, match="layout"):
        rootdk.attention_vjp(*random((3, 4), (5, 4), (5, 2)), layout="sbhd")
