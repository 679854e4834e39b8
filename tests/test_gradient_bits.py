"""What gradients must not depend on: threads, neighbours, memory layout, what hidden places hold; and their memory."""

import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from attention_checks import random
from gradient_checks import Case, assert_same, by_name, case, pulled

import rootdk

BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN, D_K, D_V = 2, 4, 2, 75, 1010, 20, 12
"""More than one chunk of keys, with the boundary among the causal positions; several blocks of queries; tails."""

Options = dict[str, Any]


def inputs(dtype: Any = np.float32) -> list[np.ndarray]:
    return random(
        (BATCH, HEADS, Q_LEN, D_K), (BATCH, KV_HEADS, KV_LEN, D_K), (BATCH, KV_HEADS, KV_LEN, D_V), dtype=dtype
    )


TABLE = random((HEADS, 65))[0]
OPTIONS: dict[str, Options] = {
    "plain": {},
    "causal": {"mask": rootdk.causal(align="end"), "sinks": np.zeros(HEADS, np.float32)},
    "learned": {"score_mod": rootdk.relative_bias(TABLE, align=900), "bias": random((Q_LEN, 1))[0]},
}


@pytest.fixture(params=OPTIONS)
def options(request: pytest.FixtureRequest) -> Options:
    return dict(OPTIONS[request.param])


@pytest.fixture
def threads() -> Iterator[Any]:
    before = rootdk.get_num_threads()
    yield rootdk.set_num_threads
    rootdk.set_num_threads(before)


def test_threads(options: Options, threads: Any) -> None:
    one = case(*inputs(), **options)
    threads(1)
    alone = pulled(one)
    for count in (2, 3):
        threads(count)
        for _ in range(3):
            assert_same(pulled(one), alone)


def _part(one: Case, *place: Any) -> Case:
    """The call for some batch elements and heads; ``place`` is an index of the query's first dimensions."""
    query, key, value = one.inputs
    batch, head = place
    keys = (batch, slice(head.start // 2, head.stop // 2))
    assert one.grad_lse is not None
    return Case((query[place], key[keys], value[keys]), one.options, one.grad_out[place], one.grad_lse[place])


@pytest.mark.parametrize("options", [{}, {"mask": rootdk.causal(align="end"), "scale": 0.3}])
def test_neighbours_in_batch_and_heads(options: Options) -> None:
    one = case(*inputs(), **options)
    whole, part = pulled(one), pulled(_part(one, slice(1, 2), slice(2, 4)))
    np.testing.assert_array_equal(part.query, whole.query[1:, 2:])
    np.testing.assert_array_equal(part.key, whole.key[1:, 1:])
    np.testing.assert_array_equal(part.value, whole.value[1:, 1:])


def test_layout_and_strides(options: Options) -> None:
    one = case(*inputs(), **options)
    dense = pulled(one)
    assert one.grad_lse is not None
    apart = [_spread(array) for array in (*one.inputs, one.grad_out, one.grad_lse)]
    assert_same(pulled(Case((apart[0], apart[1], apart[2]), one.options, apart[3], apart[4])), dense)
    query, key, value, grad_out = (np.ascontiguousarray(a.swapaxes(1, 2)) for a in (*one.inputs, one.grad_out))
    grad_lse = one.grad_lse.swapaxes(1, 2)
    other = pulled(Case((query, key, value), {**one.options, "layout": "bshd"}, grad_out, grad_lse))
    for name in ("query", "key", "value"):
        grad = getattr(other, name)
        assert grad.flags.c_contiguous
        np.testing.assert_array_equal(grad.swapaxes(1, 2), getattr(dense, name))


def _spread(array: np.ndarray) -> np.ndarray:
    """The same numbers, backwards in memory and three elements apart."""
    memory = np.full((*array.shape, 3), math.nan, array.dtype)
    view = memory[::-1, ..., ::-1, 1]
    view[...] = array
    return view


def test_groups_against_repeated_keys() -> None:
    one = case(*inputs())
    query, key, value = one.inputs
    grouped = pulled(one)
    repeated = pulled(one._replace(inputs=(query, np.repeat(key, 2, 1), np.repeat(value, 2, 1))))
    np.testing.assert_array_equal(repeated.query, grouped.query)


@pytest.mark.parametrize("causal", [False, True])
def test_rows_of_queries_in_chunks(causal: bool) -> None:
    one = case(*inputs(), **({"mask": rootdk.causal(align="end")} if causal else {}))
    query, key, value = one.inputs
    whole = pulled(one).query
    assert one.grad_lse is not None
    for first, last in ((0, 1), (1, 40), (40, 75)):
        options = {"mask": rootdk.causal(align=KV_LEN - Q_LEN + first)} if causal else {}
        rows = np.s_[:, :, first:last]
        part = pulled(Case((query[rows], key, value), options, one.grad_out[rows], one.grad_lse[rows]))
        np.testing.assert_array_equal(part.query, whole[rows])


# poison

POISONS = [math.nan, math.inf, -math.inf]


def _poisoned(array: np.ndarray, rows: np.ndarray, poison: float) -> np.ndarray:
    copy = array.copy()
    copy[..., rows, :] = poison
    return copy


HIDE: dict[str, Any] = {
    "mask": lambda shown: {"mask": shown},
    "bias": lambda shown: {"bias": np.where(shown, 0, -math.inf).astype(np.float32)},
    "score": lambda shown: {"score_mod": lambda score, b, h, q, kv: np.where(shown[q, kv], score * 2, -math.inf)},
    "mask under score": lambda shown: {"mask": shown, "score_mod": rootdk.softcap(2.0)},
}


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("hide", HIDE)
def test_hidden_keys_values_and_blind_queries_reach_nothing(hide: str, poison: float) -> None:
    q_len, kv_len = 70, 130
    arrays = random((2, q_len, 9), (2, kv_len, 9), (2, kv_len, 5))
    rng = np.random.default_rng(4)
    keys, queries = rng.random(kv_len) < 0.4, rng.random(q_len) < 0.2
    keys[:40] = True
    one = case(*arrays, **HIDE[hide](np.broadcast_to(~keys, (q_len, kv_len)) & ~queries[:, None]))
    clean = pulled(one)
    query, key, value = one.inputs
    assert one.grad_lse is not None
    dirty = pulled(
        one._replace(
            inputs=(
                _poisoned(query, queries, poison), _poisoned(key, keys, poison), _poisoned(value, keys, poison),
            ),
            grad_out=_poisoned(one.grad_out, queries, poison),
            grad_lse=np.where(queries, np.float32(poison), one.grad_lse),
        )
    )  # fmt: skip
    assert_same(dirty, clean)
    assert not clean.query[:, queries].any()
    assert not clean.key[:, keys].any()
    assert not clean.value[:, keys].any()


def test_a_nan_in_grad_out_reaches_its_row_and_the_keys_that_it_sees() -> None:
    one = case(*random((1, 70, 8), (1, 70, 8), (1, 70, 8)), mask=rootdk.causal(align=0))
    clean, row = pulled(one), 37
    dirty = pulled(one._replace(grad_out=_poisoned(one.grad_out, np.array([row]), math.nan)))
    assert np.isnan(dirty.query[0, row]).all()
    np.testing.assert_array_equal(np.delete(dirty.query, row, 1), np.delete(clean.query, row, 1))
    for found, expected in ((dirty.key, clean.key), (dirty.value, clean.value)):
        assert np.isnan(found[0, : row + 1]).all()
        np.testing.assert_array_equal(found[0, row + 1 :], expected[0, row + 1 :])


def test_hidden_key_is_as_if_it_were_not_there() -> None:
    query, key, value = random((1, 3, 4), (1, 6, 4), (1, 6, 4))
    shown = np.arange(6) != 5
    grads = pulled(case(query, _poisoned(key, ~shown, math.nan), _poisoned(value, ~shown, math.inf), mask=shown))
    without = pulled(case(query, key[:, :5], value[:, :5]))
    np.testing.assert_allclose(grads.query, without.query, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads.key[:, :5], without.key, rtol=1e-5, atol=1e-6)
    assert not grads.key[:, 5].any()
    assert not grads.value[:, 5].any()


def test_rows_and_heads_without_keys() -> None:
    shown = np.ones((3, 4, 5), np.bool_)
    shown[:, 1] = shown[2] = False
    grads = pulled(case(*random((3, 4, 4), (3, 5, 4), (3, 5, 4)), mask=shown))
    assert all(np.isfinite(grad).all() for grad in by_name(grads).values())
    assert not grads.query[:, 1].any()
    assert not any(grad[2].any() for grad in by_name(grads).values())
    assert grads.query[0, 0].all()


# memory

GROWTH = """
import resource, numpy as np, rootdk
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def train(n):
    x = np.ones((1, n, 32), np.float32)
    table, bias = np.zeros(n, np.float32), np.zeros((n, 1), np.float32)
    out, pullback = rootdk.attention_vjp(x, x, x, score_mod=lambda s, b, h, q, k: s + table[k], bias=bias,
                                         sinks=np.zeros(1, np.float32), mask=rootdk.causal(align=0))
    return pullback(out, np.ones((1, n), np.float32))
train(64)
before = peak()
train(8192)
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_scores() -> None:
    found = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True).stdout
    scores = 8192 * 8192 * 4 / 2**20
    assert float(found) < scores / 8
