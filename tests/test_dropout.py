"""Dropout: the generator against its published answers, and the kernels against the generator."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import gradient_checks
import numpy as np
import pytest
from attention_checks import DTYPES, assert_right, assert_same, random
from codegen.small_kernels import TARGETS

import rootdk
from rootdk import calls, dropout, engine, gradients
from rootdk.machine import Target
from rootdk.runtime.cache import kernels

KNOWN = [  # counter, key and words that the generator's authors publish
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
SEED = 0x0123_4567_89AB_CDEF
BATCH, HEADS, Q_LEN, KV_LEN = 2, 2, 61, 1101
"""Tails of lanes, of blocks and of the four keys that share a counter; more than one chunk of keys."""


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def kept(q_len: int = Q_LEN, kv_len: int = KV_LEN, p: float = 0.3, seed: int = SEED) -> np.ndarray:
    """[BATCH, HEADS, q_len, kv_len]: which pairs stay, by the reference's generator."""
    return dropout.keep(seed, *np.ogrid[:BATCH, :HEADS, :q_len, :kv_len], p)


def even(q_len: int, kv_len: int, d_v: int, dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs whose weights are all 1 / kv_len; the values, of width ``d_v``, are an identity, cut or padded."""
    query, key = (np.zeros((BATCH, HEADS, length, 4), dtype) for length in (q_len, kv_len))
    return query, key, np.broadcast_to(np.eye(kv_len, d_v, dtype=dtype), (BATCH, HEADS, kv_len, d_v))


def inputs(dtype: Any = np.float32, kv_len: int = KV_LEN, kv_heads: int = HEADS) -> list[np.ndarray]:
    shapes = [(BATCH, HEADS, Q_LEN, 20), (BATCH, kv_heads, kv_len, 20), (BATCH, kv_heads, kv_len, 12)]
    return random(*shapes, dtype=dtype, seed=1)


def attend(arrays: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Output and LSE under dropout."""
    options = {"dropout_p": 0.3, "seed": SEED, **options}
    found: tuple[np.ndarray, np.ndarray] = rootdk.attention(*arrays, return_lse=True, **options)
    return found


@pytest.fixture(params=TARGETS, ids=lambda target: target.name)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Each instruction set of this machine in turn: lanes of queries and of keys draw words in different ways."""
    monkeypatch.setattr(calls, "_known", {})  # which take it that the machine stays what it is
    for module in (engine, gradients):
        monkeypatch.setattr(module, "host", lambda: request.param)
    chosen: Target = request.param
    return chosen


@pytest.fixture
def threads() -> Iterator[Any]:
    before = rootdk.get_num_threads()
    yield rootdk.set_num_threads
    rootdk.set_num_threads(before)


# the generator


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: str, key: str, answer: str) -> None:
    first, second = words(key)
    assert [int(word) for word in dropout.philox(words(counter), (first, second))] == words(answer)


def test_a_pair_has_the_documented_word() -> None:
    found = dropout.keep(SEED, *np.ogrid[:2, :3, :5, :11], 0.4)
    for b, h, q, kv in np.ndindex(found.shape):
        drawn = dropout.philox((kv // 4, q, h, b), (SEED & 0xFFFFFFFF, SEED >> 32))[kv % 4]
        assert found[b, h, q, kv] == (int(drawn) >= 0.4 * 2**32)


@pytest.mark.parametrize("p", [0.0, 5e-324, 2.0**-33, 2.0**-32, 0.1, 0.5, 1 - 2.0**-32, float(np.nextafter(1, 0)), 1.0])
def test_threshold_is_exact(p: float) -> None:
    for word in {0, 1, 2**31, 2**32 - 2, 2**32 - 1, dropout.threshold(p) - 1, min(dropout.threshold(p), 2**32 - 1)}:
        assert (word >= dropout.threshold(p)) == (Fraction(word) >= Fraction(p) * 2**32)


# the kernels draw the generator's words


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mask", [None, rootdk.causal(align=700)], ids=["plain", "causal"])
def test_forward_keeps_what_the_generator_says(target: Target, dtype: Any, mask: Any) -> None:
    output, lse = attend(even(Q_LEN, KV_LEN, KV_LEN, dtype), mask=mask)
    plain, plain_lse = attend(even(Q_LEN, KV_LEN, KV_LEN, dtype), mask=mask, dropout_p=0.0)
    np.testing.assert_array_equal(output != 0, kept() & (plain != 0))
    np.testing.assert_allclose(output, np.where(kept(), plain / 0.7, 0), rtol=1e-6)
    np.testing.assert_array_equal(lse, plain_lse)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kv_len", [KV_LEN, 99, 6, 1])
def test_backward_keeps_what_the_generator_says(target: Target, dtype: Any, kv_len: int) -> None:
    arrays = even(Q_LEN, kv_len, Q_LEN, dtype)
    _, pullback = rootdk.attention_vjp(*arrays, dropout_p=0.3, seed=SEED)
    # row r's gradient is 1 in column r alone, so that dV[j, r] is the weight of r for j
    grad = pullback(np.broadcast_to(np.eye(Q_LEN, dtype=dtype), (BATCH, HEADS, Q_LEN, Q_LEN))).value
    expected = np.where(kept(kv_len=kv_len), 1 / kv_len / 0.7, 0).swapaxes(-1, -2)
    np.testing.assert_array_equal(grad != 0, expected != 0)
    np.testing.assert_allclose(grad, expected, rtol=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
@pytest.mark.parametrize("p", [2.0**-20, 0.5, 1 - 2.0**-20])
def test_every_seed_and_probability(seed: int, p: float) -> None:
    output, _ = attend(even(Q_LEN, KV_LEN, KV_LEN, np.float32), seed=seed, dropout_p=p)
    np.testing.assert_array_equal(output != 0, kept(p=p, seed=seed))


# what does not change the pattern


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": rootdk.causal(align="end")},
    "score": {"score_mod": rootdk.softcap(3.0), "mask": rootdk.sliding_window(700, 300, align=520)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_number_of_threads(options: dict[str, Any], threads: Any) -> None:
    found = []
    for number in (1, 2, 3):
        threads(number)
        found.append(attend(inputs(), **options))
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


def test_layout() -> None:
    output, lse = attend([array.swapaxes(1, 2).copy() for array in inputs()], layout="bshd")
    assert_same((output.swapaxes(1, 2), lse.swapaxes(1, 2)), attend(inputs()))


def test_batch_size_and_number_of_heads() -> None:
    output, lse = attend(inputs())
    assert_same(attend([array[:1, :1] for array in inputs()]), (output[:1, :1], lse[:1, :1]))


@pytest.mark.parametrize("q_len", [1, 3, 17, 60])
def test_number_of_queries(q_len: int) -> None:
    output, lse = attend(inputs())
    query, key, value = inputs()
    assert_same(attend([query[:, :, :q_len], key, value]), (output[:, :, :q_len], lse[:, :, :q_len]))


def test_a_fresh_seed_for_every_call() -> None:
    first, second = (attend(inputs(), seed=None)[0] for _ in range(2))
    assert (first != second).any()


def test_probability_and_seed_compile_nothing() -> None:
    attend(inputs())
    before = kernels().counters().compilations
    attend(inputs(), dropout_p=0.123, seed=77)
    assert kernels().counters().compilations == before


# values


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_outputs(dtype: Any, options: dict[str, Any]) -> None:
    assert_right(*inputs(dtype, kv_len=131, kv_heads=1), dropout_p=0.3, seed=SEED, **options)


def test_nothing_dropped_is_no_dropout() -> None:
    assert_same(attend(inputs(), dropout_p=0.0), rootdk.attention(*inputs(), return_lse=True))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_everything_dropped_is_zero(options: dict[str, Any]) -> None:
    (output, lse), pullback = rootdk.attention_vjp(*inputs(), return_lse=True, dropout_p=1.0, **options)
    assert (output == 0).all()
    assert_same(lse, rootdk.attention(*inputs(), return_lse=True, **options)[1])
    grads = pullback(np.ones_like(output))
    for grad in (grads.query, grads.key, grads.value):
        assert (grad == 0).all()


def test_mean_over_seeds_is_no_dropout() -> None:
    query, key, value = random((4, 8), (12, 8), (12, 3), dtype=np.float64)
    plain = rootdk.attention(query, key, value)
    drawn = np.array([rootdk.attention(query, key, value, dropout_p=0.4, seed=seed) for seed in range(2000)])
    np.testing.assert_array_less(abs(drawn.mean(axis=0) - plain), 5 * drawn.std(axis=0) / len(drawn) ** 0.5)


def test_hidden_poison_stays_hidden() -> None:
    query, key, value = inputs()
    clean, _ = attend((query, key, value), mask=rootdk.causal(align="start"))
    key[:, :, Q_LEN:], value[:, :, Q_LEN:] = np.nan, np.inf
    assert_same(attend((query, key, value), mask=rootdk.causal(align="start"))[0], clean)


# gradients


def bias(draw: Any) -> dict[str, Any]:
    return {"bias": draw(HEADS, 1, 131), "sinks": draw(HEADS)}


def captured(draw: Any) -> dict[str, Any]:
    factor, table = draw(), draw(Q_LEN)
    return {
        "score_mod": lambda score, b, h, q, kv: np.tanh(score) * factor + table[q],
        "mask": rootdk.sliding_window(70, 30, align=20),
    }


def causal(draw: Any) -> dict[str, Any]:
    return {"mask": rootdk.causal(align="end")}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [lambda draw: {}, causal, bias, captured], ids=["plain", "causal", "bias", "captured"])
def test_gradients(dtype: Any, make: Any) -> None:
    rng = np.random.default_rng(5)
    options = {"dropout_p": 0.3, "seed": SEED, **make(lambda *shape: np.asarray(rng.standard_normal(shape), dtype))}
    gradient_checks.assert_right(gradient_checks.case(*inputs(dtype, kv_len=131, kv_heads=1), **options))


def test_gradients_do_not_depend_on_threads(threads: Any) -> None:
    found = []
    for number in (1, 3):
        threads(number)
        output, pullback = rootdk.attention_vjp(*inputs(), dropout_p=0.3, seed=SEED)
        found.append(pullback(np.ones_like(output)))
    for name in ("query", "key", "value"):
        assert_same(getattr(found[1], name), getattr(found[0], name))
