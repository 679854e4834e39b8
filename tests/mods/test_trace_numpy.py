"""Functions written for NumPy and plain Python: traced, and equal to what they give on broadcast arrays."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tracing import dense_mask, dense_score, trace_mask, trace_score

from rootdk.dtypes import Kind
from rootdk.errors import DTypeError

SHAPE = (2, 3, 5, 7)
RNG = np.random.default_rng(0)
SCORE = RNG.normal(size=SHAPE) * 3
B, H, Q, K = np.ogrid[tuple(slice(size) for size in SHAPE)]
TABLE, MATRIX, IDS = RNG.normal(size=3), RNG.normal(size=(5, 7)), np.array([0, 0, 1, 1, 1, 2, -1])


def check(function: Callable[..., Any]) -> None:
    with np.errstate(all="ignore"):
        expected = np.broadcast_to(function(SCORE, B, H, Q, K), SHAPE)
    np.testing.assert_allclose(dense_score(function, SCORE), expected, rtol=1e-12, atol=1e-12)


SCORES: dict[str, Callable[..., Any]] = {
    "operators": lambda s, b, h, q, k: -s * 2 + (q - k) / 3 - abs(s) + s**2 + +s,
    "numbers first": lambda s, b, h, q, k: 2.0 - s + 3 * q - 1 / (k + 1) + 5 // (q + 1) + 5 % (k + 1) + 2.0**h,
    "negative operands": lambda s, b, h, q, k: s + (q - 7) // 3 + (q - 7) % 3 + (q - 7) // -3 + (q - 7) % -3,
    "zero divisor": lambda s, b, h, q, k: s + q // (k - 3) + q % (k - 3),
    "divmod": lambda s, b, h, q, k: s + divmod(q - 3, 2)[0] + divmod(7, k + 1)[1],
    "ufuncs": lambda s, b, h, q, k: np.exp(s) + np.tanh(s) + np.sqrt(np.abs(s)) + np.log1p(np.fabs(s)) + np.expm1(s),
    "more ufuncs": lambda s, b, h, q, k: np.exp2(s) + np.log2(np.abs(s)) + np.sin(s) + np.cos(s) + np.square(s),
    "ufuncs of two": lambda s, b, h, q, k: np.maximum(s, q) + np.minimum(s, k) + np.power(np.abs(s), 1.5),
    "arithmetic ufuncs": lambda s, b, h, q, k: np.add(
        s, np.subtract(q, np.multiply(k, np.divide(s, np.negative(2.0))))
    ),
    "numpy numbers": lambda s, b, h, q, k: np.float64(2.5) * s + np.float32(0.5) + np.int64(3) * q - s / np.int32(2),
    "where": lambda s, b, h, q, k: np.where(q >= k, s, -np.inf),
    "clip": lambda s, b, h, q, k: np.clip(s, -1, 1) + np.clip(q - k, 0, None) + (k - q).clip(None, 2),
    "roundings": lambda s, b, h, q, k: np.floor(s) + np.ceil(s) + np.rint(s) + np.trunc(s) + np.round(s) + np.fix(s),
    "tests": lambda s, b, h, q, k: np.where(np.isnan(s) | np.isinf(s) | ~np.isfinite(s), 0.0, np.sign(s)),
    "astype": lambda s, b, h, q, k: s.astype(np.int64) + (q >= k).astype(float) + q.astype("float32"),
    "bits": lambda s, b, h, q, k: s + (q << 1) + (k >> 1) + (q & 3) + (q | 4) + (q ^ k) + ~q + np.bitwise_and(q, k),
    "logic": lambda s, b, h, q, k: np.where(np.logical_or(q > 3, np.logical_not(k > 2)) ^ (h == 1), s, 0),
    "integer powers": lambda s, b, h, q, k: s + q**2 + q**0 + k**10 + (q - 2) ** k + 2**k,
    "float powers": lambda s, b, h, q, k: s**0 + s**1 + s**5 + np.float_power(q + 1, 0.5) + (q + 1.0) ** -1,
    "others": lambda s, b, h, q, k: np.hypot(s, 1) + np.logaddexp(s, q) + np.copysign(s, k - 3) + np.reciprocal(s),
    "heaviside": lambda s, b, h, q, k: np.heaviside(q - 2.0, 0.5) + np.fmod(s, 0.7) + np.fmax(s, 0) + np.fmin(s, 0),
    "like": lambda s, b, h, q, k: s + np.ones_like(s) + np.zeros_like(s) + np.full_like(s, 2.5),
    "table": lambda s, b, h, q, k: s + TABLE[h] + MATRIX[q, k] + MATRIX[q % 5, -1],
    "take": lambda s, b, h, q, k: s + np.take(TABLE, h) + TABLE.take(h) + np.exp(TABLE)[h],
    "whole table operations": lambda s, b, h, q, k: (
        s + (TABLE * 2 - 1)[h] + (TABLE > 0)[h] + (1 - TABLE.astype(np.float64))[h]
    ),
    "builtin round": lambda s, b, h, q, k: s + np.round(s),
}


@pytest.mark.parametrize("name", SCORES)
def test_score_function(name: str) -> None:
    check(SCORES[name])


def test_scalar_functions_of_python() -> None:
    def function(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return max(s, 0.0) + min(s, q, k) + max(q, k) + round(s) + max([1.0, 2.0]) + min(3, 1)

    expected = np.maximum(SCORE, 0) + np.minimum(np.minimum(SCORE, Q), K) + np.maximum(Q, K) + np.rint(SCORE) + 3
    np.testing.assert_allclose(dense_score(function, SCORE), expected)


def test_math_floor_and_ceil_follow_pythons_protocols() -> None:
    import math

    function = lambda s, b, h, q, k: math.floor(s) + math.ceil(s) + math.trunc(s)  # noqa: E731
    np.testing.assert_allclose(dense_score(function, SCORE), np.floor(SCORE) + np.ceil(SCORE) + np.trunc(SCORE))


def test_rows() -> None:
    rows = RNG.normal(size=(3, 5, 4))
    keys = RNG.normal(size=(7, 4))
    expected = SCORE + np.einsum("hqd,kd->hqk", rows, keys)
    for product in (
        lambda x, y: np.dot(x, y),
        lambda x, y: x @ y,
        lambda x, y: np.matmul(x, y),
        lambda x, y: np.sum(x * y),
        lambda x, y: (x * y).sum(axis=-1),
        lambda x, y: sum(a * b for a, b in zip(x, y, strict=True)),
        lambda x, y: sum(x[i] * y[i] for i in range(len(x))),
    ):
        found = dense_score(lambda s, b, h, q, k, product=product: s + product(rows[h, q], keys[k]), SCORE)
        np.testing.assert_allclose(found, expected)


def test_row_norms_and_extremes() -> None:
    rows = RNG.normal(size=(7, 4))

    def function(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * 0 + np.linalg.norm(rows[k]) + np.max(rows[k]) - np.min(rows[k]) + np.mean(rows[k]) + np.prod(rows[k])

    expected = np.linalg.norm(rows, axis=1) + rows.max(1) - rows.min(1) + rows.mean(1) + rows.prod(1)
    np.testing.assert_allclose(dense_score(function, SCORE)[0, 0, 0], expected)


MASKS: dict[str, Callable[..., Any]] = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k <= 2),
    "documents": lambda b, h, q, k: (IDS[q] == IDS[k]) & (IDS[q] >= 0) & (q >= k),
    "nested": lambda b, h, q, k: IDS[np.abs(IDS[k])] == IDS[q],
    "strided": lambda b, h, q, k: ((q - k) % 3 == 0) | (k < 1),
    "dense": lambda b, h, q, k: (MATRIX > 0)[q, k],
    "per head": lambda b, h, q, k: np.where(h == 0, q >= k, q != k),
    "boolean equality": lambda b, h, q, k: (q > 2) == (k > 2),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask_function(name: str) -> None:
    expected = np.broadcast_to(MASKS[name](B, H, Q, K), SHAPE)
    np.testing.assert_array_equal(dense_mask(MASKS[name], SHAPE), expected)


@pytest.mark.parametrize("answer", [True, False, np.True_, np.array(False)])
def test_constant_masks(answer: Any) -> None:
    assert (dense_mask(lambda b, h, q, k: answer, SHAPE) == answer).all()


def test_a_mask_that_shows_all_is_no_mask() -> None:
    assert trace_mask(lambda b, h, q, k: True).graph.mask is None


@pytest.mark.parametrize("answer", [0, 2.5, np.float32(1.5), float("-inf")])
def test_constant_scores(answer: Any) -> None:
    assert (dense_score(lambda s, b, h, q, k: answer, SCORE) == answer).all()


def test_a_score_that_stays_is_no_score() -> None:
    assert trace_score(lambda s, b, h, q, k: s).graph.score is None


DTYPES = [
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]


@pytest.mark.parametrize("dtype", [*DTYPES, ml_dtypes.bfloat16])
def test_element_types(dtype: Any) -> None:
    table = (np.arange(7) * 3 - (0 if np.dtype(dtype).kind in "ub" else 9)).astype(dtype)
    expected = SCORE + 2 * table.astype(np.float64)
    np.testing.assert_allclose(dense_score(lambda s, b, h, q, k: s + 2 * table[k], SCORE), expected)


def test_strides() -> None:
    wide = RNG.normal(size=(20, 21))
    for table in (wide[::-2, ::3], wide[:7, :5].T, np.broadcast_to(wide[0, :7], (5, 7)), wide.T[::-1, 2::2][:5, :7]):
        traced = trace_score(lambda s, b, h, q, k, table=table: s + table[q, k], SHAPE)
        assert traced.arrays[0].base is not None
        np.testing.assert_allclose(
            dense_score(lambda s, b, h, q, k, table=table: s + table[q, k], SCORE), SCORE + table[Q, K]
        )


def test_jax_arrays() -> None:
    ids, slopes = jnp.asarray(IDS, jnp.int32), jnp.asarray(TABLE, jnp.float32)
    np.testing.assert_array_equal(
        dense_mask(lambda b, h, q, k: ids[q] == ids[k], SHAPE)[0, 0], IDS[:5, None] == IDS[None, :]
    )
    found = dense_score(lambda s, b, h, q, k: s + slopes[h] * (q - k), SCORE)
    np.testing.assert_allclose(found, SCORE + TABLE[H] * (Q - K), rtol=1e-6, atol=1e-6)


def test_functions_of_jax() -> None:
    activation = jax.nn.gelu

    def function(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (
            jnp.where(q >= k, jnp.tanh(s), jax.nn.relu(s))
            + activation(s)
            + jnp.exp(jnp.float32(0.0))
            + jax.lax.max(s, s)
        )

    expected = np.where(Q >= K, np.tanh(SCORE), np.maximum(SCORE, 0)) + np.asarray(jax.nn.gelu(SCORE)) + 1 + SCORE
    np.testing.assert_allclose(dense_score(function, SCORE), expected, rtol=1e-5, atol=1e-5)


def test_zero_rank_arrays_are_gathered() -> None:
    offset = np.array(3)
    traced = trace_mask(lambda b, h, q, k: k <= q + offset, SHAPE)
    assert [node.op for node in traced.graph.nodes].count("gather") == 1
    offset[...] = 5
    assert traced.arrays[0] is offset


@pytest.mark.parametrize("dtype", ["complex64", "U3", "object", ">f4", "datetime64[s]"])
def test_unreadable_element_types(dtype: str) -> None:
    table = np.zeros(7, dtype)
    with pytest.raises(DTypeError, match="table: expected a boolean, integer or floating array"):
        trace_score(lambda s, b, h, q, k: s + table[k])


def test_kinds_promote() -> None:
    def kind(function: Callable[..., Any]) -> Kind:
        traced = trace_score(lambda s, b, h, q, k: np.where(q == q, s, function(s, q)))
        values = [node for node in traced.graph.nodes if node.op == "where"][-1]
        branch = traced.graph.nodes[values.args[2]]
        return traced.graph.nodes[branch.args[0]].kind if branch.op == "to_float" else branch.kind

    assert kind(lambda s, q: q + 1) is Kind.INT
    assert kind(lambda s, q: q + 1.0) is Kind.FLOAT
    assert kind(lambda s, q: q / 2) is Kind.FLOAT
    assert kind(lambda s, q: (q > 1) * 2) is Kind.INT
    assert kind(lambda s, q: np.where(q > 1, 1, 0)) is Kind.INT


def test_torch_is_not_needed() -> None:
    script = """
import sys
import numpy as np
from rootdk.mods.trace import Tracer
tracer = Tracer(4, 4)
table = np.arange(4.0)
function = lambda s, b, h, q, k: np.tanh(s) + table[q] + s.dtype.itemsize
score = tracer.call(function, tracer.score, *tracer.indices, what="score_mod")
assert tracer.finish(score, None).graph.score is not None
assert not {"torch", "jax"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
